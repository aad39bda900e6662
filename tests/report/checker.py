"""Reads a page back: is it well formed, does it hold only what we put there?"""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta"}
# What is shown as U+FFFD: all that may not stand in a file of XML or HTML.
FORBIDDEN_SHOWN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)
TAGS = """html head meta title style body h1 h2 p pre div table thead tbody tr th td figure
    figcaption svg text polyline rect circle g path a b span details summary"""
ATTRIBUTES = """lang charset name content http-equiv class role aria-label viewbox width height x y
    cx cy r points text-anchor transform fill-opacity fill xmlns
    href id d stroke font-size shape-rendering"""


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.num_tags = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS.split(), f"<{tag}> does not belong here"
        for name, value in attrs:
            assert name in ATTRIBUTES.split(), f"{name}={value} does not belong in <{tag}>"
            assert name != "href" or str(value).startswith("#"), f"{value} lies outside the page"
        self.num_tags += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def check_page(page: str) -> Checker:
    """Raises if the page is not well formed or asks for anything from outside."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open, f"never closed: {checker.open}"
    assert page.startswith("<!DOCTYPE html>")
    for style in re.findall(r"<style>.*?</style>", page, re.DOTALL):
        assert "url(" not in style and "@import" not in style
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        check_svg(svg)
    return checker


def check_svg(svg: str) -> ElementTree.Element:
    """Well formed XML, with numbers where numbers belong."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for name in ("x", "y", "cx", "cy", "r", "width", "height"):
            value = element.get(name, "0")
            assert value == "100%" or abs(float(value)) < 1e5, f"{name}={value}"
        for pair in element.get("points", "").split():
            assert all(abs(float(number)) < 1e5 for number in pair.split(",")), pair
    return root


HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><h1>gone</h1>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "&lt;b&gt; & &amp;",
    "]]></style><style>*{display:none}</style>",
    "<!-- ",
    "\x00\x07\x1b[31m\ud800\ufffe",
    "שלום \u202eevil\u202c 你好 🙂",
    "",
    "a" * 3000,
    "{brace} %s $x `tick`",
]
