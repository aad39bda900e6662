"""Heads that were trained on one frozen encoder need it in memory once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
    return one.config == other.config and all(
        has_same_weights(one.get_submodule(part), other.get_submodule(part)) for part in SHARED
    )


def has_same_weights(one: nn.Module, other: nn.Module) -> bool:
    """All that is in them, also where it was laid out for a CPU."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        weight.dtype == second[name].dtype and torch.equal(plain(weight), plain(second[name]))
        for name, weight in first.items()
    )


def plain(weight: Tensor) -> Tensor:
    return weight.to_dense() if weight.is_mkldnn else weight
