"""Sentences and Chinese words, one core: bertie beside the peers that are installed, same text.

    pip install blingfire jieba pysbd sentencex spacy syntok
    python benchmarks/sentences.py en.jsonl.xz zh.jsonl.xz

Right: cases of tests/text/sentence_cases.py with every sentence as expected. Peers get one line at
a time, since bertie ends a sentence with each line, and the language where they ask for it.
"""

import argparse
import logging
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machine
from bertie.data.corpus import read_documents
from bertie.text.chinese import Segmenter
from bertie.text.sentences import split_sentences

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.text.sentence_cases import ENGLISH, ENGLISH_LATER, OTHER, OTHER_LATER, parse

ENGLISH_CASES, OTHER_CASES = ENGLISH + ENGLISH_LATER, OTHER + OTHER_LATER

Split = Callable[[str, str], list[str]]  # a line, its language -> sentences
SCRIPTS = {
    "ja": "[ぁ-ヿ]",
    "zh": "[一-鿿]",
    "ru": "[а-я]",
    "el": "[α-ω]",
    "hi": "[ऀ-ॿ]",
    "ur": "۔",
    "ar": "[؀-ۿ]",
    "hy": "[ա-ֆ]",
    "he": "[א-ת]",
    "ko": "[가-힣]",
    "es": "[¿¡íó]",
    "fr": "[éêèç«]",
    "de": "[üßöä„]|Oktober",
}


def language_of(text: str) -> str:
    return next((name for name, letters in SCRIPTS.items() if re.search(letters, text)), "en")


def bertie() -> Split:
    return lambda line, language: split_sentences(line)


def blingfire() -> Split:
    from blingfire import text_to_sentences

    return lambda line, language: text_to_sentences(line).split("\n")


def pysbd() -> Split:
    from pysbd import Segmenter as Peer
    from pysbd.languages import LANGUAGE_CODES

    peers = {code: Peer(language=code, clean=False) for code in LANGUAGE_CODES}
    return lambda line, language: peers.get(language, peers["en"]).segment(line)


def sentencex() -> Split:
    from sentencex import segment

    return lambda line, language: list(segment(language, line))


def spacy_sentencizer() -> Split:
    import spacy

    peer = spacy.blank("xx")
    peer.add_pipe("sentencizer")
    return lambda line, language: [sentence.text for sentence in peer(line).sents]


def syntok() -> Split:
    from syntok.segmenter import process

    def split(line: str, language: str) -> list[str]:
        sentences = (sentence for paragraph in process(line) for sentence in paragraph)
        return ["".join(f"{t.spacing}{t.value}" for t in sentence) for sentence in sentences]

    return split


WAYS = (bertie, blingfire, pysbd, sentencex, spacy_sentencizer, syntok)


def num_right(split: Split, cases: str) -> int:
    return sum(
        [sentence.strip() for sentence in split(text, language_of(text)) if sentence.strip()]
        == expected
        for text, expected in parse(cases)
    )


def megabytes_per_s(work: Callable[[str], Any], lines: list[str], limit_s: float) -> float:
    """Best of three passes over all lines, or as many as fit into the time."""
    best = 0.0
    for _ in range(3):
        num_bytes, started_at = 0, time.process_time()
        for start in range(0, len(lines), 200):
            some = lines[start : start + 200]
            for line in some:
                work(line)
            num_bytes += sum(len(line.encode()) for line in some)
            if time.process_time() - started_at > limit_s:
                break
        best = max(best, num_bytes / 1e6 / (time.process_time() - started_at))
    return best


def lines_of(path: Path, megabytes: float) -> list[str]:
    lines: list[str] = []
    left = megabytes * 1e6
    for document in read_documents(path):
        lines += [line for line in document.split("\n") if line]
        left -= len(document.encode())
        if left < 0:
            break
    return lines


def call_with(split: Split, language: str, line: str) -> list[str]:
    return split(line, language)


def measure_sentences(english: list[str], chinese: list[str], limit_s: float) -> dict[str, Any]:
    results = {}
    for way in WAYS:
        try:
            split = way()
        except ImportError:
            print(f"{way.__name__:20} is not installed")
            continue
        figures: dict[str, Any] = {
            "english_right": f"{num_right(split, ENGLISH_CASES)}/{len(parse(ENGLISH_CASES))}",
            "other_right": f"{num_right(split, OTHER_CASES)}/{len(parse(OTHER_CASES))}",
        }
        for name, language, lines in (("english", "en", english), ("chinese", "zh", chinese)):
            work = partial(call_with, split, language)
            figures[f"{name}_mb_per_s"] = megabytes_per_s(work, lines, limit_s)
        results[way.__name__] = {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in figures.items()
        }
        print(f"{way.__name__:20} {results[way.__name__]}")
    return results


def measure_words(chinese: list[str], limit_s: float) -> dict[str, Any]:
    import jieba

    logging.getLogger("jieba").setLevel(logging.ERROR)
    jieba.initialize()
    started_at = time.process_time()
    segmenter = Segmenter.load()
    figures = {
        "load_s": time.process_time() - started_at,
        "bertie_mb_per_s": megabytes_per_s(segmenter.starts, chinese, limit_s),
        "jieba_mb_per_s": megabytes_per_s(jieba.lcut, chinese, limit_s),
    }
    rounded = {name: round(value, 2) for name, value in figures.items()}
    print("Chinese words", rounded)
    return rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("english", type=Path)
    parser.add_argument("chinese", type=Path)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--limit-s", type=float, default=3, help="for each way and text")
    options = parser.parse_args()
    english = lines_of(options.english, options.megabytes)
    chinese = lines_of(options.chinese, options.megabytes)
    results = {
        "sentences": measure_sentences(english, chinese, options.limit_s),
        "chinese_words": measure_words(chinese, options.limit_s),
    }
    packages = ("blingfire", "jieba", "pysbd", "sentencex", "spacy", "syntok")
    print("saved", machine.save("sentences", machine.describe(*packages), results))


if __name__ == "__main__":
    main()
