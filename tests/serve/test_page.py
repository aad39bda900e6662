"""The page in a real browser: every panel, errors, both languages, a phone, a keyboard, a key."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.infer.models import make_directory
from tests.serve.browser import PHONE, Browser, browsing
from tests.serve.servers import Server, make_chinese, named, serving

pytestmark = pytest.mark.browser
ENGLISH = ["Fill masks", "Similarity", "Attention"]
CHINESE = ["填空", "相似度", "注意力"]


@pytest.fixture(scope="module")
def desk() -> Iterator[Browser]:
    with browsing() as opened:
        yield opened


@pytest.fixture
def browser(desk: Browser, server: Server) -> Iterator[Browser]:
    desk.open(server.address)
    yield desk
    assert desk.complaints() == []


def go(browser: Browser, model: str, verb: str) -> None:
    browser.choose("#model", model)
    browser.tab(verb)


def asked(browser: Browser, server: Server, model: str, verb: str) -> Any:
    """What the server answers to what the page shows as its own request."""
    body = json.loads(shlex.split(browser.find("#call-curl").text)[-1])
    return server.post(f"/v1/{model}/{verb}", body).json


def test_masks_are_filled_with_bars(browser: Browser, server: Server) -> None:
    go(browser, "masks", "fill")
    browser.write("text", "Paris is the ")
    browser.find("#add-mask").click()
    browser.find("#field-text").send_keys(" of [MASK].")
    browser.ask(".bars")
    answer = asked(browser, server, "masks", "fill")
    assert browser.texts("caption") == ["Mask 1", "Mask 2"]
    pieces = [guess["piece"] for mask in answer["masks"] for guess in mask]
    assert browser.texts(".bars th") == pieces
    assert browser.find("#result .passage").text == answer["best"]
    widths = [bar.size["width"] for bar in browser.driver.find_elements(By.CLASS_NAME, "bar")[:5]]
    assert widths == sorted(widths, reverse=True)


def test_classes_have_bars_the_best_first(browser: Browser, server: Server) -> None:
    go(browser, "mood", "classify")
    browser.ask(".bars")
    answer = asked(browser, server, "mood", "classify")
    assert browser.find("#result h2").text == f"label: {answer['label']}"
    assert browser.texts(".bars th")[0] == answer["label"]
    assert browser.texts(".bars .number") == sorted(browser.texts(".bars .number"), reverse=True)


def test_pairs_labels_and_numbers_are_classified_too(browser: Browser, server: Server) -> None:
    go(browser, "pairs", "classify")
    browser.ask(".bars")
    assert '"pairs":["A man is eating lunch."' in browser.find("#call-curl").text
    go(browser, "topics", "classify")
    browser.ask(".bars")
    assert '"texts":' in browser.find("#call-curl").text
    browser.write("second", "another")
    browser.ask(".bars")
    assert '"pairs":' in browser.find("#call-curl").text
    go(browser, "stars", "classify")
    browser.ask(".passage")
    number = asked(browser, server, "stars", "classify")["label"]
    assert browser.find("#result .passage").text == f"{number:.3f}"


def test_names_are_marked_in_the_text(browser: Browser, server: Server) -> None:
    go(browser, "names", "tag")
    text = "The largest city of 中文 is Sydney; Paris is the capital of France"
    browser.write("text", text)
    browser.driver.execute_script(  # the driver cannot type what lies beyond 16 bits
        "const area = document.getElementById('field-text'); area.value = '😀 ' + area.value;"
        "area.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    browser.ask("#result .passage")
    answer = asked(browser, server, "names", "tag")
    assert answer["spans"], "choose a text in which the model finds something"
    assert browser.texts("#result mark") == [f"{s['text']}{s['label']}" for s in answer["spans"]]
    marked = browser.find("#result .passage").text
    for span in answer["spans"]:
        marked = marked.replace(f"{span['text']}{span['label']}", span["text"], 1)
    assert marked == f"😀 {text}"


def test_an_answer_is_marked_in_its_passage(browser: Browser, server: Server) -> None:
    go(browser, "reader", "answer")
    seen = set()
    for context in ("Paris is the capital of France.", "Canberra", "a", "the seat of its city"):
        browser.write("question", "Which city?")
        browser.write("context", context)
        browser.ask(".bars")
        answer = asked(browser, server, "reader", "answer")
        seen.add(bool(answer["text"]))
        assert browser.texts("#result mark") == ([answer["text"]] if answer["text"] else [])
        title = answer["text"] or "The passage has no answer"
        assert browser.find("#result h2").text == title
    assert seen == {True, False}


def test_choices_are_ranked(browser: Browser, server: Server) -> None:
    go(browser, "quiz", "choose")
    browser.ask(".bars")
    answer = asked(browser, server, "quiz", "choose")
    assert browser.texts(".bars th")[0] == answer["option"]
    assert len(browser.texts(".bars th")) == 3


def test_similarity_is_a_map_of_all_lines(browser: Browser, server: Server) -> None:
    go(browser, "masks", "similarity")
    browser.ask(".heat")
    matrix = asked(browser, server, "masks", "similarity")
    cells = browser.texts(".heat tbody td")
    assert cells == [f"{value:.2f}" for row in matrix for value in row]


def test_attention_is_shown_by_layer_and_head_for_the_piece_one_points_at(
    browser: Browser, server: Server
) -> None:
    go(browser, "masks", "attention")
    browser.ask(".pieces")
    answer = asked(browser, server, "masks", "attention")
    assert browser.texts(".pieces button") == answer["tokens"]
    told = "#result [role=status]"
    browser.driver.find_elements(By.CSS_SELECTOR, ".pieces button")[1].click()
    first = browser.find(told).text
    assert first.startswith(f"{answer['tokens'][1]} looks at: ")
    browser.choose("#head", "1")
    assert browser.find(told).text.startswith(look(answer, head=1, piece=1)), "it stays chosen"
    browser.choose("#field-layer", "1")
    lower = asked(browser, server, "masks", "attention")
    assert lower["layer"] == 1
    browser.wait_for(told, look(lower, head=1, piece=1))
    assert browser.find("#head").get_attribute("value") == "1", "and so does the head"
    assert browser.texts(".pieces [aria-pressed=true]") == [answer["tokens"][1]]
    browser.write("text", "Paris is another")
    browser.find("#run").click()
    browser.wait_for(told, "Point at a piece, or step to it: the others show how much it looks at")
    assert browser.find("#head").get_attribute("value") == "1"


def look(answer: dict[str, Any], *, head: int, piece: int) -> str:
    """How the page tells where a piece looks most, by the beginning."""
    tokens, row = answer["tokens"], answer["heads"][head][piece]
    return f"{tokens[piece]} looks at: {tokens[row.index(max(row))]} "


def test_errors_are_words_and_go_away(browser: Browser) -> None:
    go(browser, "masks", "fill")
    browser.write("text", "no hole in it")
    browser.ask("#trouble")
    sentence, detail = browser.texts("#trouble p")
    assert sentence == "This cannot be asked so."
    assert detail.startswith("no [MASK] in 'no hole in it'; write [MASK]")
    browser.choose("#language", "zh")
    browser.write("text", "没有空")
    browser.ask("#trouble")
    sentence, detail = browser.texts("#trouble p")
    assert sentence == "不能这样提问。" and detail.startswith("no [MASK]")
    assert browser.find("#trouble .detail").get_attribute("lang") == "en"
    browser.write("text", "中 [MASK]")
    browser.ask(".bars")
    assert browser.find("#trouble").text == ""
    browser.choose("#language", "en")


def test_blank_lines_are_nothing_to_ask_about(browser: Browser) -> None:
    go(browser, "masks", "similarity")
    browser.ask(".heat")
    browser.write("texts", "\n  \n")
    browser.ask("#trouble")
    told = "Write something into the field “Texts, one a line” first."
    assert browser.find("#trouble").text == told
    assert browser.texts("#result > *") == [], "no map of nothing"
    assert browser.driver.switch_to.active_element.get_attribute("id") == "field-texts"


def test_a_call_can_be_copied_where_there_is_no_clipboard(browser: Browser) -> None:
    """As there is none on plain http from another machine."""
    go(browser, "mood", "classify")
    shell = browser.find("#call-curl").text
    script = "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
    browser.driver.execute_script(f"{script} window.copied = [];")
    browser.driver.execute_script(
        "addEventListener('copy', () => copied.push(String(getSelection())))"
    )
    browser.find("#calls button").click()
    browser.wait_for("#calls button", "Copied")
    assert browser.driver.execute_script("return copied") == [shell]
    browser.driver.execute_script("document.execCommand = () => false; getSelection().empty()")
    browser.find("#calls button").click()
    browser.wait_for("#calls button", "Selected: press Ctrl+C")
    assert browser.driver.execute_script("return String(getSelection())") == shell
    label = browser.find("#calls button").get_attribute("aria-label")
    assert label == "Selected: press Ctrl+C: curl"


HOLD = """
window.held = [];
window.fetch = (path, how) => new Promise((resolve) => window.held.push(resolve));
"""
ANSWER = """
const [number, status, text] = arguments;
window.held[number](new Response(text, { status }));
"""


def test_an_answer_that_comes_late_is_for_nobody(browser: Browser) -> None:
    go(browser, "mood", "classify")
    browser.driver.execute_script(HOLD)
    for _ in range(2):
        browser.find("#run").click()
    good, bad = (json.dumps({"label": one, "scores": {one: 1}}) for one in ("good", "bad"))
    browser.driver.execute_script(ANSWER, 1, 200, good)
    browser.wait(".bars")
    browser.driver.execute_script(ANSWER, 0, 200, bad)
    browser.driver.execute_async_script("setTimeout(arguments[0], 100)")
    assert browser.texts(".bars th") == ["good"], "the latest question is the one that counts"
    browser.find("#run").click()
    browser.tab("similarity")
    browser.driver.execute_script(ANSWER, 2, 422, '{"error": {"message": "late"}}')
    browser.driver.execute_async_script("setTimeout(arguments[0], 100)")
    assert browser.find("#trouble").text == ""


def test_an_error_in_another_form_is_told_by_its_status(browser: Browser) -> None:
    """As a proxy may send it."""
    go(browser, "mood", "classify")
    browser.driver.execute_script(HOLD)
    for number, text in enumerate(('{"detail": "x"}', "null", "<html>")):
        browser.find("#run").click()
        browser.driver.execute_script(ANSWER, number, 503, text)
        browser.wait("#trouble")
        assert browser.find("#trouble").text == "The server is stopping."
    browser.find("#run").click()
    browser.driver.execute_script(ANSWER, 3, 418, "<html>")
    browser.wait_for("#trouble", "The request failed.")


def test_both_languages(browser: Browser) -> None:
    browser.choose("#model", "masks")
    assert browser.texts("[role=tab]") == ENGLISH
    browser.choose("#language", "zh")
    assert browser.texts("[role=tab]") == CHINESE
    assert browser.find("html").get_attribute("lang") == "zh"
    browser.ask(".bars")
    browser.driver.refresh()
    browser.wait("[role=tab]")
    assert browser.texts("[role=tab]") == CHINESE, "the choice is remembered"
    browser.choose("#language", "en")


def test_an_unknown_language_that_was_stored_is_none(desk: Browser, server: Server) -> None:
    for stored in ("fr", "toString", ""):
        desk.open(server.address)
        desk.driver.execute_script("localStorage.setItem('bertie-language', arguments[0])", stored)
        desk.open(server.address)
        assert desk.texts("[role=tab]") == ENGLISH
        assert desk.find("html").get_attribute("lang") == "en"
    desk.driver.execute_script("localStorage.clear()")
    assert desk.complaints() == []


def test_a_browser_that_keeps_nothing_shows_the_page(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Where cookies are blocked, the very name of a storage throws."""
    key = "0123456789abcdef中é"
    (tmp_path / "keys.txt").write_text(key, "utf-8")
    arguments = (*named(models, ["masks"]), "--api-key-file", str(tmp_path / "keys.txt"))
    with serving(*arguments) as locked, browsing(has_cookies=False) as browser:
        browser.driver.get(locked.address)
        browser.wait("#key-form label")
        browser.find("#key").send_keys(f"{key}\n")  # which has letters beyond Latin-1, too
        browser.wait("[role=tab]")
        browser.ask(".bars")
        browser.choose("#language", "zh")
        assert browser.texts("[role=tab]") == CHINESE
        assert browser.complaints() == []


