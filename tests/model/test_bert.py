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
from bertie.model.config import ModelConfig
from tests.model.tiny import TINY, VARIANTS, directed, make, sequences

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
    kept = torch.tensor([1, 4, 2])
    for num_layers in (None, 1, 0):
        some = model.states(*batch, num_layers=num_layers, kept=kept)
        for one, whole in zip(some, states, strict=num_layers is None):
            torch.testing.assert_close(one, whole[kept])
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


@pytest.mark.parametrize("config", [TINY, *VARIANTS.values()], ids=["plain", *VARIANTS])
@pytest.mark.parametrize("num_layers", [None, 0, 1])
def test_kept_rows_are_those_of_all(config: ModelConfig, num_layers: int | None) -> None:
    model, packed = make(config), pack(*sequences([4, 1, 7]))
    kept = torch.tensor([3, 0, 3, len(packed.ids) - 1])
    with torch.inference_mode():
        whole = model.encode(*packed, num_layers=num_layers)
        part = model.encode(*packed, num_layers=num_layers, kept=kept)
    torch.testing.assert_close(part, whole[kept], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("lengths", [[5, 1, 19, 5, 2], [1], [7, 7]], ids=str)
def test_neighbours_change_nothing_in_any_variant(name: str, lengths: list[int]) -> None:
    config = VARIANTS[name]
    model = make(config, heads=("masked_lm", "sequence", *directed(config)))
    ids, segments = sequences(lengths)
    together = model(*pack(ids, segments))
    alone = [model(*pack([i], [s])) for i, s in zip(ids, segments, strict=True)]
    for one, *parts in zip(together, *alone, strict=True):
        torch.testing.assert_close(one, torch.cat(parts), rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("is_training", [False, True], ids=["eval", "train"])
def test_attention_to_the_left_never_sees_the_right(is_padded: bool, is_training: bool) -> None:
    """Another token changes no row before it and every row from it on; no neighbour at all."""
    model = make(replace(VARIANTS["left"], dropout=0.2, attention_dropout=0.3))
    model.train(is_training)
    ids, segments = sequences([6, 1, 19, 6])
    batch = pack(ids, segments)
    encode = torch.compile(model.encode, backend="eager") if is_padded else model.encode
    torch.manual_seed(0)
    before = encode(*batch)
    for place in (0, 3, 6, 15, 31):
        changed = batch.ids.clone()
        changed[place] = (changed[place] + 1) % 30
        torch.manual_seed(0)
        after = encode(*batch._replace(ids=changed))
        end = int(batch.bounds[batch.bounds > place][0])
        is_same = (before == after).all(1)
        assert is_same[:place].all()
        assert is_same[end:].all()
        assert not is_same[place:end].any()


def test_padded_attention_to_the_left_is_that_of_runs() -> None:
    model = make(VARIANTS["left"])
    batch = pack(*sequences([5, 1, 19, 5, 2]))
    padded = torch.compile(model.encode, backend="eager")(*batch)
    torch.testing.assert_close(padded, model.encode(*batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["lstm", "lstm, factorised"])
def test_directions_of_lstms_never_meet(name: str) -> None:
    """The left half of a row changes with what is before it alone, the right half with the rest."""
    model = make(VARIANTS[name])
    batch = pack(*sequences([6, 1, 9, 6]))
    before = model.states(*batch)
    for place in (0, 4, 6, 10):
        changed = batch.ids.clone()
        changed[place] = (changed[place] + 1) % 30
        after = model.states(*batch._replace(ids=changed))
        start = int(batch.bounds[batch.bounds <= place][-1])
        end = int(batch.bounds[batch.bounds > place][0])
        for one, two in zip(before[1:], after[1:], strict=True):
            ahead, back = ((one == two)[:, half].all(1) for half in (slice(12), slice(12, 24)))
            assert ahead[:place].all()
            assert ahead[end:].all()
            assert not ahead[place:end].any()
            assert back[place + 1 :].all()
            assert back[:start].all()
            assert not back[start : place + 1].any()


@pytest.mark.parametrize("name", ["shared", "albert", "all"])
def test_shared_layers_have_one_set_of_weights(name: str) -> None:
    model = make(VARIANTS[name])
    assert len(model.layers) == TINY.num_layers
    assert len(set(model.layers)) == 1
    assert not any(key.startswith("layers.1") for key, _ in model.named_parameters())
    batch = pack(*sequences([4, 9]))
    before = model.states(*batch)
    with torch.no_grad():
        model.layers[2].ffn.up.weight.add_(1.0)  # of the last, and so of the first
    assert not torch.equal(model.states(*batch)[1], before[1])


def test_a_model_that_looks_left_is_pooled_at_its_last_token() -> None:
    model = make(VARIANTS["left"], has_pooler=True)
    batch = pack(*sequences([4, 1, 9]))
    hidden = model.encode(*batch)
    expected = model.pooler.dense(hidden[[3, 4, 13]]).tanh()
    assert torch.equal(model.pool(hidden, batch.bounds), expected)
    ended = torch.cat([batch.bounds, batch.bounds[-1:]])  # an empty sequence behind, as in a tail
    torch.testing.assert_close(model.pool(hidden, ended)[:3], expected)


def test_products_of_embeddings_and_waves_are_what_they_say() -> None:
    config = replace(TINY, combine="product", positions="sinusoidal")
    parts = make(config).embeddings
    assert "position.weight" not in parts.state_dict()
    ids, segments, positions = torch.tensor([3, 3, 9]), torch.tensor([0, 1, 1]), torch.arange(3)
    place = parts.place(positions)
    angle = 2 / 10_000 ** (4 / 24)  # of position 2, in columns 4 and 5
    expected = 2**0.5 * TINY.init_std * torch.tensor([angle]).sin()
    torch.testing.assert_close(place[2, 4:5], expected.double(), rtol=1e-6, atol=0)
    product = parts.token.weight[ids] * parts.segment.weight[segments] * place
    torch.testing.assert_close(parts(ids, segments, positions), parts.norm(product))


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_seeds_make_equal_models(name: str) -> None:
    config = VARIANTS[name]
    one, two = (Bert(config, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
