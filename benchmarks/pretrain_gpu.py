"""A run on a GPU: fed by the loader, beside batches that are already there; kernels on and off.

    python benchmarks/pretrain_gpu.py speed --store STORE              # base, 300 steps of 512
    python benchmarks/pretrain_gpu.py curves --store STORE
    ... curves --size mini --steps 1500 --peak 1e-3                    # well below guessing
    ... curves --fp8                                                   # and once with eight bits
    ... curves --at-once                                               # all runs side by side

The run is that of `bertie pretrain`, with its loop, its log and processes that make batches of the
store. Its speed is the median over its lines, the first third left out; that of batches which lie
on the GPU already is of as many steps, see train_step.py: a card that is hot is slower. Both for
batches as they come, of other sizes every time, and filled up to one shape. The losses are those
of training, means of ten steps: twice with the kernels (two seeds, to see what chance does) and
once without. Run at once, they share the card, and their speed says nothing.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import machine
from bertie.data.instances import InstanceConfig
from bertie.data.loader import Loader
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import open_store
from bertie.kernels import ways
from bertie.model.bert import Bert
from bertie.model.config import named_size
from bertie.plan import with_micro_tokens
from bertie.pretrain import PretrainRecipe, pretrain
from bertie.train.log import METRICS
from bertie.train.loop import TrainConfig
from bertie.train.optim import OptimConfig
from train_step import Way, make_ours, time_turn

GPU = torch.device("cuda")
LENGTH, EVERY, DIFFERENT_STEPS = 128, 10, 12
NEVER = 10**9


def make_recipe(options: argparse.Namespace) -> PretrainRecipe:
    loader = LoaderConfig(
        batch_size=options.batch,
        micro_tokens=options.batch * LENGTH,
        num_workers=options.workers,
    )
    return PretrainRecipe(
        store=options.store,
        model=named_size(options.size),
        data=DataConfig(instances=InstanceConfig(max_length=LENGTH), loader=loader),
        optim=OptimConfig(name="adamw", peak=options.peak, warmup=0.1, schedule="linear"),
        train=TrainConfig(
            budget=f"{options.steps} steps",
            precision="bf16",
            device="cuda",
            log_every=EVERY,
            evaluate_every=NEVER,
            save_every=NEVER,
        ),
    )


def run(
    recipe: PretrainRecipe, folder: Path, *, seed: int, kernels: bool, fp8: bool = False
) -> list[dict[str, Any]]:
    """The lines of its log."""
    out = folder / f"{seed}-{kernels}-{fp8}"
    train = replace(recipe.train, seed=seed, kernels=kernels, fp8=fp8)
    pretrain(replace(recipe, out=out, train=train))
    lines = (out / METRICS).read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if "mlm_loss" in line]


def speed_of(lines: list[dict[str, Any]]) -> float:
    speed: float = median(line["tokens_per_s"] for line in lines[len(lines) // 3 :])
    return speed


def measure_ready(recipe: PretrainRecipe, num_steps: int) -> float:
    """Tokens a second of the first steps, which lie on the GPU, again and again."""
    assert recipe.store is not None and recipe.model is not None
    store = open_store(recipe.store)
    with Loader(store, recipe.data) as loader:
        steps = [loader.step(number) for number in range(DIFFERENT_STEPS)]
    config = replace(recipe.model, vocab_size=store.manifest.vocab_size)
    model = Bert(config, recipe.heads, generator=torch.Generator().manual_seed(0)).to(GPU).train()
    train_step = make_ours(model, Way(who="bertie", precision="bf16"), steps, GPU)
    num_tokens = sum(step.num_tokens for step in steps)
    num_turns = max(3, num_steps // len(steps))
    taken = [time_turn(train_step, range(len(steps)), GPU) for _ in range(num_turns)]
    return num_tokens / median(taken[num_turns // 3 :])


def compare(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """How far two curves lie apart."""
    pairs = [(a["mlm_loss"], b["mlm_loss"]) for a, b in zip(one, other, strict=True)]
    last = pairs[-len(pairs) // 5 :]
    return {
        "mean_distance": round(mean(abs(a - b) for a, b in pairs), 4),
        "difference_of_the_last_fifth": round(mean(a - b for a, b in last), 4),
    }


def fill_up(recipe: PretrainRecipe) -> PretrainRecipe:
    """The same with batches of one shape: their ends are filled up, and ignored."""
    assert recipe.store is not None
    loader = replace(recipe.data.loader, fill=True)
    data, store = replace(recipe.data, loader=loader), open_store(recipe.store)
    return replace(recipe, data=with_micro_tokens(data, loader.micro_tokens, store, 1))


def measure_speed(recipe: PretrainRecipe, folder: Path, num_steps: int) -> dict[str, Any]:
    ways.ASKED_BEFORE = 0  # else the run would measure ways of products in its last steps
    found: dict[str, Any] = {}
    for name, way in {"as they come": recipe, "filled up": fill_up(recipe)}.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        lines = run(way, folder / name, seed=0, kernels=True)
        fed, tails = speed_of(lines), [line.get("filled_share", 0.0) for line in lines]
        memory = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        ready = measure_ready(way, num_steps)
        found[name] = {
            "tokens_per_s": {"fed by the loader": round(fed), "already there": round(ready)},
            "fed_share_of_ready": round(fed / ready, 4),
            "filled_share": round(mean(tails), 4),
            "gib_used_and_reserved": [round(number / 2**30, 1) for number in memory],
        }
    return {"batches": found}


def measure_curves(
    recipe: PretrainRecipe, folder: Path, *, fp8: bool, at_once: bool
) -> dict[str, Any]:
    wanted: dict[str, dict[str, Any]] = {
        "kernels": {"seed": 0, "kernels": True},
        "another seed": {"seed": 1, "kernels": True},
        "plain": {"seed": 0, "kernels": False},
    }
    if fp8:
        wanted["fp8"] = {"seed": 0, "kernels": True, "fp8": True}
    with ProcessPoolExecutor(len(wanted) if at_once else 1, get_context("spawn")) as pool:
        runs = {name: pool.submit(run, recipe, folder, **one) for name, one in wanted.items()}
        curves = {name: future.result() for name, future in runs.items()}
    first = curves["kernels"]
    names = {"plain": "without_kernels", "another seed": "another_seed", "fp8": "fp8"}
    return {
        f"{name}_to_with": compare(curves[curve], first)
        for curve, name in names.items()
        if curve in curves
    } | {
        "are_at_once": at_once,
        "tokens_per_s": {name: round(speed_of(lines)) for name, lines in curves.items()},
        "mlm_loss": {
            name: [round(line["mlm_loss"], 4) for line in lines] for name, lines in curves.items()
        },
    }


def main() -> None:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the command
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("speed", "curves"))
    parser.add_argument("--store", type=Path, required=True, help="of `bertie prepare`")
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=512, help="sequences a step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--peak", type=float, default=3e-4, help="rate of learning")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--fp8", action="store_true", help="curves: one more, with eight bits")
    parser.add_argument("--at-once", action="store_true", help="curves: side by side")
    options = parser.parse_args()
    recipe = make_recipe(options)
    with TemporaryDirectory() as folder:
        measured = (
            measure_speed(recipe, Path(folder), options.steps)
            if options.part == "speed"
            else measure_curves(recipe, Path(folder), fp8=options.fp8, at_once=options.at_once)
        )
    settings = {"size": options.size, "sequences_a_step": options.batch, "peak": options.peak}
    result = {"device": torch.cuda.get_device_name(), **settings, "workers": options.workers}
    result |= measured
    for name, value in result.items():
        print(name, value)
    about = machine.describe("torch", "numpy")
    print("saved", machine.save(f"pretrain-{options.part}-{options.size}-cuda", about, result))


if __name__ == "__main__":
    main()
