"""One epoch of masked pairs from the same text: an index over a store beside lists in memory.

    python benchmarks/instances.py VOCAB en.jsonl.xz

`lists` is the way of the first scripts for BERT: all documents as lists of strings, all instances
made and masked one by one, kept in a list and shuffled. `index` is ours: a store on disk, the index
of the epoch, and every step of it. Each runs in a process of its own, without torch; tokenizing is
not counted in the seconds, only in the memory.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import machine
from bertie.data.corpus import read_documents
from bertie.data.instances import InstanceConfig
from bertie.data.steps import DataConfig, LoaderConfig, Steps
from bertie.data.store import StoreWriter, open_store
from bertie.text.files import read_vocab
from bertie.text.tokenizer import Tokenizer

MAX_LENGTH = 128
Document = list[list[str]]


def sentences_of(path: Path, num_bytes: int) -> Iterator[list[str]]:
    """Documents, split roughly into sentences."""
    for document in read_documents(path):
        yield [s for s in document.replace(". ", ".\n").split("\n") if s.strip()]
        num_bytes -= len(document.encode())
        if num_bytes <= 0:
            return


def truncate(a: list[str], b: list[str], room: int, rng: random.Random) -> None:
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def pair(
    documents: list[Document], number: int, i: int, target: int, rng: random.Random
) -> tuple[list[str], list[str], bool, int]:
    """A, B, whether B is from elsewhere, and where the next instance starts."""
    document, length, end = documents[number], 0, i
    chunk: list[list[str]] = []
    while end < len(document) and (not chunk or length < target):
        chunk.append(document[end])
        length += len(document[end])
        end += 1
    split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
    a = [token for sentence in chunk[:split] for token in sentence]
    if len(chunk) > 1 and rng.random() < 0.5:
        return a, [token for sentence in chunk[split:] for token in sentence], False, end
    other = number
    while other == number:
        other = rng.randrange(len(documents))
    b: list[str] = []
    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
        b += sentence
        if len(b) >= target - len(a):
            break
    return a, b, True, i + split


def hide(tokens: list[str], pieces: list[str], rng: random.Random) -> tuple[list[int], list[str]]:
    places = [n for n, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(places)
    places = sorted(places[: max(1, round(len(tokens) * 0.15))])
    labels = [tokens[place] for place in places]
    for place in places:
        if rng.random() < 0.8:
            tokens[place] = "[MASK]"
        elif rng.random() < 0.5:
            tokens[place] = rng.choice(pieces)
    return places, labels


def run_lists(vocab: Path, corpus: Path, num_bytes: int) -> dict[str, Any]:
    tokenizer = Tokenizer(read_vocab(vocab))
    rng = random.Random(0)
    documents: list[Document] = []
    for sentences in sentences_of(corpus, num_bytes):
        split = [tokenizer.tokens(ids) for ids in tokenizer.ids_of_all(sentences)]
        documents.append([tokens for tokens in split if tokens])
    documents = [document for document in documents if document]
    started_at = time.perf_counter()
    made = []
    for number, document in enumerate(documents):
        room = MAX_LENGTH - 3
        target = rng.randint(2, room) if rng.random() < 0.1 else room
        i = 0
        while i < len(document):
            a, b, is_random, i = pair(documents, number, i, target, rng)
            truncate(a, b, room, rng)
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            made.append((tokens, segments, is_random, *hide(tokens, tokenizer.pieces, rng)))
    rng.shuffle(made)
    taken_s = time.perf_counter() - started_at
    return {"instances": len(made), "seconds": taken_s, "tokens": sum(len(m[0]) for m in made)}


def run_index(vocab: Path, corpus: Path, num_bytes: int) -> dict[str, Any]:
    tokenizer = Tokenizer(read_vocab(vocab))
    is_inside = np.array([piece.startswith("##") for piece in tokenizer.pieces])
    config = DataConfig(
        instances=InstanceConfig(max_length=MAX_LENGTH, paper_exact=True), loader=LoaderConfig()
    )
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder), tokenizer) as writer:
            for sentences in sentences_of(corpus, num_bytes):
                split = [ids for ids in map(tokenizer.ids, sentences) if len(ids)]
                if split:
                    ids = np.concatenate(split)
                    lengths = np.array([len(part) for part in split])
                    writer.add(ids, ~is_inside[ids], lengths, np.array([len(split)]))
            writer.finish(settings={}, sources={}, statistics={})
        started_at = time.perf_counter()
        steps = Steps(open_store(Path(folder)), config, processes=1)
        num_instances = steps.epochs.find_end(0)
        num_steps = num_instances // config.loader.batch_size
        num_tokens = sum(steps.make(number).num_tokens for number in range(num_steps))
        taken_s = time.perf_counter() - started_at
    return {"instances": num_instances, "seconds": taken_s, "tokens": num_tokens}


WAYS = {"lists": run_lists, "index": run_index}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--way", choices=WAYS, help="used within")
    options = parser.parse_args()
    if options.way:
        found = WAYS[options.way](options.vocab, options.corpus, int(options.megabytes * 1e6))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found |= {"seconds": round(found["seconds"], 2), "peak_megabytes": round(peak)}
        print(json.dumps(found))
        return
    result = {}
    for way in WAYS:
        command = [sys.executable, *sys.argv, "--way", way]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result[way] = json.loads(done.stdout)
        print(way, result[way], flush=True)
    result["megabytes"] = options.megabytes
    print("saved", machine.save("instances", machine.describe("numpy"), result))


if __name__ == "__main__":
    main()
