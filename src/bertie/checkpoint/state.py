"""Checkpoints of a training run: a model directory, the optimizer's tensors and the counters.

RUN/checkpoints/step-00000100/{model/, state.safetensors, state.json}; each appears whole or not at
all, and is verified before it is used.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.json_files import read_json, write_json
from bertie.errors import UserError
from bertie.text.disk import hash_file

MODEL, TENSORS, STATE = "model", "state.safetensors", "state.json"
NAME = re.compile("step-[0-9]{8,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """How far a run has come; all that depends on progress is a function of these."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # by the first rank's clock
    phase: int = 0
    phase_step: int = 0  # steps of this phase that are done
    ended: tuple[int, ...] = ()  # steps of the phases before it
    skipped: int = 0  # steps whose gradient was not finite
    loss_scale: float = 1.0  # what losses are multiplied by, in fp16
    scaled_steps: int = 0  # since the scale was last changed
    best_score: float | None = None  # of all evaluations so far
    num_worse: int = 0  # evaluations since then

    def __post_init__(self) -> None:
        object.__setattr__(self, "ended", tuple(self.ended))  # JSON knows lists alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    folder: Path
    counters: Counters
    settings: Mapping[str, Any]  # of the run that wrote it
    score: float | None  # on held-out data, higher is better; none: not evaluated
    kept: Mapping[str, Any]  # what else a resumed run goes on with

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    def load_tensors(self) -> dict[str, Tensor]:
        return load_file(self.folder / TENSORS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Where a run writes its checkpoints, what each of them carries, and how many are kept."""

    folder: Path
    settings: Mapping[str, Any]
    write: Callable[[Mapping[str, Tensor], Path], None]  # a model's weights, to a folder
    keep: int  # the newest; the one with the best score stays too
    kept: Mapping[str, Any]  # what else a resumed run goes on with


def save_checkpoint(
    saving: Saving,
    weights: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    counters: Counters,
    *,
    score: float | None,
    log: Mapping[str, Any] | None,
) -> Path:
    """Writes a checkpoint, then removes those that are neither new nor the best."""
    folder = saving.folder / "checkpoints" / f"step-{counters.step:08}"
    try:
        with draft_of(folder) as draft:
            saving.write(weights, draft / MODEL)
            save_file({name: t.contiguous() for name, t in tensors.items()}, draft / TENSORS)
            files = [draft / TENSORS, *sorted((draft / MODEL).iterdir())]
            hashes = {path.relative_to(draft).as_posix(): hash_file(path) for path in files}
            values = {
                "counters": asdict(counters),
                "score": score,
                "kept": dict(saving.kept) | {"log": log},
                "hashes": hashes,
                "settings": dict(saving.settings),
            }
            write_json(draft / STATE, values)
    except OSError as error:
        before = list_checkpoints(saving.folder)
        rest = f"the last one, {before[-1]}, is whole" if before else "there is none before it"
        raise UserError(
            f"the checkpoint of step {counters.step} could not be written: {error}; {rest}. "
            "Make room and give the same command again"
        ) from None
    remove_old(folder, saving.keep)
    return folder


def remove_old(newest: Path, keep: int) -> None:
    """Removes all checkpoints but the newest few and the one with the best score.

    One of a later step is damaged, or the run would have gone on from it: it counts nowhere.
    """
    there = list_checkpoints(newest.parents[1])
    done = [folder for folder in there if step_of(folder) <= step_of(newest)]
    best = choose_best(done)
    for folder in done[:-keep]:
        if folder != best:
            shutil.rmtree(folder)


def remove_drafts(run: Path) -> None:
    """Removes what a run that was killed in mid-write left behind."""
    for pattern in (".*.draft-*", ".*.old-*"):
        for left in (*run.glob(pattern), *(run / "checkpoints").glob(pattern)):
            if left.is_file():
                left.unlink()
            else:
                shutil.rmtree(left)


def list_checkpoints(run: Path) -> list[Path]:
    """From the oldest to the newest; what has another name is somebody's own."""
    found = [path for path in (run / "checkpoints").glob("step-*") if NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def find_best(run: Path) -> Path | None:
    """The checkpoint with the best score, the newest of equals; none if none has a score."""
    return choose_best(list_checkpoints(run))


def choose_best(folders: Iterable[Path]) -> Path | None:
    scores = {folder: read_score(folder) for folder in folders}
    scored = {folder: score for folder, score in scores.items() if score is not None}
    return max(scored, key=lambda folder: (scored[folder], step_of(folder)), default=None)


def read_score(folder: Path) -> float | None:
    """None: not evaluated, or the model had diverged, or the folder is half deleted."""
    try:
        score: float | None = read_json(folder / STATE)["score"]
        return score if score is not None and math.isfinite(score) else None
    except (UserError, OSError, KeyError, TypeError):
        return None


def find_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; none if the run has not come so far."""
    damaged = []
    for folder in reversed(list_checkpoints(run)):
        try:
            return verify(folder)
        except (UserError, OSError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            damaged.append(f"{folder}: {error}")
    if damaged:
        raise UserError(f"no checkpoint of {run} is whole; {damaged[0]}")
    return None


def verify(folder: Path) -> Checkpoint:
    """The checkpoint of a folder; refused if a file is not what was written."""
    values = read_json(folder / STATE)
    for name, expected in values["hashes"].items():
        if hash_file(folder / name) != expected:
            raise UserError(f"{folder / name} was changed or damaged since it was written")
    return Checkpoint(
        folder=folder,
        counters=Counters(**values["counters"]),
        settings=values["settings"],
        score=values["score"],
        kept=values["kept"],
    )
