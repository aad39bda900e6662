"""Heads that were trained on one frozen encoder need it in memory once."""

from collections.abc import Sequence

import torch

from bertie.infer.engine import Engine
from bertie.model.bert import Bert

SHARED = ("embeddings", "layers")


def share_encoders(engines: Sequence[Engine]) -> int:
    """Lets models on one device whose encoders are equal use the first one's; how many now do."""
    kept: list[Bert] = []
    num_shared = 0
    for engine in engines:
        twin = next((one for one in kept if has_same_encoder(one, engine.model)), None)
        if twin is None:
            kept.append(engine.model)
            continue
        for part in SHARED:
            setattr(engine.model, part, twin.get_submodule(part))
        num_shared += 1
    return num_shared


def has_same_encoder(one: Bert, other: Bert) -> bool:
    if one.config != other.config:
        return False
    return all(
        weight.dtype == other_weight.dtype and torch.equal(weight, other_weight)
        for part in SHARED
        for weight, other_weight in zip(
            one.get_submodule(part).parameters(),
            other.get_submodule(part).parameters(),
            strict=True,
        )
    )
