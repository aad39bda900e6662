"""A full training step: bertie beside `transformers`' BertForPreTraining, same weights and batches.

    python benchmarks/train_step.py --store STORE                    # CPU: tiny and mini, 2 threads
    python benchmarks/train_step.py --device cuda --full --compile transformers --tokens 65536 \
        --precisions bf16 fp8 --sizes base:128 base:512 large:128
    ... --who bertie --graphs           # without the peer; also with the encoder played
    ... --precisions bf16 fp8           # ours, also with products of eight bits

A step is forward, loss (MLM + NSP), backward, clip to 1.0 and torch's fused AdamW with decay on
matrices only; dropout is 0.1. The instances are those that the loader makes, with their mix of
lengths, of STORE or of a store that is made up. `transformers` gets what its users give it: batches
padded to the length, an attention mask, labels of -100 where nothing is predicted, SDPA attention,
autocast for bf16. "transformers gathered" is the same but for its MLM head, called on the predicted
tokens only, as it is not unless one writes a forward of one's own: it shows what of a ratio is not
the head. Tokens are counted without padding, for all.

On a GPU the result also has each way's largest memory, its time by kind of kernel, and its share of
the speed of a large square product, measured in the same run. With --full, every sequence is of the
full length; without, batches are filled up to one shape on a GPU, and the share of the tails is
told. Real lengths of tasks are finetune.py's, answers alone are infer_gpu.py's.

All ways take turns on the same batches, in an order that rotates. A ratio is the median over the
rounds. A turn during which others used the machine is repeated, while patience lasts; after that
the ratio of the best turns is the steadier one. With --threads 1 CPU time is counted, which is the
way to measure on a machine that is never quiet.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import Tensor, nn

import gpu
import machine
from bertie import kernels
from bertie.checkpoint.hugging_face import from_ours, make_config
from bertie.data.loader import IGNORED, Step
from bertie.data.store import Store, open_store
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig, named_size
from bertie.objectives import cross_entropy, linear_cross_entropy
from bertie.train.optim import BertOptimizer, OptimConfig
from loader import write_store
from step_data import Data, Padded, make_data, make_full_data

RATE, MAX_NORM = 1e-4, 1.0
TOKENS_MADE_UP = 2_000_000
STATISTICS = Path("/proc/stat")


Who = Literal["bertie", "transformers", "transformers gathered"]
WHO: tuple[Who, ...] = ("transformers", "transformers gathered", "bertie")


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """Who trains, and how."""

    who: Who
    precision: Literal["fp32", "bf16", "fp8"]
    is_compiled: bool = False
    is_played: bool = False  # the encoder, from CUDA graphs

    @property
    def name(self) -> str:
        how = " compiled" * self.is_compiled + " played" * self.is_played
        return f"{self.who} {self.precision}{how}"


TrainStep = Callable[[int], Tensor]  # number of a batch -> loss


def make_peer(model: Bert) -> transformers.BertForPreTraining:
    """Theirs, with our weights."""
    config = transformers.BertConfig(**make_config(model, torch.float32))
    peer = transformers.BertForPreTraining(config)
    assert peer.config._attn_implementation == "sdpa"
    missing, unexpected = peer.load_state_dict(from_ours(model), strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert set(missing) <= tied and not unexpected, (missing, unexpected)
    peer.tie_weights()
    return peer


def make_groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def make_ours(model: Bert, way: Way, steps: list[Step], device: torch.device) -> TrainStep:
    if way.precision == "fp8" and not kernels.has_float8(device):
        raise SystemExit(f"fp8 needs a GPU that multiplies eight bits; found {device}")
    batches = [step.micro_batches[0].to(device) for step in steps]
    optimizer = BertOptimizer(model, OptimConfig(name="adamw"))
    run: Any = torch.compile(model, dynamic=False) if way.is_compiled else model
    if device.type == "cuda":
        from bertie.kernels import ways

        ways.ASKED_BEFORE = 0  # a run has measured them after some steps
    if way.is_played:
        model.record(most_tokens=max(len(batch.ids) for batch in batches))

    def train_step(number: int) -> Tensor:
        batch, num_targets = batches[number], steps[number].num_targets
        kernels.Switch.is_float8 = way.precision == "fp8"  # others take turns in this process
        with torch.autocast(device.type, torch.bfloat16, enabled=way.precision != "fp32"):
            rows, pair_logits = run(*batch[:5], predicted=batch.predicted, is_projected=False)
            mlm = linear_cross_entropy(rows, *model.output_layer(), batch.labels)
            nsp = cross_entropy(pair_logits, batch.pair_labels)
        loss = mlm.total / num_targets["mlm"] + nsp.total / num_targets["nsp"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step(RATE)
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def make_theirs(
    peer: transformers.BertForPreTraining, way: Way, batches: list[Padded], device: torch.device
) -> TrainStep:
    moved = [Padded._make(part.to(device) for part in batch) for batch in batches]
    optimizer = torch.optim.AdamW(make_groups(peer), lr=RATE, eps=1e-6, fused=True)
    forward = gathered_loss if way.who == "transformers gathered" else usual_loss
    run: Any = torch.compile(peer, dynamic=False) if way.is_compiled else peer

    def train_step(number: int) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=way.precision == "bf16"):
            loss = forward(run, moved[number])
        loss.backward()
        nn.utils.clip_grad_norm_(peer.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def usual_loss(peer: Any, batch: Padded) -> Tensor:
    loss: Tensor = peer(**batch._asdict()).loss
    return loss


def gathered_loss(peer: Any, batch: Padded) -> Tensor:
    """Their encoder and their heads, the large one on the predicted tokens only."""
    hidden, pooled = peer.bert(
        batch.input_ids, token_type_ids=batch.token_type_ids, attention_mask=batch.attention_mask
    )[:2]
    is_predicted = batch.labels != IGNORED
    logits = peer.cls.predictions(hidden[is_predicted])
    pairs = peer.cls.seq_relationship(pooled)
    return nn.functional.cross_entropy(
        logits.float(), batch.labels[is_predicted]
    ) + nn.functional.cross_entropy(pairs.float(), batch.next_sentence_label)


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


@torch.no_grad()
def check_same_loss(
    model: Bert, peer: transformers.BertForPreTraining, data: Data, device: torch.device
) -> None:
    """Both compute the same thing: without dropout the losses are equal."""
    step, batch = data.steps[0], data.steps[0].micro_batches[0].to(device)
    padded = Padded._make(part.to(device) for part in data.padded[0])
    with still(model), still(peer):
        logits = model(*batch[:5], predicted=batch.predicted)
        ours = cross_entropy(logits[0], batch.labels).total / step.num_targets["mlm"]
        ours += cross_entropy(logits[1], batch.pair_labels).total / step.num_targets["nsp"]
        for theirs in (usual_loss(peer, padded), gathered_loss(peer, padded)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def make_way(way: Way, config: ModelConfig, data: Data, device: torch.device) -> TrainStep:
    generator = torch.Generator().manual_seed(0)
    model = Bert(config, ("masked_lm", "next_sentence"), generator=generator).to(device)
    if way.who == "bertie":
        return make_ours(model.train(), way, data.steps, device)
    peer = make_peer(model).to(device)
    check_same_loss(model, peer, data, device)
    return make_theirs(peer.train(), way, data.padded, device)


def time_turn(train_step: TrainStep, numbers: range, device: torch.device) -> float:
    """Seconds of the steps: CPU time of one thread, which others hardly change, else real time."""
    clock = time.process_time if is_one_thread(device) else time.perf_counter
    synchronise(device)
    started_at = clock()
    for number in numbers:
        loss = train_step(number)
    synchronise(device)
    taken_s = clock() - started_at
    assert torch.isfinite(loss)
    return taken_s


def is_one_thread(device: torch.device) -> bool:
    return device.type == "cpu" and torch.get_num_threads() == 1


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def others_seconds() -> float:
    """CPU time that others than this process have used since some moment; 0 if it is not known."""
    if not STATISTICS.is_file():
        return 0.0
    user, nice, system = map(int, STATISTICS.read_text(encoding="utf-8").split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def time_alone(run: TrainStep, numbers: range, device: torch.device, until: float) -> float:
    """Seconds of a turn in which others left the machine to us, or of any after `until`.

    A thread that must wait for a core keeps the other waiting: a turn takes ten times as long. A
    GPU is nobody else's.
    """
    if device.type != "cpu":
        return time_turn(run, numbers, device)
    while True:
        started_at, before = time.monotonic(), others_seconds()
        time.sleep(0.3)
        is_quiet = others_seconds() - before < 0.1 * (time.monotonic() - started_at)
        is_late = time.monotonic() > until
        if is_quiet or is_late:
            before = others_seconds()
            taken_s = time_turn(run, numbers, device)
            if is_late or others_seconds() - before < 0.1 * taken_s + 0.02:
                return taken_s


class Measured(NamedTuple):
    """Of one size: by way, seconds of each turn, and what only a GPU tells."""

    seconds: dict[str, list[float]]
    on_gpu: dict[str, dict[str, Any]]
    is_disturbed: bool


def measure(
    ways: list[Way], config: ModelConfig, data: Data, options: argparse.Namespace
) -> Measured:
    """Turn r of all ways is on the same steps."""
    device = torch.device(options.device)
    until = time.monotonic() + (0 if is_one_thread(device) else options.patience)
    runs: dict[str, TrainStep] = {}
    own_bytes: dict[str, int] = {}  # of weights; optimizers make theirs in the first turn
    for way in ways:
        before = held_bytes(device)
        runs[way.name] = make_way(way, config, data, device)
        own_bytes[way.name] = held_bytes(device) - before
    on_gpu: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        started_at = time.monotonic()
        on_gpu[name] = watch_first_turn(run, own_bytes[name], options.steps, device)
        print(f"{name}: first turn {time.monotonic() - started_at:.0f} s", file=sys.stderr)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(options.rounds):
        numbers = range(turn * options.steps, (turn + 1) * options.steps)
        shift = turn % len(ways)
        for way in ways[shift:] + ways[:shift]:
            seconds[way.name].append(time_alone(runs[way.name], numbers, device, until))
    is_disturbed = time.monotonic() > until and device.type == "cpu" and not is_one_thread(device)
    return Measured(seconds, on_gpu, is_disturbed)


def held_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def watch_first_turn(
    run: TrainStep, own_bytes: int, num_steps: int, device: torch.device
) -> dict[str, Any]:
    """A turn that does not count: memory without that of the other ways, threads, compilation."""
    if device.type == "cpu":
        time_turn(run, range(num_steps), device)
        return {}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    of_others = held_bytes(device) - own_bytes
    time_turn(run, range(num_steps), device)
    largest = torch.cuda.max_memory_allocated() - of_others
    return {
        "largest_memory_gib": round(largest / 2**30, 1),
        "milliseconds_by_kind": gpu.profile_kinds(lambda: run(0)),
    }


def summarise(
    measured: Measured, config: ModelConfig, data: Data, num_steps: int, ceiling: float | None
) -> list[dict[str, Any]]:
    """One row a way: its speed, its share of the ceiling if that is known, in GFLOP/s, and of ours
    how many times the speed of each of the peer's."""
    seconds = measured.seconds
    turns = range(0, len(data.steps), num_steps)
    tokens = [sum(step.num_tokens for step in data.steps[t : t + num_steps]) for t in turns]
    flops = [sum(data.count_flops(config, t + n) for n in range(num_steps)) for t in turns]
    rows = []
    for name, taken in seconds.items():
        rates = [num / taken_s for num, taken_s in zip(tokens, taken, strict=True)]
        gigaflops = [num / taken_s / 1e9 for num, taken_s in zip(flops, taken, strict=True)]
        row = {
            "way": name,
            "tokens_per_s": {"median": round(median(rates)), "best": round(max(rates))},
            "milliseconds_a_step": round(median(taken) / num_steps * 1000, 1),
            "useful_gigaflops_per_s": round(median(gigaflops), 1),
        } | measured.on_gpu[name]
        if ceiling:
            row["share_of_the_ceiling"] = round(median(gigaflops) / ceiling, 3)
        if name.startswith("bertie"):
            row["times_the_speed_of"] = {
                other: compare(theirs, taken)
                for other, theirs in seconds.items()
                if other.startswith("transformers") or other == plain_way(name, seconds)
            }
        rows.append(row)
    return rows


