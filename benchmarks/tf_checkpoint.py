"""How long a TensorFlow checkpoint of BERT-base size takes to open, verify and rename.

    python benchmarks/tf_checkpoint.py

Writes a synthetic one (110,106,428 parameters, float32) to a temporary directory, so the data files
are in the page cache: the seconds are those of the processor, on one core, not of the disk.
"""

import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from bertie.checkpoint.tensorflow import read_checkpoint, rename

HERE = Path(__file__).parent
BASE = {"vocab": 30_522, "positions": 512, "hidden": 768, "ffn": 3072, "num_layers": 12}
NUM_RUNS = 5


def main() -> None:
    sys.path.insert(0, str(HERE.parent))
    from tests.checkpoint.tf_writer import bert_tensors, write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "bert_model.ckpt"
        write_checkpoint(prefix, bert_tensors(np.random.default_rng(0), **BASE), per_block=64)
        tensors = read_checkpoint(prefix, verify=False)
        result: dict[str, Any] = {
            "benchmark": "TensorFlow checkpoint of BERT-base size, files in the page cache",
            "date": date.today().isoformat(),
            "machine": describe_machine(),
            "num_variables": len(tensors),
            "num_bytes": sum(tensor.nbytes for tensor in tensors.values()),
            "num_runs": NUM_RUNS,
            "read_and_verify_s": measure(lambda: read_checkpoint(prefix)),
            "read_unverified_s": measure(lambda: read_checkpoint(prefix, verify=False)),
            "rename_s": measure(lambda: rename(tensors, BASE["num_layers"])),
        }
    speed = result["num_bytes"] / 1e6 / result["read_and_verify_s"]["median"]
    result["read_and_verify_mb_per_s"] = round(speed)
    text = json.dumps(result, indent=2) + "\n"
    cpu = re.sub(r"[^a-z0-9]+", "-", result["machine"]["cpu"].lower()).strip("-")
    path = HERE / "results" / f"tf-checkpoint-{result['date']}-{cpu}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{text}written to {path}")


def measure(work: Callable[[], object]) -> dict[str, float]:
    """Median and extremes of the wall-clock seconds over several runs."""
    seconds = []
    for _ in range(NUM_RUNS):
        started_at = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started_at)
    chosen = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return {name: round(value, 4) for name, value in chosen.items()}


def describe_machine() -> dict[str, str | int | None]:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": found[1] if found else platform.processor() or platform.machine(),
        "num_cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
