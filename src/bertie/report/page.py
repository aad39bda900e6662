"""An HTML page from blocks. Every text is escaped on its way in; markup is a type of its own."""

import html
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NewType

from bertie.errors import UserError

Markup = NewType("Markup", str)  # made here or in plots.py, safe to put on a page

# What neither HTML nor XML may hold, though a text may: controls, surrogates, non-characters.
REPORT, REPORT_JSON = "report.html", "report.json"
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5b6570; --line: #d9dee3;
  --shade: #f4f6f8; --warn: #9a3b00; --warn-shade: #fff3e6; --c0: #1f6fd1; --c1: #c9541a;
  --c2: #1d8348; --c3: #8a3fc4; --c4: #96700a; --c5: #0c7f86; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e6eaee; --soft: #9aa6b2; --line: #333b44; --shade: #1c2228;
    --warn: #ffb27a; --warn-shade: #33230f; --c0: #6aa9ff; --c1: #ff9a5c; --c2: #5fd08a;
    --c3: #c79bff; --c4: #e0bb45; --c5: #4fd0d0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line);
  padding-bottom: .2rem; }
p { margin: .4rem 0; max-width: 46rem; }
.headline { font-size: 1.15rem; }
p.soft, figcaption { color: var(--soft); font-size: .9rem; }
.warning { background: var(--warn-shade); color: var(--warn); border-left: 4px solid var(--warn);
  padding: .5rem .8rem; max-width: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .4rem 0; }
th, td { text-align: left; vertical-align: top; padding: .28rem .9rem .28rem 0;
  border-bottom: 1px solid var(--line); unicode-bidi: isolate; }
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
table { overflow-wrap: break-word; }
td.text { min-width: 14rem; white-space: pre-wrap; }
pre { background: var(--shade); padding: .6rem .8rem; overflow-x: auto; font-size: .85rem;
  white-space: pre-wrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem 2rem; }
figure { margin: .5rem 0; min-width: 0; max-width: 34rem; break-inside: avoid; }
figure svg { width: 100%; height: auto; display: block; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } tr { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; } h2 { break-after: avoid; } }
"""


def escape(text: str) -> Markup:
    """The text as it is, harmless in HTML and in SVG, between tags and in attributes."""
    return Markup(html.escape(FORBIDDEN.sub("\ufffd", text)))


def heading(text: str) -> Markup:
    return Markup(f"<h2>{escape(text)}</h2>")


def paragraph(text: str, kind: str = "") -> Markup:
    """`kind` is "", "headline", "soft" or "warning"."""
    return Markup(
        f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
    )


def code(text: str) -> Markup:
    return Markup(f"<pre>{escape(text)}</pre>")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> Markup:
    """Columns named in `numbers` are set to the right, those in `texts` keep their new lines."""
    kinds = dict.fromkeys(texts, "text") | dict.fromkeys(numbers, "number")
    classes = [f' class="{kinds[name]}"' if name in kinds else "" for name in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        pairs = zip(cells, classes, strict=True)
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in pairs)

    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    head = f"<thead><tr>{line(columns, 'th')}</tr></thead>"
    return Markup(f'<div class="wide"><table>{head}\n<tbody>{body}</tbody></table></div>')


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same as text, numbers to the right; the first column names the rows."""
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def figure(plot: Markup, caption: str = "") -> Markup:
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{plot}{note}</figure>")


def figures(parts: Iterable[Markup]) -> Markup:
    """Side by side where there is room."""
    return Markup(f'<div class="figures">{"".join(parts)}</div>')


def page(title: str, blocks: Iterable[Markup], *, style: str = "") -> str:
    """The whole file; `style` is what the page needs beyond the usual."""
    body = "\n".join([Markup(f"<h1>{escape(title)}</h1>"), *blocks])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing from outside, whatever a text on the page should turn out to be.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def write_whole(path: Path, text: str) -> Path:
    """Writes a draft and renames it: whoever reads sees the old file or the new one."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
