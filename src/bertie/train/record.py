"""What the folder of a run remembers, and whether a run may go on in it."""

import os
import platform
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bertie import __version__
from bertie.checkpoint.json_files import write_json
from bertie.checkpoint.state import Checkpoint, find_checkpoint, remove_drafts
from bertie.errors import UserError
from bertie.train.distributed import World

RECORD = "run.json"
ROOT = Path(__file__).parents[3]  # of a checkout; of an installed package it is nothing of ours
# What may be changed when a run of any kind goes on: it does not change what is learned.
HARMLESS_TO_ALL = {
    "train.recompute",
    "train.kernels",
    "train.graphs",
    "train.sharding",
    "train.device",
    "train.threads",
    "train.log_every",
    "train.save_every",
    "train.keep",
    "train.tensorboard",
}


def begin_record(
    folder: Path,
    settings: Mapping[str, Any],
    world: World,
    *,
    command: Sequence[str],
    **more: object,
) -> None:
    """Says in run.json what is run, on what; and clears away what a killed run left.

    `command` is what was typed, word by word.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_drafts(folder)
    values = {
        "command": list(command),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "settings": settings,
        **more,
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.platform()}, {platform.processor() or platform.machine()}",
        "gpu": name_gpu(world),
        "versions": {
            "bertie": __version__,
            "commit": find_commit(ROOT),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    write_json(folder / RECORD, values)


def find_commit(root: Path) -> str | None:
    """What this code is a checkout of, "-dirty" if a file that git knows was changed since.

    None where it is no checkout, though it may lie inside somebody's.
    """
    if not ((root / ".git").exists() and (root / "src" / "bertie").is_dir()):
        return None
    words = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    command = ["git", "-C", str(root), *words]
    # A hook of git's has variables that name its own repository; and nobody's locks are taken.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=own, timeout=5
        )
    except (OSError, subprocess.SubprocessError):  # there is no git, or it has nothing to say
        return None
    return done.stdout.strip()


def name_gpu(world: World) -> str | None:
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else None


def find_common_checkpoint(folder: Path, world: World) -> Checkpoint | None:
    """The newest checkpoint; all ranks must see the same one."""
    checkpoint = find_checkpoint(folder)
    step = 0 if checkpoint is None else checkpoint.counters.step
    if world.least(step) != -world.least(-step):
        raise UserError(
            f"rank {world.rank} sees step {step} in {folder}, others see another; all machines "
            "must see the same folder"
        )
    return checkpoint


def check_same(
    folder: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    harmless: Collection[str],
) -> None:
    """A run goes on with the settings it began with, or not at all; but for the harmless ones."""
    old, new = flatten(before), flatten(now)
    for name in sorted(old.keys() | new.keys()):
        if not is_one_of(name, harmless) and old.get(name) != new.get(name):
            raise UserError(
                f"{folder} was trained with {name} = {old.get(name)}, the recipe says "
                f"{new.get(name)}; take the same settings, or another --out"
            )


def is_one_of(name: str, settings: Collection[str]) -> bool:
    """
    >>> is_one_of("data.test.0", ["data.test"]), is_one_of("data.tests", ["data.test"])
    (True, False)
    """
    return any(name == one or name.startswith(f"{one}.") for one in settings)


def flatten(values: Any, path: str = "") -> dict[str, Any]:
    """
    >>> flatten({"train": {"seed": 3}, "phases": [{"share": 1}]})
    {'train.seed': 3, 'phases.0.share': 1}
    """
    if isinstance(values, list | tuple):
        values = {str(n): value for n, value in enumerate(values)}
    if not isinstance(values, Mapping):
        return {path: values}
    parts = [flatten(v, f"{path}.{name}" if path else name) for name, v in values.items()]
    return {name: value for part in parts for name, value in part.items()}
