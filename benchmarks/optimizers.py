"""Optimizers beside each other: the same text, model, batches and minutes, a thread for each.

    python benchmarks/optimizers.py --store STORE --work WORK --minutes 40

The recipe is tiny-cpu (2 layers of 128). Both run at the same time, so that whatever else the
machine does befalls both. A run that is done is not done again; one that was stopped goes on.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine

NAMES = ("adamw", "muon")
RECIPE = "tiny-cpu"
# Both were tried at half and twice this rate with fewer steps (docs/log.md).
SETTINGS = (
    "train.threads=1",
    "train.log_every=100",
    "train.save_every=2000",
    "optim.peak=2e-3",
    "optim.beta2=0.98",
    "optim.warmup=0.05",
    "data.loader.batch_size=128",
)
FIGURES = ("step", "tokens", "seconds", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
LEVELS = (6.0, 5.5, 5.0, 4.5, 4.0)  # nats of the masked LM's loss


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    sets = (*SETTINGS, f"optim.name={name}", f"train.budget={options.minutes:g} minutes")
    words = [word for one in (*sets, *options.sets) for word in ("--set", one)]
    places = ["--store", str(options.store), "--out", str(options.work / name)]
    with (options.work / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bertie", "pretrain", RECIPE, *places, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def read(folder: Path) -> dict[str, Any]:
    """The curve, thinned out; what held-out text says at the end; when a loss was passed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "rate" in line]
    held_out = next(line["held_out"] for line in reversed(lines) if "held_out" in line)
    every = max(1, len(steps) // 40)
    return {
        "curve": [{name: line[name] for name in FIGURES} for line in steps[every - 1 :: every]],
        "held_out": held_out,
        "steps_to_loss": {
            str(level): next((line["step"] for line in steps if line["mlm_loss"] < level), None)
            for level in LEVELS
        },
    }


def show(found: dict[str, Any]) -> None:
    for name, one in found.items():
        last = one["curve"][-1]
        print(f"{name}: {last['step']:,} steps, {last['tokens']:,} tokens", end="")
        print(f"; MLM loss {last['mlm_loss']:.3f}, NSP {last['nsp_accuracy']:.1%} right")
        print("  held out:", {k: round(v, 3) for k, v in one["held_out"].items()})
        print("  first step below a loss:", one["steps_to_loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="of bertie prepare")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="NAME=VALUE")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    missing = [name for name in NAMES if not (options.work / name / "model").exists()]
    runs = {name: start(name, options) for name in missing}
    if failed := [name for name, run in runs.items() if run.wait()]:
        sys.exit(f"failed: {', '.join(failed)}; see {options.work}/{failed[0]}.log")
    found = {name: read(options.work / name) for name in NAMES}
    show(found)
    manifest = json.loads((options.store / "manifest.json").read_text())
    result = {
        "recipe": RECIPE,
        "settings": [*SETTINGS, *options.sets],
        "minutes": options.minutes,
        "store": {k: v for k, v in manifest.items() if re.search("num_|vocab", k)},
        "optimizers": found,
    }
    print("saved", machine.save("optimizers", machine.describe("torch", "numpy"), result))


if __name__ == "__main__":
    main()
