"""Answers on a CPU: the engine beside `transformers` and ONNX Runtime, same weights, same texts.

    python benchmarks/infer.py --encoder MINILM --tuned SST2_MODEL --data GLUE     # 2 threads
    python benchmarks/infer.py ... --threads 1                                     # CPU time

Texts in, classes or vectors out, with everything between; the texts are the sentences of SST-2's
dev set and the passages of RTE's, in their order. The peers run as their users run them: 32 texts
at a time, filled up to the longest, in fp32 (ONNX Runtime on what `bertie export` writes). Then one
text at a time, for latency; then a fresh process, to its first answer. All ways take turns; see
train_step.py for what is done on a machine with other work.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers

import bertie
import machine
from bertie.export.writing import ONNX, export_model
from train_step import compare, is_one_thread, time_alone

BATCH = 32
SETS = {"SST-2": "sentence", "RTE": "sentence1"}  # and the column of the texts
PRECISIONS = ("fp32", "bf16", "int8")
CPU = torch.device("cpu")
Ask = Callable[[list[str]], np.ndarray]  # texts -> (N, C) or (N, D)
FIRST = """
import re, sys, time
from pathlib import Path
def peak():  # of this process alone: ru_maxrss begins with that of the one that started it
    return int(re.search("VmHWM:\\s*([0-9]+)", Path("/proc/self/status").read_text())[1])
started_at = time.perf_counter()
import torch
before = peak()
import bertie
bertie.load(sys.argv[1], precision=sys.argv[2], show=False).classify("a fine film")
taken = time.perf_counter() - started_at, time.process_time()
print(*taken, peak() - before)
"""


def read_texts(path: Path, column: str) -> list[str]:
    header, *rows = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    place = header.split("\t").index(column)
    return [row.split("\t")[place] for row in rows]


# The ways to ask.


def ask_transformers(directory: Path, verb: str) -> Ask:
    name = "AutoModel" if verb == "embed" else "AutoModelForSequenceClassification"
    model = getattr(transformers, name).from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    @torch.inference_mode()
    def ask(texts: list[str]) -> np.ndarray:
        made = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                texts[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=512,
                return_tensors="pt",
            )
            found = model(**batch)
            if verb == "embed":
                mask = batch["attention_mask"].unsqueeze(-1)
                made.append((found.last_hidden_state * mask).sum(1) / mask.sum(1))
            else:
                made.append(found.logits.softmax(-1))
        return torch.cat(made).numpy()

    return ask


def ask_onnx(directory: Path, verb: str, folder: Path, threads: int) -> Ask:
    out = folder / f"{verb}-onnx"
    export_model(directory, out, form="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(out / ONNX, options, providers=["CPUExecutionProvider"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    def ask(texts: list[str]) -> np.ndarray:
        made = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                texts[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=512,
                return_tensors="np",
            )
            made.append(session.run(None, dict(batch))[0])
        joined = np.concatenate(made)
        if verb == "embed":
            return joined
        shares = np.exp(joined - joined.max(1, keepdims=True))
        return np.asarray(shares / shares.sum(1, keepdims=True))

    return ask


def ask_engine(directory: Path, verb: str, precision: str) -> Ask:
    model = bertie.load(directory, device="cpu", precision=precision, show=False)
    if verb == "embed":
        return lambda texts: model.embed(texts, layer=-1, pooling="mean")
    return lambda texts: np.array([list(one.scores.values()) for one in model.classify(texts)])


def make_ways(verb: str, options: argparse.Namespace, folder: Path) -> dict[str, Ask]:
    directory = options.encoder
    if verb == "classify":  # without task.json, long texts are read as transformers reads them
        directory = folder / "tuned"
        shutil.copytree(options.tuned, directory, ignore=shutil.ignore_patterns("task.json"))
    peers = {
        "transformers": ask_transformers(directory, verb),
        "onnxruntime": ask_onnx(directory, verb, folder, options.threads),
    }
    ours = {f"bertie {p}": ask_engine(directory, verb, p) for p in PRECISIONS}
    return peers | ours


# Measuring.


def take_turns(
    ways: dict[str, Callable[[int], torch.Tensor]], options: argparse.Namespace
) -> tuple[dict[str, list[float]], bool]:
    """Seconds of each turn of each way, turn r of all on the same texts; were others at work?"""
    until = time.monotonic() + (0 if is_one_thread(CPU) else options.patience)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for run in ways.values():
        run(0)
    for turn in range(options.rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            numbers = range(turn, turn + 1)
            seconds[name].append(time_alone(ways[name], numbers, CPU, until))
    return seconds, time.monotonic() > until and not is_one_thread(CPU)


def as_run(ask: Ask, turns: Sequence[list[str]], *, is_single: bool) -> Callable[[int], Any]:
    def run(turn: int) -> torch.Tensor:
        texts = turns[turn % len(turns)]
        for part in [[text] for text in texts] if is_single else [texts]:
            ask(part)
        return torch.zeros(())

    return run


def summarise(seconds: dict[str, list[float]], num_texts: int) -> dict[str, Any]:
    return {
        "milliseconds_a_text": {
            name: round(median(taken) / num_texts * 1000, 2) for name, taken in seconds.items()
        },
        "times_as_fast": {
            ours: {
                theirs: compare(seconds[theirs], taken)
                for theirs in seconds
                if not theirs.startswith("bertie")
            }
            for ours, taken in seconds.items()
            if ours.startswith("bertie")
        },
    }


def find_differences(ways: dict[str, Ask], texts: list[str]) -> dict[str, float]:
    """The largest difference of each way's numbers from those of transformers."""
    wanted = ways["transformers"](texts)
    return {name: float(np.abs(ask(texts) - wanted).max()) for name, ask in ways.items()}


