"""Hard places for a sentence splitter; ¦ is where one sentence ends and the next begins.

ENGLISH and OTHER were written before the splitter; it was mended until they came out right. The
LATER ones were written when it was done, and tried once before it was mended again (docs/log.md).
"""

ENGLISH = """
This is one. ¦ This is another.
Is this one? ¦ Yes! ¦ It is.
One line without an end
A single sentence.
Mr. Harper met Mrs. Doyle and Ms. Lin at noon. ¦ They left early.
Dr. Okafor is out. ¦ Prof. Lang is in.
We flew to St. Louis and drove to Mt. Hood. ¦ It rained.
Some animals, e.g. cats, sleep all day. ¦ Others, i.e. dogs, do not.
Bring pens, paper, etc. to the exam. ¦ Phones stay outside.
They sell apples, pears, etc. ¦ Prices are low.
It was France vs. Brazil again. ¦ France won.
See No. 5 on the list. ¦ No. 7 is missing.
Did she agree? ¦ No. ¦ She walked out.
The curve in Fig. 3 is flat. ¦ Figs. 4 and 5 are not.
The U.S. economy grew. ¦ So did that of the U.K. in the same year.
He moved to the U.S. ¦ The reason was work.
She lives in Washington, D.C. with two cats. ¦ They are old.
She has a Ph.D. in chemistry. ¦ He has an M.D. and a B.A. from Leeds.
After years of study he earned his Ph.D. ¦ She did the same.
The train leaves at 7 a.m. and returns at 6 p.m. every day.
The shop opens at 9 a.m. ¦ We were early.
The meeting is at 5 p.m. Monday in the hall.
The report of Jan. 5 was late. ¦ That of Feb. 12 was not.
They met in Dec. ¦ The wedding was in May.
Acme Inc. bought Baker & Co. for cash. ¦ Nobody knew why.
He worked for Acme Inc. ¦ It was his first job.
Smith et al. found the same. ¦ Later work did not.
See vol. 3, pp. 12-15, and cf. the notes in ch. 2. ¦ They help.
The bridge is approx. 300 m long. ¦ It was built in 1902.
J. R. R. Tolkien wrote it. ¦ C. S. Lewis read it first.
George W. Bush followed Bill Clinton. ¦ John F. Kennedy came long before.
Samuel L. Jackson stars. ¦ He is good.
She works with A. Novak. ¦ They share a desk.
My brother is taller than I. ¦ Tom is taller still.
The best source of vitamin C. ¦ It is cheap, too.
Malcolm X was born in Omaha. ¦ He died in New York.
Pi is about 3.14159. ¦ The number e is 2.71828.
The price fell from $3.50 to $2.99. ¦ Sales rose by 4.5%.
It was built in 1990. ¦ 25 people live there.
He was 25. ¦ She was 30.
Version 2.0.1 is out. ¦ Update from 1.9.12 now.
Go to www.example.com/index.html for more. ¦ It is free.
Write to help@example.org. ¦ We answer within a day.
The file is called notes.txt. ¦ Open it in Node.js or .NET.
The site is at https://example.com/a.b?c=d. ¦ Try it.
Well... I do not know.
I waited... and waited. ¦ Nothing came.
She paused… then went on. ¦ He listened.
It was over... ¦ The lights went out.
He said that . . . it was late. ¦ We went.
"Stop!" he said. ¦ Nobody moved.
"Stop." ¦ She left.
"Why?" Tom asked. ¦ "Because," she said, "I must."
“Where are you going?” she asked. ¦ “Home.”
“It is late.” ¦ He rose.
‘Is it true?’ cried the boy. ¦ ‘It is!’
He asked, "Are you sure?" ¦ She was.
He said, "I am tired." ¦ Then he slept.
She called it "the end of the world." ¦ It was not.
'No,' he said. ¦ 'Never.'
"I came. ¦ I saw. ¦ I left," he wrote.
What?! ¦ You did it again?! ¦ Unbelievable!!!
Really?? ¦ Yes.
Hurry up!! ¦ The train leaves.
Yahoo! is an old company. ¦ It still exists.
Oh! what a day it was. ¦ We laughed.
(This is a remark.) ¦ This is not.
The hall (built in 1850) burned down. ¦ It was rebuilt (again!) in 1900.
He left early (he was tired.) ¦ She stayed.
They won (see Fig. 2). ¦ We lost [see p. 9].
The treaty [signed at St. James's] failed. ¦ War followed.
She wrote the play (it was her first!) and sold it. ¦ It ran for years.
1. Open the lid. ¦ 2. Pour the water. ¦ 3. Wait.
1. First things first.
a. Read the text. ¦ b. Answer the questions.
IV. The fourth part begins here.
Chapter two is short. ¦ (a) It has one page. ¦ (b) It has no pictures.
The city had 1,234,567 people in 2010. ¦ By 2020 it had 2.5 million.
He ran 100 m in 9.58 s. ¦ Nobody has run faster.
The box weighs 5 lb. 3 oz. and costs $20. ¦ Shipping is free.
Henry VIII. and his court came. ¦ They stayed long.
It cost no. of people nothing.
The temperature is 20 °C. ¦ Tomorrow it will be 25 °C.
King Charles I. ¦ He lost his head.
Section A. ¦ The first question is easy.
Turn left onto Main St. and stop. ¦ The house is green.
The house stands on Main St. ¦ It has a red door.
Gen. Grant met Gov. Stone and Sen. Ward. ¦ Lt. Col. Fox wrote it down.
Rev. Dr. Martin spoke. ¦ Capt. Reed listened.
John Smith Jr. inherited the farm. ¦ Sammy Davis Sr. was a dancer.
He signed as J.P. Morgan. ¦ The bank was his.
J.K. Rowling and H.G. Wells wrote books. ¦ Both sold well.
The year 44 B.C. was bloody. ¦ In A.D. 79 the mountain exploded.
The N.Y. office closed. ¦ The L.A. office did not.
The E.U. and the U.N. agreed. ¦ Others refused.
The word "etc." is short. ¦ So is "e.g." in print.
Is it "yes" or "no"? ¦ Tell me.
He shouted "Fire!" and ran. ¦ We followed.
The film "Who Is There?" was a hit. ¦ Its sequel was not.
Look at that!—it moves. ¦ It is alive.
He left; she stayed. ¦ Nothing more: that is all.
I can't. ¦ I won't. ¦ You can't make me.
'Tis the season. ¦ 'Twas the night.
She is from Paris.[1] ¦ He is from Rome.[23] ¦ They met in Oslo.
iPhones are dear. ¦ eBay sells them. ¦ They break.
It is 5 ft. 3 in. tall. ¦ That is small.
Add 2 tbsp. of oil. ¦ Stir.
He said no. ¦ Everyone cheered.
The art. of the law is clear. ¦ See art. 5 and sec. 9.
The case of Roe v. Wade is known. ¦ Brown v. Board is older.
He came in 3rd. ¦ She came in 1st.
The answer is (b). ¦ The others are wrong.
this text has no capitals. ¦ it still has sentences, e.g. this one. ¦ right?
THIS IS LOUD. ¦ THIS IS LOUDER! ¦ STOP.
The prices (in U.S. dollars) rose. ¦ The euro fell.
On Nov. 3, 2020, they voted. ¦ Counting took days.
The Mass. and Conn. delegates met in Phila. in Sept. 1787. ¦ They agreed.
The company, Foo Corp., sold Bar Ltd. to Baz Bros. last week. ¦ Shares fell.
"Who goes there?" ¦ "A friend." ¦ "Pass, then."
He was tired of it all. . . . ¦ The end came soon.
"No. ¦ I don't know anything about him."
He won by no arts. ¦ I am sure of that.
The name dates from c. 705. ¦ Another one is older.
They filmed it "in the U.S.S.R." ¦ Reportedly, nobody saw it.
"""

