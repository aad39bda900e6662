"""A small awkward model and small awkward sequences."""

import torch
from torch import Tensor

from bertie.model.bert import Bert
from bertie.model.config import ModelConfig

TINY = ModelConfig(
    vocab_size=37,
    hidden_size=24,
    num_layers=3,
    num_heads=3,
    ffn_size=40,
    max_positions=19,
    num_segments=2,
    init_std=0.3,  # large, so that a mistake is no rounding error
)


def make(config: ModelConfig = TINY, dtype: torch.dtype = torch.float64, **kwargs: object) -> Bert:
    model = Bert(config, generator=torch.Generator().manual_seed(3), **kwargs)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # not all 0 and 1
                parameter += torch.linspace(-0.2, 0.2, parameter.numel())
    return model.to(dtype).eval()


def sequences(lengths: list[int], seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 30, (n,), generator=rng) for n in lengths]
    return ids, [(torch.arange(n) > n // 2).long() for n in lengths]
