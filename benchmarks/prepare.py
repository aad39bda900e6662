"""`bertie prepare`: rate beside `tokenizers`, scaling, memory, and the original way beside it.

    python benchmarks/prepare.py VOCAB_DIRECTORY en.jsonl.xz... [--gigabyte]

Every run is a process of its own. Larger corpora are made by repeating the text with a changed
first line in each document.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import machine
from bertie.config import read_recipe
from bertie.data.corpus import read_documents
from bertie.prepare import PrepareRecipe, prepare
from bertie.text.sentences import split_sentences
from bertie.text.tokenizer import Tokenizer


def write_text(path: Path, sources: list[Path], num_bytes: int) -> int:
    """JSON Lines of at least `num_bytes` of text, the sources again and again."""
    written = copy = 0
    with path.open("w", encoding="utf-8") as file:
        while written < num_bytes:
            for document in (d for source in sources for d in read_documents(source)):
                text = f"Copy {copy} of a document.\n{document}" if copy else document
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                written += len(text.encode())
                if written >= num_bytes:
                    break
            copy += 1
    return written


def run_prepare(text: Path, vocab: Path, folder: Path, workers: int) -> None:
    recipe = read_recipe(PrepareRecipe)
    prepare([text], vocab, folder / "store", recipe, workers=workers)


def run_tokenizers(text: Path, vocab: Path, folder: Path, workers: int) -> None:
    """The peer merely encodes, in batches, on one thread; nothing is split or written."""
    from tokenizers.implementations import BertWordPieceTokenizer

    peer = BertWordPieceTokenizer(str(vocab / "vocab.txt"), lowercase=True)._tokenizer
    batch: list[str] = []
    for document in read_documents(text):
        batch += document.split("\n")
        if len(batch) >= 1000:
            peer.encode_batch(batch, add_special_tokens=False)
            batch = []
    peer.encode_batch(batch, add_special_tokens=False)


def run_original(text: Path, vocab: Path, folder: Path, workers: int) -> None:
    """The way of the paper's code: all documents, then all instances, as lists of strings."""
    tokenizer = Tokenizer.load(vocab)
    documents = []
    for document in read_documents(text):
        sentences = map(tokenizer.ids, split_sentences(document))
        documents.append([tokenizer.tokens(ids.tolist()) for ids in sentences])
    rng = random.Random(0)
    rng.shuffle(documents)
    instances = [i for d in range(len(documents)) for i in original_walk(documents, d, rng)]
    rng.shuffle(instances)
    assert instances


def original_walk(
    documents: list[list[list[str]]], number: int, rng: random.Random, room: int = 125
) -> Iterator[tuple[list[str], int]]:
    """Segment pairs of one document, for length 128."""
    chunk: list[list[str]] = []
    place = length = 0
    document = documents[number]
    while place < len(document):
        chunk.append(document[place])
        length += len(document[place])
        if place == len(document) - 1 or length >= room:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first = [token for sentence in chunk[:cut] for token in sentence]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                other = documents[rng.randrange(len(documents))]
                start = rng.randrange(len(other)) if other else 0
                second = [token for sentence in other[start : start + 20] for token in sentence]
                place -= len(chunk) - cut
            else:
                second = [token for sentence in chunk[cut:] for token in sentence]
            tokens = ["[CLS]", *first, "[SEP]", *second[: max(1, room - len(first))], "[SEP]"]
            yield tokens, int(is_random)
            chunk, length = [], 0
        place += 1


WAYS: dict[str, Callable[[Path, Path, Path, int], None]] = {
    "prepare": run_prepare,
    "tokenizers": run_tokenizers,
    "original": run_original,
}


def run_one(way: str, text: Path, vocab: Path, folder: Path, workers: int) -> None:
    """In a fresh process: runs one way, prints its figures as JSON."""
    before_s, started_at = time.process_time(), time.perf_counter()
    WAYS[way](text, vocab, folder, workers)
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    figures = {
        "seconds": round(time.perf_counter() - started_at, 2),
        "cpu_seconds": round(time.process_time() - before_s + children.ru_utime, 2),
        "peak_mb": round(own.ru_maxrss / 1e3),
        "peak_mb_of_a_worker": round(children.ru_maxrss / 1e3),
    }
    print(json.dumps(figures))


def measure(way: str, text: Path, vocab: Path, workers: int = 1) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        arguments = ["--one", way, str(vocab), str(text), folder, "--workers", str(workers)]
        command = [sys.executable, __file__, *arguments]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    megabytes = text.stat().st_size / 1e6
    figures |= {"megabytes": round(megabytes), "mb_per_s": round(megabytes / figures["seconds"], 2)}
    print(f"{way}, {workers} workers: {figures}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gigabyte", action="store_true", help="memory at 1 GB, too")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.text[0], options.vocab, options.text[1], options.workers)
        return
    with tempfile.TemporaryDirectory() as name:
        text, vocab = Path(name) / "text.jsonl", options.vocab
        results: dict[str, Any] = {}
        write_text(text, options.text, 50_000_000)
        results["tokenizers, merely encoding"] = measure("tokenizers", text, vocab)
        results["prepare, 50 MB"] = measure("prepare", text, vocab)
        results["the original way, 50 MB"] = measure("original", text, vocab)
        write_text(text, options.text, 200_000_000)
        for workers in (1, 2):
            results[f"prepare, 200 MB, {workers} workers"] = measure(
                "prepare", text, vocab, workers
            )
        if options.gigabyte:
            write_text(text, options.text, 1_000_000_000)
            results["prepare, 1 GB, 2 workers"] = measure("prepare", text, vocab, 2)
            write_text(text, options.text, 50_000_000)
            results["prepare, 50 MB, 2 workers"] = measure("prepare", text, vocab, 2)
    ratios = {
        "rate to tokenizers (CPU seconds)": results["tokenizers, merely encoding"]["cpu_seconds"]
        / results["prepare, 50 MB"]["cpu_seconds"],
        "two workers to one": results["prepare, 200 MB, 1 workers"]["seconds"]
        / results["prepare, 200 MB, 2 workers"]["seconds"],
    }
    results["ratios"] = {name: round(value, 2) for name, value in ratios.items()}
    print(results["ratios"])
    print("saved", machine.save("prepare", machine.describe("tokenizers", "numpy"), results))


if __name__ == "__main__":
    main()
