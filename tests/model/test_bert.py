"""The whole model: packed = padded = one at a time; neighbours and order change nothing."""

# B sequences   W the longest   D hidden size   H heads   K head size

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.errors import UserError
from bertie.model.bert import Bert, Packed, pack
from tests.model.tiny import TINY, make, sequences

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def padded_encode(model: Bert, ids: list[Tensor], segments: list[Tensor]) -> Tensor:
    """BERT as it is usually written: (B, W) with a mask; gives the real rows in order."""
    width = max(map(len, ids))
    table = torch.stack([F.pad(one, (0, width - len(one))) for one in ids])  # (B, W)
    kinds = torch.stack([F.pad(one, (0, width - len(one))) for one in segments])
    real = torch.arange(width) < torch.tensor([len(one) for one in ids]).unsqueeze(1)  # (B, W)
    x = model.embeddings(table, kinds, torch.arange(width))  # (B, W, D)
    for layer in model.layers:
        query, key, value = layer.attention.qkv(x).chunk(3, -1)
        split = (model.config.num_heads, -1)
        query, key, value = (
            y.unflatten(-1, split).transpose(1, 2) for y in (query, key, value)
        )  # (B, H, W, K)
        scores = query @ key.transpose(-1, -2) / model.config.head_size**0.5
        weights = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).flatten(2)  # (B, W, D)
        x = layer.attention_norm(x + layer.attention.out(mixed))
        x = layer.ffn_norm(x + layer.ffn.down(F.gelu(layer.ffn.up(x))))
    result: Tensor = x[real]
    return result


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lengths", [[5, 1, 19, 5, 2], [1], [19], [1, 1, 1], [7, 7]], ids=str)
def test_packed_is_padded_is_one_at_a_time(
    lengths: list[int], dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    model = make(dtype=dtype)
    ids, segments = sequences(lengths)
    packed = model.encode(*pack(ids, segments))
    padded = padded_encode(model, ids, segments)
    alone = torch.cat([model.encode(*pack([i], [s])) for i, s in zip(ids, segments, strict=True)])
    difference = max((packed - padded).abs().max().item(), (packed - alone).abs().max().item())
    record_property("largest_difference", difference)
    assert difference < TOLERANCE[dtype]


@given(lengths=st.lists(st.integers(1, 19), min_size=1, max_size=7), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_batch_changes_nothing(lengths: list[int], seed: int) -> None:
    model = make(heads=("masked_lm", "next_sentence", "sequence", "token", "span", "choice"))
    ids, segments = sequences(lengths, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    straight, mixed = (
        pack(ids, segments),
        pack([ids[n] for n in order], [segments[n] for n in order]),
    )
    rows = torch.cat(
        [torch.arange(int(straight.bounds[n]), int(straight.bounds[n + 1])) for n in order]
    )
    for one, other in zip(model(*straight), model(*mixed), strict=True):
        moved = one[rows] if len(one) == len(rows) != len(order) else one[order]
        torch.testing.assert_close(moved, other, rtol=0, atol=1e-10)


def test_the_compiled_graph_is_whole_and_equal() -> None:
    model = make(heads=("masked_lm", "next_sentence"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    predicted = torch.tensor([0, 4, 5])
    for lengths in ([3, 1, 6], [6, 2, 2]):
        batch = pack(*sequences(lengths))._replace(longest=8)
        for one, other in zip(
            compiled(*batch, predicted=predicted), model(*batch, predicted=predicted), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_states_begin_with_the_embeddings_and_end_with_the_last_layer() -> None:
    model, batch = make(), pack(*sequences([4, 1, 9]))
    states = model.states(*batch)
    assert len(states) == TINY.num_layers + 1
    assert torch.equal(states[0], model.embeddings(batch.ids, batch.segments, batch.positions))
    assert torch.equal(states[-1], model.encode(*batch))
    assert torch.equal(states[2], model.layers[1](states[1], batch.bounds, batch.longest))


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    batch = pack([torch.zeros(20, dtype=torch.long)])
    for call in (make(heads=("span",)), make().encode, make().states):
        with pytest.raises(UserError, match="a sequence of 20 tokens; the model has 19 positions"):
            call(*batch)


def test_empty_sequences_and_a_tail_change_nothing_before_them() -> None:
    model = make(has_pooler=True)
    ids, segments = sequences([4, 6])
    plain, filled = pack(ids, segments), pack([*ids, torch.zeros(3, dtype=torch.long)])
    filled = Packed(
        filled.ids,
        torch.cat([plain.segments, torch.zeros(3, dtype=torch.long)]),
        filled.positions,
        torch.cat([filled.bounds, filled.bounds[-1:], filled.bounds[-1:]]),  # two empty ones
        longest=19,
    )
    hidden, hidden_filled = model.encode(*plain), model.encode(*filled)
    torch.testing.assert_close(hidden, hidden_filled[:10], rtol=0, atol=1e-10)
    pooled = model.pool(hidden_filled, filled.bounds)
    torch.testing.assert_close(model.pool(hidden, plain.bounds), pooled[:2], rtol=0, atol=1e-10)
    assert pooled.shape == (5, 24)


def test_every_parameter_gets_a_gradient() -> None:
    model = make(heads=("masked_lm", "next_sentence", "sequence", "token", "span", "choice"))
    ids, segments = sequences([18, 12, 1])
    ids[0] = torch.arange(18)  # so that the rows of the embedding that are used are known
    logits = model.train()(*pack(ids, segments), predicted=torch.tensor([2, 3]))
    sum(one.square().sum() for one in logits).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_weights_begin_as_a_cut_normal_distribution() -> None:
    model = Bert(replace(TINY, hidden_size=192, init_std=0.02), ("masked_lm", "sequence"))
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.abs().max() <= 0.04, name
            # cut at two deviations, a normal distribution keeps 0.8796 of its deviation
            assert parameter.std().item() == pytest.approx(0.01759, rel=0.1), name


def test_the_same_generator_gives_the_same_model() -> None:
    one, two = make(), make()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    other = Bert(TINY, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(one.embeddings.token.weight, other.embeddings.token.weight)


def test_the_output_layer_makes_logits_of_the_rows_that_are_not_projected() -> None:
    model = make(heads=("next_sentence", "masked_lm"))
    packed, predicted = pack(*sequences([5, 1, 19])), torch.tensor([0, 3, 24])
    pairs, logits = model(*packed, predicted=predicted)
    same_pairs, rows = model(*packed, predicted=predicted, is_projected=False)
    assert rows.shape == (3, TINY.hidden_size) and torch.equal(pairs, same_pairs)
    torch.testing.assert_close(F.linear(rows, *model.output_layer()), logits)


@pytest.mark.parametrize("num_layers", [None, 0, 1])
def test_kept_rows_are_those_of_all(num_layers: int | None) -> None:
    model, packed = make().eval(), pack(*sequences([4, 1, 7]))
    kept = torch.tensor([3, 0, 3, len(packed.ids) - 1])
    with torch.inference_mode():
        whole = model.encode(*packed, num_layers=num_layers)
        part = model.encode(*packed, num_layers=num_layers, kept=kept)
    torch.testing.assert_close(part, whole[kept], rtol=1e-5, atol=1e-5)
