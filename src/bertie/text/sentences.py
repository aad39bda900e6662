"""Text to sentences, by rules, in any language.

One regular expression finds the places where a sentence could end; the words before and after each
of them decide. A new line always ends a sentence.
"""

import re
from collections.abc import Iterator

OPENERS = "\"'“‘«‹„‚([{¿¡「『（"
QUOTES = frozenset("\"'”’“‘»›」』")
# Quotes and brackets that may follow the mark; a number in brackets is a footnote. German closes
# with what others open with, Chinese has no space to tell.
CLOSERS = r"(?:[\"'”“’‘»›)\]}）］｝」』】]|[ \u00a0\u202f][»›]|\[\d{1,3}\])*+"
CLOSERS_CJK = r"[\"'”’»)）］｝」』】]*+"
CJK = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
# Scripts with spaces, where the mark may mean something else; those without; and marks that mean
# nothing else. The first character is one class, for which the search is fast; a run of marks is
# tried from its first one only, so that the time stays linear in the text.
CANDIDATE = re.compile(
    r"[.!?…‽。！？｡．；؟।॥۔։።။។]"
    rf"(?:(?<=[.!?…‽])(?<![.!?…‽]{{2}})[.!?…‽]*+{CLOSERS}(?=\s)"
    rf"|(?<=[!?…])(?<![!?…]{{2}})[!?…]*+{CLOSERS_CJK}(?={CJK})"
    rf"|(?:(?<={CJK}．)|(?<=[。！？｡；؟।॥۔։።။។]))[。！？!?…]*{CLOSERS_CJK})"
)
# What follows: spaces, openers and dashes to skip, a word, one character more.
NEXT = re.compile(rf"[\s{re.escape(OPENERS)}—–-]*((?:\w[\w'’]*)?)(\S?)")
NO_START = frozenset(".,;:!?…&/%)]=+<>|，、；：）》〉")  # no sentence starts with these


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end: a name, or an explanation, follows.
BEFORE_NAMES = words("""
    Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Rev Revd Hon Gen Brig Maj Col Lt Capt Cmdr Cdr Cpt Sgt Cpl
    Pvt Adm Gov Sen Rep Reps Sens Pres Supt Insp Msgr Mt Ft Fr Ste Dra Sra Srta Dott Sig Hr Frl Gebr
    mr mrs ms dr prof e.g i.e E.g I.e eg ie cf Cf viz vs v ca approx esp incl resp bzw z.B d.h u.a
    p.ex p.ej им ул проф акад св см рис т.е т.н
""")
# The end, unless a number or what numbers like one follows: No. 5, vol. III, Fig. A, Jan. 5.
BEFORE_NUMBERS = words("""
    No Nos no nos Nr Fig Figs fig figs p pp Vol Vols vol vols Ch Chap ch chap Sec sec Art art Arts
    arts Eq Eqs eq eqs Op op Pt pt Bk bk Ex ex n par para lb lbs oz ft tbsp tsp Jan Feb Mar Apr Jun
    Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri
""")
# The end only before a word that is seldom written with a capital inside a sentence.
OFTEN_INSIDE = words("""
    Inc Co Corp Ltd Bros Cie Jr Sr al St st Ave Blvd Rd Dept Univ Assn Mass Conn Phila Calif Pa Va
    Fla Mich Tenn Minn Wis ed eds trans est Hrsg Aufl Str
""")
STARTERS = words("""
    A After All Also Although An And Another Any As At Because Before Between Both But By Despite
    Did Do Does During Each Even Every Few For From Had Has Have He Her Here His How However I If In
    Is It Its Later Like Many More Most Much My Neither No Nobody Not Nothing Now On Once One Only
    Or Other Others Our Over She Since So Some Still Such That The Their Then There Therefore These
    They This Those Though Three Through Thus To Today Two Under Unlike Until Was We Were What When
    Where Whether Which While Who Why Will With Within Without Yet You Your Er Es Das Sie Il Elle
    Ils Он Она Они Оно Это
""")
AFTER_TIMES = words("""
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar
    Apr May Jun Jul Aug Sep Oct Nov Dec January February March April June July August September
    October November December GMT UTC EST EDT CST CDT MST MDT PST PDT BST CET Eastern Pacific
""")
# German writes ordinals with a point: am 3. Oktober.
ORDINAL_NOUNS = words("""
    Januar Februar März April Mai Juni Juli August September Oktober November Dezember Jahrhundert
    Jahrhunderts Jahrtausend Jh Auflage Klasse Geburtstag
""")
LONGEST_WORD = 40  # looked at; there are no longer abbreviations
NAME, NUMBER, INSIDE = range(3)
ABBREVIATIONS = {
    word: kind
    for kind, listed in enumerate((BEFORE_NAMES, BEFORE_NUMBERS, OFTEN_INSIDE))
    for word in listed
}
ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, Ph.D
NUMBERING = re.compile(r"[0-9]{1,3}|[^\W\d_]|[IVXLC]{1,6}")  # of a list: 1. a. IV.
NUMBERED = re.compile(r"[0-9].*|[A-Z]|[IVXLC]+")
LIST_ITEM = re.compile(r"\s+(?:[a-z]\.|\([a-z]+\)|[a-z]\))\s+[^\W\d_a-z]")
SEPARATE = re.compile(rf"{CJK}|[，。、；：（“「]")  # a Latin word may stand right behind these
SPEAKS = (
    r"(?:said|says|asked|asks|replied|cried|shouted|whispered|answered|exclaimed|called|added|"
    r"muttered|screamed|yelled|demanded|thought|continued|murmured|inquired|wrote)\b"
)
SPEAKER = re.compile(rf"\s+(?:[A-Z][\w.'’-]*\s+){{1,3}}{SPEAKS}")
SPEAKER_CJK = re.compile(
    r"と|って|(?![没沒无無])[^。！？；…，、：“「]{0,10}?"
    r"(?:说|說|(?<![知难難])道|问|問|喊|叫|答)(?:道|着|著|了|过|過|他|她|我|你)*(?:[。，！]|$)"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    >>> split_sentences('Dr. No came at 3 p.m. "Stop!" he said. 他走了。我没有。')
    ['Dr. No came at 3 p.m.', '"Stop!" he said.', '他走了。', '我没有。']
    """
    return [sentence for line in text.splitlines() for sentence in _split_line(line)]


def _split_line(line: str) -> Iterator[str]:
    start = 0
    for match in CANDIDATE.finditer(line):
        if _is_end(line, start, match):
            end = match.end()
            yield line[start:end].strip()
            start = end
    if rest := line[start:].strip():
        yield rest


def _is_end(line: str, start: int, match: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` ends with the marks that matched."""
    mark_at, end = match.span()
    following = NEXT.match(line, end)
    assert following is not None  # it matches anything
    word, other = following.groups()
    if not word and (not other or other in NO_START):
        return False
    mark, last = line[mark_at], line[end - 1]
    if mark not in ".!?…‽" or not line[end].isspace():
        return _is_end_without_space(line, start, match)
    is_small = word.islower() and word[0].islower()  # neither "eBay" nor "3rd"
    if is_small and not _has_no_capitals(line, mark_at) and not LIST_ITEM.match(line, end):
        return False
    if mark == "…" or line[mark_at : mark_at + 2] == "..":
        return word.split("'")[0] != "I"
    if mark == ".":
        return _is_full_stop(line, start, match, word, other)
    return last not in QUOTES or not SPEAKER.match(line, end)


def _is_full_stop(line: str, start: int, match: re.Match[str], word: str, other: str) -> bool:
    """Whether a point ends the sentence or only an abbreviation; `word`, `other` follow it."""
    mark_at, end = match.span()
    before_at = line.rfind(" ", max(start, mark_at - LONGEST_WORD), mark_at) + 1 or start
    before = line[max(before_at, mark_at - LONGEST_WORD) : mark_at].lstrip(OPENERS)
    if not before.isascii():
        before = SEPARATE.split(before)[-1]
    kind = ABBREVIATIONS.get(before)
    if kind is None and len(before) > 3 and before.isalpha():
        return True  # most of them
    if kind == NAME or (before.isupper() and ABBREVIATIONS.get(before.capitalize()) == NAME):
        return False
    if kind == NUMBER:
        is_pronoun = word in "IA" and not other and (before.islower() or before == "No")
        return is_pronoun or not NUMBERED.fullmatch(word)
    if before_at - start < 3 and NUMBERING.fullmatch(before):
        return False  # the number of a list's item, not the end of it
    is_initial = len(word) == 1 and other == "."
    starts = word.capitalize() in STARTERS and not is_initial
    if len(before) == 1 and before.isalpha():
        is_name = (
            before.isupper() or is_initial or word.isdigit() or _has_no_capitals(line, mark_at)
        )
        return starts or not is_name or (before == "I" and not is_initial)
    if before.lower() in ("a.m", "p.m"):
        return word not in AFTER_TIMES
    if kind == INSIDE or ACRONYM.fullmatch(before):
        return starts or line[end - 1] in QUOTES
    return not (before.isdigit() and word in ORDINAL_NOUNS)


def _has_no_capitals(line: str, place: int) -> bool:
    """Whether the text around is written in small letters only, as some corpora are."""
    return line[max(0, place - 300) : place + 300].islower()


def _is_end_without_space(line: str, start: int, match: re.Match[str]) -> bool:
    """The same where marks need no space after them, or can mean nothing else."""
    mark_at, end = match.span()
    mark, last, after = line[mark_at], line[end - 1], line[end]
    if after in NO_START or after in "—–":
        return False
    if mark == "…":  # a stutter, or a word that is sought
        said = line[max(start, mark_at - 9) : mark_at].strip().lstrip(OPENERS)
        return len(said) > 2 and said[-1] != after
    if mark == "；":
        near = max(start, mark_at - 200)
        if line.rfind("（", near, mark_at) > line.rfind("）", near, mark_at):
            return False
    return last not in QUOTES or not SPEAKER_CJK.match(line, end)
