"""A full step of fine-tuning: bertie beside `transformers`, same weights, same examples a step.

    python benchmarks/finetune.py --model MINILM --data DATA                # CPU, 2 threads, fp32
    python benchmarks/finetune.py --model MINILM --data DATA --threads 1    # counts CPU time
    python benchmarks/finetune.py --model MINILM --data DATA --device cuda --precision bf16 \
        --size base --batch 128 --sets SST-2 MRPC SNLI

The examples are those of the sets (SNLI stands for MNLI) with their real mix of lengths, 32 a step
in the order of a run. With --size the model is of that size, with random weights, and MINILM gives
the pieces only. A step is forward, loss, backward, clip to 1.0 and torch's fused AdamW with decay
on matrices only; dropout is the model's. `transformers` has BertForSequenceClassification with its
SDPA attention, and batches that are padded to 128, or to the longest of the batch. Encoding and the
making of batches are not measured, on either side. All ways take turns, in an order that rotates;
see train_step.py for what is done on a machine with other work.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import machine
from bertie.checkpoint.hugging_face import from_ours, make_config
from bertie.checkpoint.model_dir import open_model
from bertie.model.bert import Bert
from bertie.model.config import named_size
from bertie.tasks.classify import Classify
from bertie.tasks.instances import TaskBatch
from bertie.tasks.steps import TaskLoader
from bertie.text.tokenizer import Tokenizer
from bertie.train.optim import BertOptimizer, OptimConfig
from splits import take_rows
from train_step import (
    TrainStep,
    compare,
    is_one_thread,
    make_groups,
    still,
    time_alone,
    time_turn,
)

SETS = {  # in DATA, as published
    "SST-2": "GLUE/SST-2/train.tsv",
    "MRPC": "GLUE/MRPC/train.tsv",
    "SNLI": "SNLI/snli_1.0_train_subset.jsonl",
}
LENGTH = 128
RATE, MAX_NORM = 5e-5, 1.0
WAYS = ("transformers padded to 128", "transformers padded to the longest", "bertie")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The steps of a set."""

    name: str
    task: Classify
    batches: list[TaskBatch]

    def describe(self) -> dict[str, float]:
        lengths = torch.cat([batch.bounds.diff() for batch in self.batches]).double()
        longest = [batch.longest for batch in self.batches]
        return {
            "mean_length": round(float(lengths.mean()), 1),
            "mean_longest_of_a_batch": round(sum(longest) / len(longest), 1),
            "longest": max(longest),
        }


def read_data(name: str, options: argparse.Namespace) -> Data:
    """So many steps of a run; of the rows as many as they need, evenly spaced."""
    num_steps = options.rounds * options.steps
    with TemporaryDirectory() as folder:
        path = options.data / SETS[name]
        rows = take_rows(path, num_steps * options.batch + 2, Path(folder))
        task = Classify(max_length=LENGTH, truncate=True)
        train = task.read(rows, needs_labels=True)
        task = task.settle(train)
    instances = task.encode(train.examples, Tokenizer.load(options.model))
    loader = TaskLoader(instances, batch_size=options.batch, end_step=num_steps, micro_tokens=2**20)
    steps = list(loader)
    assert all(len(step.micro_batches) == 1 for step in steps)
    return Data(name=name, task=task, batches=[step.micro_batches[0] for step in steps])


def pad(batch: TaskBatch, length: int) -> dict[str, Tensor]:
    """(B, length) each, as the peer takes them, and the labels (B,)."""
    rows = torch.zeros(3, len(batch.labels), length, dtype=torch.int64)
    sequence = torch.repeat_interleave(batch.bounds.diff())  # (T,)
    for kind, flat in enumerate((batch.ids, batch.segments, torch.ones_like(batch.ids))):
        rows[kind, sequence, batch.positions] = flat
    names = ("input_ids", "token_type_ids", "attention_mask")
    return dict(zip(names, rows, strict=True)) | {"labels": batch.labels}


def open_ours(data: Data, options: argparse.Namespace) -> Bert:
    generator = torch.Generator().manual_seed(0)
    num_labels = data.task.num_labels
    if options.size:
        config = named_size(options.size)
        return Bert(config, ("sequence",), num_labels=num_labels, generator=generator)
    model = open_model(
        options.model, heads=("sequence",), num_labels=num_labels, generator=generator
    ).model
    for parameter in model.parameters():  # mapped from the file
        parameter.data = parameter.data.clone()
    return model


def make_peer(model: Bert, num_labels: int) -> Any:
    """Theirs, with our weights."""
    config = transformers.BertConfig(**make_config(model, torch.float32), num_labels=num_labels)
    peer = transformers.BertForSequenceClassification(config)
    assert peer.config._attn_implementation == "sdpa"
    peer.load_state_dict(from_ours(model))
    return peer


