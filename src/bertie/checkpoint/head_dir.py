"""A head on features, in a folder: head.safetensors, head.json and task.json.

head.json says which features it reads, so that those of another model are refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.checkpoint.card import TaskCard, write_card
from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.json_files import read_json, write_json
from bertie.config import build
from bertie.errors import UserError
from bertie.model.feature_head import FeatureHead, HeadShape, LookUp

HEAD, WEIGHTS = "head.json", "head.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadRecord:
    """What a head is, and what features it was trained on."""

    shape: HeadShape
    layers: tuple[int, ...]  # of the model
    model: str  # its directory, to be shown
    model_sha256: str  # its identity


def is_head(directory: Path) -> bool:
    return (directory / HEAD).is_file()


def refuse_head(directory: Path) -> None:
    """Raises where a whole model is wanted, and this is a head."""
    if is_head(directory):
        model = read_head(directory).model
        raise UserError(
            f"{directory} is a head on the features of {model}, not a whole model: it reads "
            "feature stores, not texts. Score it: bertie features MODEL DATA --out STORE, then "
            f"bertie evaluate {directory} --data STORE. For texts, fine-tune a whole model: bertie "
            f"finetune --model {model}"
        )


def save_head(
    weights: Mapping[str, Tensor], directory: Path, *, record: HeadRecord, card: TaskCard
) -> None:
    """Whole or not at all; an older one of that name is replaced."""
    with draft_of(directory) as draft:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, draft / WEIGHTS)
        write_json(draft / HEAD, asdict(record))
        write_card(draft, card)


def read_head(directory: Path) -> HeadRecord:
    path = directory / HEAD
    try:
        return build(HeadRecord, read_json(path))
    except (UserError, TypeError) as error:
        raise UserError(f"{path} is no head's record: {error}") from None


def open_head(directory: Path, look_up: LookUp) -> FeatureHead:
    """The head of a folder, on features that `look_up` gives."""
    path = directory / WEIGHTS
    with torch.device("meta"):
        head = FeatureHead(read_head(directory).shape, look_up)
    try:
        # Copied: where the file has them lie odd, sums are rounded otherwise.
        weights = {name: weight.clone() for name, weight in load_file(path).items()}
        head.load_state_dict(weights, assign=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"{path} does not hold the weights of its head: {reason}") from None
    for parameter in head.parameters():
        parameter.requires_grad_(True)
    return head.eval()
