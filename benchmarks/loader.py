"""The way from a token store to batches: index of an epoch, first batch, tokens a second, memory.

    python benchmarks/loader.py                         # 500 million tokens, one core
    python benchmarks/loader.py --workers 8 --tokens 50 # the same with processes that work ahead

The store is made up: sentences of 25 tokens on average, documents of 40 sentences (log-normal), a
vocabulary of 30,522 pieces. Everything is read once before it is measured (page cache).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import machine
from bertie.data.index import IndexSpec, delete_rows, open_index, read_counts
from bertie.data.instances import InstanceConfig
from bertie.data.masking import MaskConfig
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import Store, StoreWriter, open_store
from bertie.text.count import available_cores
from bertie.text.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BATCHES = {128: 256, 512: 64}  # length -> instances of a step: about as many tokens
RESUMED = 1_000_000


def write_store(folder: Path, num_tokens: int) -> Store:
    rng = np.random.default_rng(0)
    pieces = [*SPECIALS, *(f"w{n}" for n in range(24_000)), *(f"##w{n}" for n in range(6_517))]
    first_inside = 24_005
    written = 0
    with StoreWriter(folder, Tokenizer(pieces)) as writer:
        while written < num_tokens:
            documents = np.maximum(1, rng.lognormal(np.log(40) - 0.5, 1.0, 5000)).astype(np.int64)
            sentences = np.clip(rng.gamma(3, 25 / 3, documents.sum()), 1, 400).astype(np.int64)
            # Frequent pieces come first; a fifth of all tokens go on with a word.
            ids = (5 + rng.random(sentences.sum(), np.float32) ** 3 * 24_000).astype(np.uint16)
            is_inside = rng.random(len(ids), np.float32) < 0.2
            ids[is_inside] = rng.integers(first_inside, len(pieces), is_inside.sum())
            writer.add(ids, ids < first_inside, sentences, documents)
            written += len(ids)
        writer.finish(settings={}, sources={}, statistics={})
    return open_store(folder)


def private_megabytes() -> float:
    """Memory that is this process's own: not the pages of mapped files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return round(int(status.split("RssAnon:")[1].split()[0]) / 1024, 1)


def config_of(length: int, unit: Any = "token", **loader: Any) -> DataConfig:
    return DataConfig(
        instances=InstanceConfig(max_length=length),
        masking=MaskConfig(unit=unit),
        loader=LoaderConfig(batch_size=BATCHES[length], micro_tokens=65_536, **loader),
    )


def measure_index(store: Store, length: int, processes: int) -> dict[str, Any]:
    """Seconds to build an epoch's index, everything included."""
    spec = IndexSpec(store=store, config=InstanceConfig(max_length=length), seed=0, epoch=0)
    started_at = time.perf_counter()
    header = open_index(spec, processes=processes).header
    taken_s = time.perf_counter() - started_at
    return {
        "length": length,
        "processes": processes,
        "seconds": round(taken_s, 2),
        "instances": header.num_instances,
        "mean_length": round(header.mean_length, 2),
        "not_next_share": round(header.second_share, 4),
        "not_next_share_of_many": round(header.second_share_of_many, 4),
    }


def measure_speed(store: Store, config: DataConfig, seconds: float) -> dict[str, Any]:
    """Tokens a second that arrive as tensors, after the first few steps."""
    import torch

    from bertie.data.loader import Loader

    torch.set_num_threads(1)
    num_tokens = num_steps = 0
    started_at = cpu_at = 0.0
    with Loader(store, config) as loader:
        for step in loader:
            if step.number == 20:
                started_at, cpu_at = time.perf_counter(), time.process_time()
            elif step.number > 20:
                num_tokens, num_steps = num_tokens + step.num_tokens, num_steps + 1
                if time.perf_counter() - started_at > seconds:
                    break
        taken_s, cpu_s = time.perf_counter() - started_at, time.process_time() - cpu_at
    return {
        "length": config.instances.max_length,
        "unit": config.masking.unit,
        "workers": config.loader.num_workers,
        "tokens_per_s": round(num_tokens / taken_s),
        "cpu_seconds_of_this_process_per_million_tokens": round(cpu_s / num_tokens * 1e6, 3),
        "private_megabytes": private_megabytes(),
        "tokens_a_step": round(num_tokens / num_steps),
    }


