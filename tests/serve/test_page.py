"""The page in a real browser: every panel, errors, both languages, a phone, a keyboard, a key."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.serve.browser import PHONE, Browser, browsing
from tests.serve.servers import Server, named, serving

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


def asked(browser: Browser, server: Server, model: str, verb: str) -> object:
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
    assert browser.find("#result h3").text == f"label: {answer['label']}"
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
        assert browser.find("#result h3").text == title
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
    browser.driver.find_elements(By.CSS_SELECTOR, ".pieces button")[1].click()
    row = answer["heads"][1][1]
    assert f"{answer['tokens'][row.index(max(row))]} " in browser.find(told).text
    browser.choose("#field-layer", "1")
    browser.wait(".pieces")
    assert '"layer":1' in browser.find("#call-curl").text


def test_errors_are_words_and_go_away(browser: Browser) -> None:
    go(browser, "masks", "fill")
    browser.write("text", "no hole in it")
    browser.ask("#trouble")
    trouble = browser.find("#trouble").text
    assert trouble.startswith("This cannot be asked so. no [MASK] in 'no hole in it'; write [MASK]")
    browser.choose("#language", "zh")
    browser.write("text", "没有空")
    browser.ask("#trouble")
    assert browser.find("#trouble").text.startswith("不能这样提问。 no [MASK]")
    browser.write("text", "中 [MASK]")
    browser.ask(".bars")
    assert browser.find("#trouble").text == ""
    browser.choose("#language", "en")


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
        assert desk.find("#trouble").text.startswith("An API key is needed.")
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
