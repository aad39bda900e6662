"""Embeddings in one pass are those of torch, in float64: rows, and gradients of all tables."""

import pytest
import torch

from bertie.kernels.embeddings import EmbeddingWeights, Places, embed, embed_plain
from tests.kernels.closeness import check_close


def make(num_tokens, size, device):
    generator = torch.Generator().manual_seed(num_tokens)
    tables = [torch.randn(count, size, generator=generator) for count in (40, 2, 33)]
    norms = [1 + torch.randn(size, generator=generator), torch.randn(size, generator=generator)]
    weights = EmbeddingWeights(*(part.to(device) for part in (*tables, *norms)))
    places = Places(
        *(torch.randint(len(t), (num_tokens,), generator=generator).to(device) for t in tables)
    )
    gradient = torch.randn(num_tokens, size, generator=generator).to(device)
    return places, weights, gradient


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("num_tokens, size", [(1, 64), (17, 96), (300, 128), (5, 1100)])
def test_rows_and_gradients_are_torchs(num_tokens, size, dropout, dtype, device):
    places, weights, gradient = make(num_tokens, size, device)
    seed = torch.tensor([7], device=device)
    exact = EmbeddingWeights(*(part.double().requires_grad_() for part in weights))
    wanted = embed_plain(places, seed, exact, dropout=dropout, eps=1e-12)
    rounded = gradient.to(dtype)
    wanted_gradients = torch.autograd.grad(wanted, exact, rounded.double())
    learned = EmbeddingWeights(*(part.requires_grad_() for part in weights))
    rows = embed(places, seed, learned, dropout=dropout, eps=1e-12, dtype=dtype)
    gradients = torch.autograd.grad(rows, learned, rounded)
    assert rows.dtype == dtype and {one.dtype for one in gradients} == {torch.float32}
    check_close([rows], [wanted], dtype)
    check_close(gradients, wanted_gradients, torch.float16)
    assert dropout == 0 or bool((rows == 0).any()) or num_tokens == 1
