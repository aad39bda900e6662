"""Checkpoints of a training run: a model directory, the optimizer's tensors and the counters.

RUN/checkpoints/step-00000100/{model/, state.safetensors, state.json}; each appears whole or not at
all, and is verified before it is used.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.model_dir import save_model
from bertie.errors import UserError
from bertie.model.bert import Bert

MODEL, TENSORS, STATE = "model", "state.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """How far a run has come; all that depends on progress is a function of these."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0  # steps whose gradient was not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    folder: Path
    counters: Counters
    settings: Mapping[str, Any]  # of the run that wrote it

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    def load_tensors(self) -> dict[str, Tensor]:
        return load_file(self.folder / TENSORS)


def save_checkpoint(
    run: Path,
    model: Bert,
    tensors: Mapping[str, Tensor],
    counters: Counters,
    *,
    settings: Mapping[str, Any],
    tokenizer_from: Path,
    keep: int,
) -> Path:
    """Writes a checkpoint, then removes all but the last `keep`."""
    folder = run / "checkpoints" / f"step-{counters.step:08}"
    with draft_of(folder) as draft:
        save_model(model, draft / MODEL, tokenizer_from=tokenizer_from)
        save_file({name: t.contiguous() for name, t in tensors.items()}, draft / TENSORS)
        files = [draft / TENSORS, *sorted((draft / MODEL).iterdir())]
        hashes = {path.relative_to(draft).as_posix(): hash_file(path) for path in files}
        values = {"counters": asdict(counters), "hashes": hashes, "settings": dict(settings)}
        write_json(draft / STATE, values)
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def list_checkpoints(run: Path) -> list[Path]:
    """From the oldest to the newest."""
    return sorted((run / "checkpoints").glob("step-*"))


def find_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; none if the run has not come so far."""
    damaged = []
    for folder in reversed(list_checkpoints(run)):
        try:
            return verify(folder)
        except (UserError, OSError, KeyError, TypeError, SafetensorError) as error:
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
        folder=folder, counters=Counters(**values["counters"]), settings=values["settings"]
    )


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
