"""A small awkward model and small awkward sequences."""

from dataclasses import replace

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
VARIANTS = {
    "left": replace(TINY, attention="left"),
    "factorised": replace(TINY, embedding_size=10),
    "shared": replace(TINY, share_layers=True),
    "albert": replace(TINY, embedding_size=11, share_layers=True),
    "sinusoidal": replace(TINY, positions="sinusoidal", embedding_size=7),
    "product": replace(TINY, combine="product"),
    "lstm": replace(TINY, layer="lstm"),
    "lstm, factorised": replace(TINY, layer="lstm", embedding_size=10),
    "lstm on top": replace(TINY, bilstm_layers=2),
    "left, LSTM on top": replace(TINY, attention="left", bilstm_layers=1),
    "all": replace(
        TINY,
        attention="left",
        embedding_size=30,
        share_layers=True,
        positions="sinusoidal",
        combine="product",
    ),
}


def directed(config: ModelConfig) -> tuple[str, ...]:
    """The heads that such a model can have and a plain BERT cannot."""
    if config.bilstm_layers:  # which reads both ways
        return ()
    if config.layer == "lstm":
        return ("next_token", "previous_token")
    return ("next_token",) if config.attention == "left" else ()


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