def plain_way(name: str, names: Iterable[str]) -> str | None:
    """The first of ours, which another of ours is compared with."""
    first = next(other for other in names if other.startswith("bertie"))
    return None if first == name else first


def compare(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """How many times as fast we are: in the median round, in half of all, best turn to best."""
    ratios = [their_s / our_s for their_s, our_s in zip(theirs, ours, strict=True)]
    lower, middle, upper = quantiles(ratios)
    return {
        "median": round(middle, 2),
        "lower_quartile": round(lower, 2),
        "upper_quartile": round(upper, 2),
        "best_to_best": round(min(theirs) / min(ours), 2),
    }


def show(size: str, rows: list[dict[str, Any]]) -> None:
    print(f"{size}:")
    for row in rows:
        rates, taken_ms = row["tokens_per_s"], row["milliseconds_a_step"]
        print(f"  {row['way']:36} {rates['median']:9,} tokens/s, best {rates['best']:9,}", end="")
        print(f" {taken_ms:8.1f} ms {row['useful_gigaflops_per_s']:10,.1f} GFLOP/s", end="")
        share = row.get("share_of_the_ceiling")
        print(f", {share:.1%} of the ceiling" if share else "")
        for other, ratio in row.get("times_the_speed_of", {}).items():
            half = f"{ratio['lower_quartile']} .. {ratio['upper_quartile']}"
            print(f"    {ratio['median']:5.2f}x {other} ({half}; best {ratio['best_to_best']})")


def choose_ways(options: argparse.Namespace) -> list[Way]:
    ways = [
        Way(who=who, precision=precision, is_compiled=is_compiled)
        for precision in options.precisions
        for is_compiled in (False, True)
        for who in options.who
        if not is_compiled or who in options.compile
        if who == "bertie" or precision != "fp8"
        if not (who == "transformers gathered" and (is_compiled or options.device == "cuda"))
    ]
    plain = [way for way in ways if way.who == "bertie" and not way.is_compiled]
    return ways + [replace(way, is_played=True) for way in plain if options.graphs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="of `bertie prepare`; without: one is made up")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--sizes", nargs="+", default=["tiny", "mini"], help="or with their lengths: base:512"
    )
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument(
        "--compile", nargs="+", default=(), choices=WHO, help="these also with torch.compile"
    )
    parser.add_argument("--who", nargs="+", default=WHO, choices=WHO)
    parser.add_argument(
        "--graphs", action="store_true", help="ours, also played from CUDA graphs of full batches"
    )
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="sequences a step")
    parser.add_argument("--tokens", type=int, default=0, help="a step, instead of --batch")
    parser.add_argument("--full", action="store_true", help="sequences all of the full length")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds to wait for a quiet CPU"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    is_cpu = options.device == "cpu"
    result: dict[str, Any] = {
        "device": "cpu" if is_cpu else torch.cuda.get_device_name(),
        "threads": options.threads,
        "store": "prepared from English text" if options.store else "made up",
        "is_full": options.full,
        "rounds": options.rounds,
        "steps_a_turn": options.steps,
        "sizes": {},
    }
    if not is_cpu:
        result["ceiling_gigaflops_per_s"] = round(gpu.measure_ceiling() / 1e9)
    print(", ".join(f"{key} {value}" for key, value in result.items() if key != "sizes"))
    with TemporaryDirectory() as folder:
        store = (
            open_store(options.store)
            if options.store
            else write_store(Path(folder) / "store", TOKENS_MADE_UP)
        )
        for size in options.sizes:
            ceiling = result.get("ceiling_gigaflops_per_s")
            result["sizes"][size] = measure_size(size, store, options, ceiling)
            packages = machine.describe("torch", "transformers", "numpy")
            name = f"train-step-{options.device}" + f"-{options.threads}-threads" * is_cpu
            name += "-ours" * ("transformers" not in options.who)
            print("saved", machine.save(name, packages, result), flush=True)


def measure_size(
    text: str, store: Store, options: argparse.Namespace, ceiling: float | None
) -> dict[str, Any]:
    """Of a size or size:length."""
    size, _, own_length = text.partition(":")
    length = int(own_length or options.length)
    batch_size = options.tokens // length if options.tokens else options.batch
    num_steps = options.rounds * options.steps
    data = (
        make_full_data(store, num_steps, length, batch_size)
        if options.full
        else make_data(store, options, length, batch_size)
    )
    config = named_size(size, vocab_size=store.manifest.vocab_size)
    measured = measure(choose_ways(options), config, data, options)
    rows = summarise(measured, config, data, options.steps, ceiling)
    show(text, rows)
    if measured.is_disturbed:
        print("  (others used the machine: look at the best turns)")
    if options.device == "cuda":
        torch._dynamo.reset()  # compiled code holds its model
    return data.describe() | {"is_disturbed": measured.is_disturbed, "ways": rows}


if __name__ == "__main__":
    main()