def make_ours(data: Data, model: Bert, options: argparse.Namespace) -> TrainStep:
    device = torch.device(options.device)
    batches = [batch.to(device) for batch in data.batches]
    optimizer = BertOptimizer(model.to(device).train(), OptimConfig(name="adamw"))
    if device.type == "cuda" and options.precision == "bf16":  # as the training loop does
        model.record()

    def train_step(number: int) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            term = data.task.objective(model, batches[number])["task"]
        loss: Tensor = term.total / options.batch
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step(RATE)
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def make_theirs(
    data: Data, peer: Any, is_padded_to_longest: bool, options: argparse.Namespace
) -> TrainStep:
    device = torch.device(options.device)
    lengths = [batch.longest if is_padded_to_longest else LENGTH for batch in data.batches]
    batches = [
        {name: part.to(device) for name, part in pad(batch, length).items()}
        for batch, length in zip(data.batches, lengths, strict=True)
    ]
    peer.to(device).train()
    optimizer = torch.optim.AdamW(make_groups(peer), lr=RATE, eps=1e-6, fused=True)

    def train_step(number: int) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            loss: Tensor = peer(**batches[number]).loss
        loss.backward()
        nn.utils.clip_grad_norm_(peer.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


@torch.no_grad()
def check_same_loss(data: Data, model: Bert, peer: Any, device: torch.device) -> None:
    """Both compute the same thing: without dropout the losses are equal."""
    batch = data.batches[0]
    with still(model.to(device)), still(peer.to(device)):
        ours = data.task.objective(model, batch.to(device))["task"].total / len(batch.labels)
        for length in (LENGTH, batch.longest):
            padded = {name: part.to(device) for name, part in pad(batch, length).items()}
            theirs = peer(**padded).loss
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def make_ways(data: Data, options: argparse.Namespace) -> dict[str, TrainStep]:
    model = open_ours(data, options)
    peers = [make_peer(model, data.task.num_labels) for _ in range(2)]
    check_same_loss(data, model, peers[0], torch.device(options.device))
    steps = [make_theirs(data, peer, n == 1, options) for n, peer in enumerate(peers)]
    return dict(zip(WAYS, [*steps, make_ours(data, model, options)], strict=True))


def measure(data: Data, options: argparse.Namespace) -> tuple[dict[str, list[float]], bool]:
    """Seconds of each turn of each way, turn r of all on the same steps; were others at work?"""
    device, ways = torch.device(options.device), make_ways(data, options)
    until = time.monotonic() + (0 if is_one_thread(device) else options.patience)
    # Memory, threads; on a GPU every shape has its own first time, and is recorded at the next.
    first = (options.steps,) if device.type == "cpu" else (len(data.batches),) * 2
    for train_step in ways.values():
        for num_first in first:
            time_turn(train_step, range(num_first), device)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        numbers = range(turn * options.steps, (turn + 1) * options.steps)
        shift = turn % len(ways)
        for name in WAYS[shift:] + WAYS[:shift]:
            seconds[name].append(time_alone(ways[name], numbers, device, until))
    is_disturbed = time.monotonic() > until and device.type == "cpu" and not is_one_thread(device)
    return seconds, is_disturbed


def summarise(seconds: dict[str, list[float]], num_steps: int) -> dict[str, Any]:
    ours = seconds["bertie"]
    return {
        "milliseconds_a_step": {
            name: round(median(taken) / num_steps * 1000, 1) for name, taken in seconds.items()
        },
        "bertie_is_times_as_fast_as": {
            name: compare(taken, ours) for name, taken in seconds.items() if name != "bertie"
        },
    }


def show(name: str, row: dict[str, Any]) -> None:
    disturbed = "; others used the machine: look at the best turns" if row["is_disturbed"] else ""
    print(f"{name}: {row['lengths']}{disturbed}")
    for way, taken_ms in row["milliseconds_a_step"].items():
        print(f"  {way:36} {taken_ms:8.1f} ms a step")
    for way, ratio in row["bertie_is_times_as_fast_as"].items():
        half = f"{ratio['lower_quartile']} .. {ratio['upper_quartile']}"
        print(f"  {ratio['median']:.2f}x {way} ({half}; best turns {ratio['best_to_best']})")


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    data = read_data(name, options)
    seconds, is_disturbed = measure(data, options)
    about = {"lengths": data.describe(), "is_disturbed": is_disturbed}
    return about | summarise(seconds, options.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="directory of the encoder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the published sets")
    parser.add_argument("--sets", nargs="+", default=["SST-2", "MRPC"], choices=list(SETS))
    parser.add_argument("--size", default="", help="of a model with random weights: base")
    parser.add_argument("--batch", type=int, default=32, help="sequences a step")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument(
        "--patience", type=float, default=300, help="seconds to wait for a quiet CPU, for each set"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    is_cpu = options.device == "cpu"
    result: dict[str, Any] = {
        "device": "cpu" if is_cpu else torch.cuda.get_device_name(),
        "threads": options.threads,
        "precision": options.precision,
        "model": options.size or options.model.name,
        "sequences_a_step": options.batch,
        "rounds": options.rounds,
        "steps_a_turn": options.steps,
        "sets": {},
    }
    about = machine.describe("torch", "transformers", "numpy")
    kind = f"-{options.threads}-threads" if is_cpu else f"-{result['model']}-{options.batch}"
    file = f"finetune-{options.device}{kind}"
    for name in options.sets:
        result["sets"][name] = run(name, options)
        show(name, result["sets"][name])
        print("saved", machine.save(file, about, result), flush=True)


if __name__ == "__main__":
    main()