OTHER = """
今天天气很好。¦我们去公园吧！¦你来吗？
他叫李明，今年三十岁。¦她叫王芳。
“你去哪儿？”他问。¦“回家。”她说。
“走吧！”¦他们都站了起来。
他说：“我不知道。”¦然后他走了。
他大声喊道：“快跑！”¦大家都跑了。
老师说：“请坐。”，学生们就坐下了。
圆周率约为3.14159。¦它是无理数。
人口为1,234.5万人。¦面积为300平方公里。
他想了很久……¦最后还是走了。
“我……我不知道。”他小声说。
真的吗？！¦我不信！！！
《你好，李焕英！》上映了。¦票房很高。
我读过《谁动了我的奶酪？》这本书。¦很有意思。
（这是注释。）¦这不是。
他来了（他迟到了）。¦会议开始了。
春天来了；¦花开了。
這是第一句。¦「你好嗎？」她問。¦「我很好。」
他說：「我走了。」¦門關上了。
你好吗?¦我很好!¦谢谢。
公司成立于1998年。¦网址是www.example.com。¦电话是010-12345678。
他在U.S. News上看到的。¦后来他忘了。
《红楼梦》、《西游记》等都是名著。¦作者不同。
“你去吗？”¦韩愈说：“不去。”
罗马（拉丁语：Roma；意大利语也是）是一座城市。¦它很大。
这款手机搭载iOS 14.2系统。¦售价5999元。
什么？¦你再说一遍！
他问：“为什么？¦是谁干的？”¦没人回答。
一、准备材料。¦二、开始制作。
1．打开盖子。¦2．倒入水。
今日は雨です。¦明日は晴れるでしょう。
「行こう！」と彼は言った。¦彼女はうなずいた。
「もう帰る。」¦彼は立ち上がった。
本当ですか？¦はい、そうです！
彼は『走れメロス』を読んだ。¦面白かった。
価格は1.5倍になった。¦売れなかった。
Er kam am 3. Oktober 1990 an. ¦ Das war ein Mittwoch.
Im 19. Jahrhundert war das anders. ¦ Heute ist es z. B. so.
Dr. Müller und Hr. Schmidt kamen, d. h. sie waren da. ¦ Gut.
„Hallo!“, rief er. ¦ „Wer ist da?“
M. Dupont est parti. ¦ Mme Leroy reste.
« Où vas-tu ? » demanda-t-il. ¦ Elle se tut.
« Je pars. » ¦ Il sortit.
¿Qué hora es? ¦ Son las tres. ¦ ¡Vamos!
El Sr. López y la Sra. Díaz llegaron. ¦ La Dra. Ruiz no.
А. С. Пушкин родился в Москве. ¦ Он был поэтом.
Он жил в 1990 г. в Риге, т. е. далеко. ¦ Потом уехал.
«Куда ты?» — спросил он. ¦ Она молчала.
Το σπίτι είναι μεγάλο. ¦ Ο κήπος είναι μικρός.
यह एक वाक्य है। ¦ यह दूसरा है।
هل أنت بخير؟ ¦ نعم، أنا بخير.
یہ پہلا جملہ ہے۔ ¦ یہ دوسرا ہے۔
Սա առաջինն է։ ¦ Սա երկրորդն է։
שלום לכולם. ¦ מה שלומכם?
이것은 책입니다. ¦ 저것은 무엇입니까? ¦ 연필입니다.
"""

