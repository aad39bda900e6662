"""Parts of labelled files: questions by the titles they are about, and fewer rows.

    python benchmarks/splits.py dev-v1.1.json OUT     # OUT/train.json, OUT/dev.json, OUT/test.json

Where a set of questions is one file, its titles, sorted, are counted from 0: number % 5 == 4 is
test, == 3 is dev, the rest train.
"""

import json
import sys
from pathlib import Path
from typing import Any

PARTS = ("train", "train", "train", "dev", "test")


def split_titles(path: Path, out: Path) -> None:
    """Three files in SQuAD's layout, of a file in it."""
    tree = json.loads(path.read_text(encoding="utf-8"))
    titles = sorted({article["title"] for article in tree["data"]})
    part_of = {title: PARTS[number % len(PARTS)] for number, title in enumerate(titles)}
    out.mkdir(parents=True, exist_ok=True)
    for part in dict.fromkeys(PARTS):
        articles = [article for article in tree["data"] if part_of[article["title"]] == part]
        write_json(out / f"{part}.json", tree | {"data": articles})


def read_column(path: Path, name: str) -> list[str]:
    """A column of a table with tabs and a header, as GLUE has them."""
    header, *rows = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    place = header.split("\t").index(name)
    return [row.split("\t")[place] for row in rows]


def take_rows(path: Path, num_rows: int, out: Path) -> Path:
    """A copy with at most so many rows, sentences or questions, in a folder of the same name."""
    copy = out / path.parent.name / path.name  # the folder tells GLUE's sets apart
    copy.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        write_json(copy, take_questions(json.loads(text), num_rows))
    elif path.suffix in (".tsv", ".jsonl") or "\t" in text.split("\n", 1)[0]:
        first, *lines = text.removesuffix("\n").split("\n")  # the first may be a header
        copy.write_text("\n".join([first, *spaced(lines, num_rows - 1)]) + "\n", "utf-8")
    else:  # sentences of words; those that follow each other, as they may be a document
        copy.write_text("\n\n".join(text.split("\n\n")[:num_rows]) + "\n", "utf-8")
    return copy


def spaced(lines: list[str], count: int) -> list[str]:
    """So many of the lines, evenly spaced: sets are often ordered by source."""
    if len(lines) <= count:
        return lines
    return [lines[number * len(lines) // count] for number in range(count)]


def take_questions(tree: dict[str, Any], count: int) -> dict[str, Any]:
    """The first paragraphs, one of each article, up to so many questions."""
    articles, num_questions = [], 0
    for article in tree["data"]:
        if num_questions < count:
            articles.append(article | {"paragraphs": article["paragraphs"][:1]})
            num_questions += len(article["paragraphs"][0]["qas"])
    return tree | {"data": articles}


def write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    split_titles(Path(sys.argv[1]), Path(sys.argv[2]))