def test_a_model_is_asked_in_the_language_that_it_reads(desk: Browser, tmp_path: Path) -> None:
    """Whatever language the page is in."""
    english, chinese = make_directory(tmp_path / "en"), make_chinese(tmp_path / "zh")
    with serving(f"en={english}", f"zh={chinese}") as server:
        desk.open(server.address)
        for language, label in (("en", "Text"), ("zh", "文本"), ("en", "Text")):
            desk.choose("#language", language)
            for model, begin in (("en", "Paris is"), ("zh", "巴黎是")):
                desk.choose("#model", model)
                assert desk.find("#field-text").get_attribute("value").startswith(begin)
                assert desk.find("label[for=field-text]").text == label
    assert desk.complaints() == []


def test_a_keyboard_is_enough(browser: Browser) -> None:
    go(browser, "mood", "classify")
    tab = browser.find("#tab-classify")
    tab.send_keys(Keys.ARROW_RIGHT)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "tab-similarity"
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    browser.find("#field-text").send_keys(" More.", Keys.CONTROL, Keys.ENTER)
    browser.wait(".bars")


def test_whoever_does_not_see_hears_what_things_are(browser: Browser) -> None:
    for model, verb in (("mood", "classify"), ("quiz", "choose"), ("masks", "attention")):
        go(browser, model, verb)
        browser.ask("#result > *")
        script = (
            "return [...document.querySelectorAll('input, select, textarea, button')]"
            ".filter((one) => one.offsetParent && !(one.labels?.length || one.textContent.trim()))"
            ".length"
        )
        assert browser.driver.execute_script(script) == 0, "a control without a name"
        panel = browser.find("#panel")
        assert panel.get_attribute("aria-labelledby") == f"tab-{verb}"
        assert browser.find("main #panel").get_attribute("role") == "tabpanel"
        levels = "return [...document.querySelectorAll('h1,h2,h3,h4')].map((one) => one.tagName[1])"
        found = [int(level) for level in browser.driver.execute_script(levels)]
        assert all(after <= before + 1 for before, after in pairwise(found)), "a level is left out"
    assert browser.find("#result").get_attribute("aria-live") == "polite"
    assert browser.find("#trouble").get_attribute("role") == "alert"