ENGLISH_LATER = """
The patient was given 5 mg. of the drug. ¦ Her fever fell within an hour.
Sen. Elizabeth Hart (D-Mass.) voted no. ¦ Rep. Cole did not vote.
It opened on Sept. 9 at the Royal Theatre. ¦ Reviews were mixed.
He lives at 12 Elm Ave. in Dayton. ¦ She lives on Oak Blvd. near the park.
Messrs. Reed & Sons closed in 1931. ¦ Nobody bought the shop.
"Is it far?" asked the girl. ¦ "Not very," said Mr. Bell.
"I don't think so!" Mrs. Grey replied. ¦ The door closed.
He yelled, "Get out!" ¦ Nobody did.
The score was 3-2. ¦ 40,000 people watched.
In 1999, Dr. J. Wu et al. (p. 45) measured it again. ¦ The value was lower.
Her name is Anna-Maria St. Clair. ¦ She paints.
They arrived at 10:30 a.m. on Tuesday. ¦ The hall was empty.
Prices start at approx. €20. ¦ Booking is required.
What is love? ¦ What is hate? ¦ Who knows...
The so-called "Big Bang" theory (see ch. 4, sec. 2.1) is old. ¦ It works.
He has a B.Sc. from Leeds and an M.Sc. from Bath. ¦ He teaches now.
We use Python 3.11. ¦ Version 2.7 is gone.
E.g. birds can fly. ¦ I.e. they have wings.
This costs $5. ¦ That costs $6.50.
The U.S. Army and the U.S. Navy agreed. ¦ They rarely do.
She said, "He told me, 'Leave now.'" ¦ I believed her.
Washington, D.C. ¦ It is a city.
The Cardinals moved to St. Louis in 1882. ¦ They stayed.
I met Tom, Dick, etc. ¦ We talked.
See https://example.org/path?a=1&b=2. ¦ Then come back.
Rock 'n' roll is here to stay. ¦ So is jazz.
He paid 50 c. for it. ¦ It was worth more.
The D.A. said no. ¦ The judge said yes.
Alas! ¦ Nothing remained.
"Run!" ¦ He ran.
He asked why. ¦ "Why not?" I said.
The unit is the kilogram (kg). ¦ Its symbol is kg.
Lorem ipsum... dolor sit amet. ¦ Consectetur follows.
The book (published by Knopf Inc.) sold well. ¦ Its author was glad.
Model T. Ford's car changed the world.
He reached Mt. Everest's top at 11.30. ¦ The wind was strong.
Mary had no. 7, I had no. 8. ¦ Both lost.
Is Gov. Stone coming? ¦ Yes, at 6 p.m. sharp.
It weighs 2.5 kg. ¦ Lift it carefully.
The trial of Smith v. Jones began on Mon. 3 Feb. and lasted a week. ¦ Smith won.
"""

OTHER_LATER = """
他今年28岁。¦身高1.75米。
“真的？”¦小红瞪大了眼睛。¦“当然是真的！”小明笑着说。
妈妈说：“吃饭了！”¦我马上跑了过去。
你知道吗？¦他昨天来过……¦可是没见到你。
会议于2020年3月5日（星期四）召开。¦出席者有50人。
这本书叫《如何阅读一本书？》。¦它很有名。
「ありがとう。」と言って、彼は去った。¦雨が降っていた。
彼は3.5キロ歩いた。¦疲れた！
東京は日本の首都である。¦人口は約1400万人だ。
Das kostet ca. 5 Euro. ¦ Das ist z.B. nicht viel.
Il est né le 5 mai. ¦ Elle, le 6.
Г. Иванов приехал в 5 ч. утра. ¦ Его встретили.
क्या तुम ठीक हो? ¦ हाँ, मैं ठीक हूँ।
他走了吗?¦他没走!
"""


def parse(cases: str) -> list[tuple[str, list[str]]]:
    """(text, its sentences) of every line."""
    return [
        (line.replace("¦ ", "").replace("¦", ""), [part.strip() for part in line.split("¦")])
        for line in cases.splitlines()
        if line
    ]