def measure_first(folder: Path, length: int, step: int, workers: int) -> dict[str, Any]:
    """In a process of its own: seconds to a step, with and without starting Python and torch."""
    command = [sys.executable, __file__, "--first", str(folder), str(length), str(step)]
    started_at = time.perf_counter()
    done = subprocess.run(
        [*command, "--workers", str(workers)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    found["seconds_with_start_of_python_and_torch"] = round(time.perf_counter() - started_at, 2)
    return found


def run_first(folder: Path, length: int, step: int, workers: int) -> None:
    from bertie.data.loader import Loader

    started_at = time.perf_counter()
    config = config_of(length, num_workers=workers)
    with Loader(open_store(folder), config, start_step=step, end_step=step + 50) as loader:
        found = next(iter(loader))
        taken_s = time.perf_counter() - started_at
    result: dict[str, float] = {
        "length": length,
        "step": found.number,
        "epoch": found.epoch,
        "workers": workers,
    }
    result |= {"seconds": round(taken_s, 3), "private_megabytes": private_megabytes()}
    print(json.dumps(result))


def count_epochs(store: Store, length: int, step: int) -> None:
    """What a run up to `step` leaves on the disk: the counts of each epoch, the last one's rows."""
    epoch = before = 0
    while True:
        spec = IndexSpec(store=store, config=InstanceConfig(max_length=length), seed=0, epoch=epoch)
        before += read_counts(spec).num_instances
        if before > step * BATCHES[length]:
            open_index(spec)
            return
        delete_rows(spec)
        epoch += 1


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    started_at = time.perf_counter()
    store = write_store(folder, int(options.tokens * 1e6))
    result: dict[str, Any] = {
        "tokens": store.manifest.num_tokens,
        "sentences": store.manifest.num_sentences,
        "documents": store.manifest.num_documents,
        "seconds_to_write_it": round(time.perf_counter() - started_at, 1),
    }
    show("store", result)
    cores = available_cores()
    result["index"] = [
        show("index", measure_index(store, length, processes))
        for length, processes in ((128, cores), (512, cores))
    ]
    result["speed"] = [
        show("speed", measure_speed(store, config, options.seconds))
        for length in BATCHES
        for unit in ("token", "word", "span")
        for config in [config_of(length, unit, num_workers=options.workers)]
    ]
    result["first_batch"] = [
        show("first batch", measure_first(folder, length, 0, workers))
        for length in BATCHES
        for workers in (0, max(1, options.workers))
    ]
    if options.resume:
        count_epochs(store, 128, RESUMED)
        found = measure_first(folder, 128, RESUMED, options.workers)
        result["first_batch"].append(show("first batch", found))
    return result


def show(name: str, values: dict[str, Any]) -> dict[str, Any]:
    print(f"{name:12}", ", ".join(f"{key} {value}" for key, value in values.items()), flush=True)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=500, help="of the store, in millions")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement of speed")
    parser.add_argument(
        "--no-resume", dest="resume", action="store_false", help="leave out the late step"
    )
    parser.add_argument("--folder", type=Path, help="where the store is written, and deleted again")
    parser.add_argument("--first", nargs=3, metavar=("STORE", "LENGTH", "STEP"), help="used within")
    options = parser.parse_args()
    if options.first:
        folder, length, step = options.first
        run_first(Path(folder), int(length), int(step), options.workers)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder) / "store", options)
    name = f"loader-{options.workers}-workers"
    print("saved", machine.save(name, machine.describe("numpy", "torch"), result))


if __name__ == "__main__":
    main()