@pytest.mark.parametrize("is_dark", [False, True])
def test_a_phone_is_wide_enough(server: Server, is_dark: bool) -> None:
    with browsing(PHONE, is_dark=is_dark) as phone:
        phone.open(server.address)
        for model, verb in (
            *(("masks", verb) for verb in ("fill", "similarity", "attention")),
            ("mood", "classify"),
            ("names", "tag"),
            ("reader", "answer"),
            ("quiz", "choose"),
        ):
            go(phone, model, verb)
            phone.ask("#result > *")
            needed, there = phone.width()
            assert needed <= there, f"{verb} must be scrolled sideways"
        paper = phone.find("body").value_of_css_property("background-color")
        assert (paper == "rgba(20, 24, 29, 1)") == is_dark
        assert phone.complaints() == []


def test_long_names_and_many_lines_fit_a_phone(models: dict[str, Path]) -> None:
    name = "a" * 64
    with serving(f"{name}={models['masks']}") as server, browsing((390, 800)) as phone:
        phone.open(server.address)
        needed, there = phone.width()
        assert needed <= there, "a name must not make the page wider"
        label = phone.find("label[for=model]")
        assert label.size["height"] < 30 < label.size["width"], "a word on one line"
        phone.tab("similarity")
        lines = [f"the {n}th line is about extraordinary government" for n in range(12)]
        phone.write("texts", "\n".join(lines))
        phone.ask(".heat")
        needed, there = phone.width()
        assert needed <= there, "only the map is scrolled"
        row = phone.find(".heat tbody th")
        assert row.size["width"] > 120 and row.size["height"] < 110, "words stay whole"
        phone.driver.execute_script("document.querySelector('.wide').scrollLeft = 300")
        assert 0 <= row.rect["x"] < 30, "a row keeps its name in sight"
        phone.driver.get(f"{server.address}/docs")
        phone.wait(".path")
        needed, there = phone.width()
        assert needed <= there
        names = phone.driver.find_elements(By.CSS_SELECTOR, ".path td code")
        assert names and all(one.size["height"] < 25 for one in names), "a name on one line"


