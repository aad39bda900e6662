"""Learning a vocabulary: bertie beside `tokenizers`' WordPiece trainer, same text, same cores.

    python benchmarks/vocabulary.py HELD_OUT.jsonl.xz TRAIN.jsonl.xz...

Each runs in a process of its own, from a plain text file to a vocabulary on disk.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from bertie.config import read_recipe
from bertie.data.corpus import read_documents
from bertie.text.count import available_cores
from bertie.text.coverage import cover_texts
from bertie.text.files import TokenizerConfig, read_vocab
from bertie.vocab import VocabRecipe, make_vocab


def run_bertie(text: Path, out: Path, size: int) -> None:
    sets = [f"learn.size={size}", "corpus.held_out_percent=0", "learn.num_unused=0"]
    make_vocab([text], out, read_recipe(VocabRecipe, None, sets), workers=available_cores())


def run_tokenizers(text: Path, out: Path, size: int) -> None:
    from tokenizers.implementations import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train([str(text)], vocab_size=size, show_progress=False)
    out.mkdir()
    tokenizer.save_model(str(out))


WAYS = {"bertie": run_bertie, "tokenizers": run_tokenizers}


def run_one(way: str, text: Path, out: Path, size: int) -> None:
    """In a fresh process: runs one way, prints seconds and peak memory as JSON."""
    started_at = time.perf_counter()
    WAYS[way](text, out, size)
    taken_s = time.perf_counter() - started_at
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the largest
    peak_kb = own + workers * available_cores()
    print(json.dumps({"seconds": round(taken_s, 1), "peak_mb": round(peak_kb / 1e3)}))


def measure(way: str, text: Path, folder: Path, size: int) -> dict[str, Any]:
    out = folder / way
    arguments = ["--one", way, str(text), str(out), "--size", str(size)]
    result = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
    )
    figures: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("train", type=Path, nargs="*")
    parser.add_argument("--size", type=int, default=30_522)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.held_out, options.train[0], options.size)
        return
    held_out = list(read_documents(options.held_out))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            for path in options.train:
                file.writelines(f"{document}\n\n" for document in read_documents(path))
        figures: dict[str, Any] = {"megabytes": round(text.stat().st_size / 1e6)}
        for way in WAYS:
            figures[way] = measure(way, text, folder, options.size)
            pieces = read_vocab(folder / way / "vocab.txt")
            fit = cover_texts(held_out, pieces, TokenizerConfig())
            figures[way] |= {
                "pieces": len(pieces),
                "held_out_words": fit.num_words,
                "pieces_per_word": round(fit.pieces_per_word, 5),
                "unknown_per_million": round(fit.unknown_share * 1e6, 1),
            }
            print(way, figures[way])
    ours, peer = figures["bertie"], figures["tokenizers"]
    figures["time_ratio"] = round(peer["seconds"] / ours["seconds"], 2)
    print(f"{figures['megabytes']} MB: {figures['time_ratio']}x the speed of tokenizers")
    print("saved", machine.save("vocabulary", machine.describe("tokenizers", "numpy"), figures))


if __name__ == "__main__":
    main()
