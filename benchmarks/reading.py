"""Reading documents out of every format, one core, files in the page cache.

    python benchmarks/reading.py en.jsonl.xz zh.jsonl.xz

MB/s are of the file, for packed ones of what they unpack to. Best of three.
"""

import argparse
import csv
import gzip
import json
import lzma
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
from bertie.data.corpus import read_documents, source_hash


def take(path: Path, megabytes: float) -> list[str]:
    texts: list[str] = []
    left = megabytes * 1e6
    for document in read_documents(path):
        texts.append(document)
        left -= len(document.encode())
        if left < 0:
            break
    return texts


def write_forms(texts: list[str], folder: Path, name: str) -> Iterator[tuple[Path, int]]:
    """Files of the same documents, each with the size of what it unpacks to."""
    import pyarrow
    import pyarrow.parquet
    import zstandard

    paragraphs = [line for text in texts for line in text.split("\n") if line]
    lines = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts).encode()
    forms = {
        f"{name}, documents.jsonl": lines,
        f"{name}, paragraphs.jsonl": "".join(
            json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in paragraphs
        ).encode(),
        f"{name}, escaped.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in texts).encode(),
        f"{name}.txt": "\n\n".join(texts).encode(),
        f"{name}.jsonl.gz": gzip.compress(lines, 6),
        f"{name}.jsonl.xz": lzma.compress(lines, preset=1),
        f"{name}.jsonl.zst": zstandard.compress(lines),
    }
    for form, data in forms.items():
        path = folder / form
        path.write_bytes(data)
        is_packed = path.suffix in (".gz", ".xz", ".zst")
        yield path, len(lines) if is_packed else len(data)
    table = folder / f"{name}.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(texts)])
    yield table, table.stat().st_size
    parquet = folder / f"{name}.parquet"
    columns = pyarrow.table({"id": range(len(texts)), "text": texts})
    pyarrow.parquet.write_table(columns, parquet, row_group_size=500)
    yield parquet, sum(len(text.encode()) for text in texts)


def seconds(path: Path) -> float:
    started_at = time.process_time()
    for _ in read_documents(path):
        pass
    return time.process_time() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("english", type=Path)
    parser.add_argument("chinese", type=Path)
    parser.add_argument("--megabytes", type=float, default=40)
    options = parser.parse_args()
    rates: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, corpus in (("english", options.english), ("chinese", options.chinese)):
            texts = take(corpus, options.megabytes)
            for path, size in write_forms(texts, Path(folder), name):
                rates[path.name] = round(size / 1e6 / min(seconds(path) for _ in range(3)))
                print(f"{path.name:28} {rates[path.name]:5} MB/s")
        path = Path(folder) / "english.txt"
        started_at = time.process_time()
        source_hash(path)
        taken_s = time.process_time() - started_at
        rates["source_hash"] = round(path.stat().st_size / 1e6 / taken_s)
    result = {"megabytes_per_s": rates}
    print("saved", machine.save("reading", machine.describe("pyarrow", "zstandard"), result))


if __name__ == "__main__":
    main()