def test_the_calls_that_are_shown_do_the_same(browser: Browser) -> None:
    go(browser, "masks", "fill")
    browser.write("text", 'It\'s "the" [MASK] \\ of $HOME `x`')
    browser.ask(".bars")
    best = browser.find("#result .passage").text
    shell = browser.find("#call-curl").text
    by_curl = subprocess.run(["bash", "-c", f"{shell} -s"], capture_output=True, check=True)
    program = browser.find("#call-python").text
    by_python = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(by_curl.stdout)["best"] == best
    assert repr(best)[1:-1] in by_python.stdout.decode() or best in by_python.stdout.decode()


def test_a_key_is_asked_for_where_one_is_needed(
    desk: Browser, models: dict[str, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("a-key-that-opens-it", "utf-8")
    with serving(*named(models, ["mood"]), "--api-key-file", str(keys)) as locked:
        desk.driver.get(locked.address)
        desk.wait("#trouble")
        told = "An API key is needed: write it into the field above."
        assert desk.find("#trouble").text == told
        assert desk.driver.switch_to.active_element.get_attribute("id") == "key"
        for language, begin in (("zh", "需要 API 密钥"), ("en", "An API key")):
            desk.choose("#language", language)
            desk.wait_for("#trouble", begin)
        desk.find("#key").send_keys("a-key-of-another-door", Keys.ENTER)
        desk.wait_for("#trouble", "This API key is not known here: write another one into the fie")
        desk.find("#key").clear()
        desk.find("#key").send_keys("a-key-that-opens-it", Keys.ENTER)
        desk.wait("[role=tab]")
        desk.ask(".bars")
        assert "Bearer $BERTIE_KEY" in desk.find("#call-curl").text
        locked.stop()
        desk.ask("#trouble")
        assert desk.find("#trouble").text == "The server cannot be reached. Is it still running?"
    desk.driver.get_log("browser")


def test_what_can_be_asked_is_there_to_read(desk: Browser, server: Server) -> None:
    desk.driver.get(f"{server.address}/docs")
    desk.wait(".path")
    titles = desk.texts(".path h3")
    assert "POST /v1/{model}/classify" in titles and "POST /v1/embeddings" in titles
    assert desk.complaints() == []