def measure(verb: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    ways, found = make_ways(verb, options, folder), {}
    for name, column in SETS.items():
        texts = read_texts(options.data / name / "dev.tsv", column)
        size = options.texts
        turns = [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
        differences = find_differences(ways, turns[0])
        assert differences["bertie fp32"] < 1e-4 and differences["onnxruntime"] < 1e-4, differences
        row: dict[str, Any] = {"differences": differences}
        runs = {way: as_run(ask, turns, is_single=False) for way, ask in ways.items()}
        seconds, row["is_disturbed"] = take_turns(runs, options)
        row |= summarise(seconds, size)
        few = [turn[:8] for turn in turns]
        singles = {way: as_run(ask, few, is_single=True) for way, ask in ways.items()}
        seconds, is_disturbed = take_turns(singles, options)
        row["single_texts"] = {"is_disturbed": is_disturbed} | summarise(seconds, 8)
        found[name] = row
        show(f"{verb} {name}", row)
        show(f"{verb} {name}, one text at a time", row["single_texts"])
    return found


def show(title: str, row: dict[str, Any]) -> None:
    print(f"{title}{' (others used the machine)' if row['is_disturbed'] else ''}")
    for name, taken_ms in row["milliseconds_a_text"].items():
        print(f"  {name:14} {taken_ms:8.2f} ms a text", end="")
        ratios = row["times_as_fast"].get(name, {})
        for theirs, ratio in ratios.items():
            print(f"; {ratio['median']:.2f}x {theirs} (best {ratio['best_to_best']})", end="")
        print(flush=True)


def measure_accuracy(options: argparse.Namespace) -> dict[str, float]:
    path = options.data / "SST-2" / "dev.tsv"
    texts, labels = read_texts(path, "sentence"), read_texts(path, "label")
    found = {}
    for precision in PRECISIONS:
        model = bertie.load(options.tuned, device="cpu", precision=precision, show=False)
        pairs = zip(model.classify(texts), labels, strict=True)
        found[precision] = round(sum(one.label == label for one, label in pairs) / len(labels), 4)
    print("accuracy on SST-2 dev:", found)
    return found


def measure_first(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a fresh process to its first answer, with importing; memory beyond torch's own."""
    found = {}
    for precision in PRECISIONS:
        runs = []
        for _ in range(5):
            command = [sys.executable, "-c", FIRST, str(options.tuned), precision]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            runs.append([float(number) for number in told.split()])
        seconds, cpu_seconds, kibibytes = map(min, zip(*runs, strict=True))
        found[precision] = {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu_seconds, 2),
            "mebibytes_beyond_torch": round(kibibytes / 1024, 1),
        }
    found["weights_mebibytes"] = (
        sum(path.stat().st_size for path in options.tuned.glob("*.safetensors")) / 2**20
    )
    print("fresh process to the first answer:", json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoder", type=Path, required=True, help="to embed with")
    parser.add_argument("--tuned", type=Path, required=True, help="fine-tuned on SST-2")
    parser.add_argument("--data", type=Path, required=True, help="folder of SST-2 and RTE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=int, default=96, help="of a turn")
    parser.add_argument(
        "--patience", type=float, default=200, help="seconds to wait for a quiet CPU, for each set"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    result: dict[str, Any] = {"threads": options.threads, "rounds": options.rounds}
    about = machine.describe("torch", "transformers", "onnxruntime", "numpy")
    result["accuracy"] = measure_accuracy(options)
    result["first_answer"] = measure_first(options)
    with TemporaryDirectory() as folder:
        for verb in ("classify", "embed"):
            result[verb] = measure(verb, options, Path(folder))
            saved = machine.save(f"infer-cpu-{options.threads}-threads", about, result)
            print("saved", saved, flush=True)


if __name__ == "__main__":
    main()
