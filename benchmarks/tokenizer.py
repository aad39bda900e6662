"""Bulk encoding, ids only, one thread: bertie beside `tokenizers`, same text, same run.

    python benchmarks/tokenizer.py VOCAB_FOLDER en.jsonl.xz zh.jsonl.xz

Each round encodes the same lines with a fresh tokenizer of each kind, so bertie pays for every new
word of the text; `warm` is a second pass with what it remembers. Best of the rounds.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Encoding
from tokenizers.implementations import BertWordPieceTokenizer

import machine
from bertie.data.corpus import read_documents
from bertie.text.files import TokenizerConfig, read_vocab
from bertie.text.tokenizer import Tokenizer

SETTINGS = (("uncased", True), ("cased", False), ("chinese", True))
BATCH = 1000  # lines a call


def lines_of(path: Path, num_bytes: int) -> list[str]:
    lines: list[str] = []
    for document in read_documents(path):
        lines += document.split("\n")
        num_bytes -= len(document.encode())
        if num_bytes <= 0:
            break
    return lines


def ids_of(encode: Callable[..., list[Encoding]], lines: list[str]) -> list[list[int]]:
    return [one.ids for one in encode(lines, add_special_tokens=False)]


def seconds(encode: Callable[[list[str]], Any], lines: list[str]) -> tuple[float, int]:
    """CPU time to encode the lines, and the number of ids that came out."""
    num_ids, started_at = 0, time.process_time()
    for start in range(0, len(lines), BATCH):
        num_ids += sum(map(len, encode(lines[start : start + BATCH])))
    return time.process_time() - started_at, num_ids


def measure(vocab: Path, lower_case: bool, lines: list[str], rounds: int) -> dict[str, Any]:
    best: dict[str, float] = {}
    counts = set()
    pieces = read_vocab(vocab)
    for _ in range(rounds):
        peer = BertWordPieceTokenizer(str(vocab), lowercase=lower_case)._tokenizer
        ours = Tokenizer(pieces, TokenizerConfig(lower_case=lower_case))
        ways: dict[str, Callable[[list[str]], Any]] = {
            "tokenizers encode_batch": partial(ids_of, peer.encode_batch),
            "tokenizers encode_batch_fast": partial(ids_of, peer.encode_batch_fast),
            "bertie": ours.ids_of_all,
            "bertie, warm": ours.ids_of_all,
        }
        for name, encode in ways.items():
            taken_s, num_ids = seconds(encode, lines)
            best[name] = min(best.get(name, taken_s), taken_s)
            counts.add(num_ids)
    assert len(counts) == 1, f"the tokenizers disagree: {counts}"
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    base_s = best["tokenizers encode_batch"]
    return {
        "vocabulary": vocab.name,
        "megabytes": round(megabytes, 1),
        "ids": counts.pop(),
        "megabytes_per_s": {name: round(megabytes / s, 2) for name, s in best.items()},
        "ratio_to_encode_batch": {name: round(base_s / s, 2) for name, s in best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocabularies", type=Path, help="folder with bert-base-*-vocab.txt")
    parser.add_argument("english", type=Path)
    parser.add_argument("chinese", type=Path)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = []
    for name, lower_case in SETTINGS:
        corpus = options.chinese if name == "chinese" else options.english
        lines = lines_of(corpus, int(options.megabytes * 1e6))
        vocab = options.vocabularies / f"bert-base-{name}-vocab.txt"
        results.append(measure(vocab, lower_case, lines, options.rounds))
        print(f"{name}: {results[-1]['megabytes']} MB, {results[-1]['ids']:,} ids")
        for way, rate in results[-1]["megabytes_per_s"].items():
            ratio = results[-1]["ratio_to_encode_batch"][way]
            print(f"  {way:30} {rate:6.2f} MB/s  {ratio:5.2f}x")
    print("saved", machine.save("tokenizer", machine.describe("tokenizers", "numpy"), results))


if __name__ == "__main__":
    main()
