"""Heads on features: neighbours change nothing, sums learn, and a share of 1 is a single layer."""

from itertools import product

import pytest
import torch
from torch import Tensor

from bertie.errors import UserError
from bertie.model.feature_head import (
    Combination,
    FeatureHead,
    HeadKind,
    HeadShape,
    WeightedSum,
    combined_layers,
    make_feature_head,
    mean_rows,
)

LENGTHS = (3, 1, 7, 3)
VECTORS = torch.randn(sum(LENGTHS), 4, 6, generator=torch.Generator().manual_seed(3)).half()


def make_shape(
    kind: HeadKind = "bilstm",
    combination: Combination = "weighted-last-4",
    *,
    reads: str = "tokens",
    num_vectors: int = 4,
) -> HeadShape:
    return HeadShape(
        kind=kind,
        reads=reads,
        combination=combination,
        num_vectors=num_vectors,
        vector_size=6,
        hidden_size=5,
        num_layers=2,
        dropout=0.0,
        num_labels=3,
    )


def make_head(shape: HeadShape, seed: int = 0) -> FeatureHead:
    return make_feature_head(shape, lambda ids: VECTORS[ids, : shape.num_vectors], seed)


def run(head: FeatureHead, numbers: list[int]) -> list[Tensor]:
    """The logits of some of the inputs, which are read together in this order."""
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    lengths = [LENGTHS[n] for n in numbers]
    ids = torch.cat([torch.arange(int(starts[n]), int(starts[n + 1])) for n in numbers])
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    (logits,) = head(ids, torch.zeros_like(ids), positions, bounds, max(lengths))
    is_of_tokens = head.shape.reads == "tokens"
    return list(logits.split(lengths)) if is_of_tokens else list(logits.split(1))


@pytest.mark.parametrize(
    ("kind", "reads"),
    [*product(["bilstm", "linear"], ["tokens", "inputs"]), ("mean", "inputs")],
)
@pytest.mark.parametrize("combination", ["weighted-last-4", "concat-last-4", "last"])
def test_neighbours_and_their_order_change_nothing(
    kind: HeadKind, combination: Combination, reads: str
) -> None:
    num_vectors = 1 if combination == "last" else 4
    head = make_head(make_shape(kind, combination, reads=reads, num_vectors=num_vectors))
    together, turned = run(head, [0, 1, 2, 3]), run(head, [2, 3, 1, 0])
    for place, number in enumerate((2, 3, 1, 0)):
        (alone,) = run(head, [number])
        torch.testing.assert_close(together[number], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(turned[place], alone, rtol=1e-5, atol=1e-6)


def test_the_bilstm_is_torchs() -> None:
    head = make_head(make_shape())
    assert head.bilstm is not None
    for number, start in enumerate((0, 3, 4, 11)):
        mixed = VECTORS[start : start + LENGTHS[number]].float().mean(1)  # equal shares at first
        out, _ = head.bilstm.lstm(mixed)
        (found,) = run(head, [number])
        torch.testing.assert_close(found, head.classifier(out), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", range(4))
def test_a_sum_with_one_share_is_a_single_layer(layer: int) -> None:
    mix = WeightedSum(4)
    with torch.no_grad():
        mix.logits[layer] = 200.0
    torch.testing.assert_close(mix(VECTORS.float()), VECTORS[:, layer].float())


def test_a_fresh_sum_is_the_mean() -> None:
    torch.testing.assert_close(WeightedSum(4)(VECTORS.float()), VECTORS.float().mean(1))


def test_a_sum_learns_which_layer_knows() -> None:
    """Only layer 2 tells the labels."""
    labels = (VECTORS[:, 2, 0] > 0).long()
    head = make_head(make_shape("linear"))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.cat(run(head, [0, 1, 2, 3])), labels)
        loss.backward()
        optimizer.step()
    shares = head.mix.logits.softmax(0)
    assert loss < 0.1 and shares.argmax() == 2 and shares[2] > 0.4


def test_concatenation_keeps_the_layers_apart() -> None:
    head = make_head(make_shape("linear", "concat-last-4"))
    assert head.classifier.in_features == 24
    weight = head.classifier.weight.unflatten(1, (4, 6))  # (C, K, D)
    expected = torch.einsum("tkd,ckd->tc", VECTORS.float(), weight) + head.classifier.bias
    torch.testing.assert_close(torch.cat(run(head, [0, 1, 2, 3])), expected)


def test_a_linear_head_reads_the_first_row_of_a_text_and_mean_all() -> None:
    linear = make_head(make_shape("linear", "last", reads="inputs", num_vectors=1))
    torch.testing.assert_close(run(linear, [2])[0], linear.classifier(VECTORS[4:5, 0].float()))
    mean = make_head(make_shape("mean", "last", reads="inputs", num_vectors=1))
    expected = mean.classifier(VECTORS[4:11, 0].float().mean(0, keepdim=True))
    torch.testing.assert_close(run(mean, [2])[0], expected)


def test_mean_rows_of_half_precision_are_added_in_full() -> None:
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).bfloat16() + 3
    found = mean_rows(rows, torch.tensor([0, 300]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0], rows.double().mean(0).float())


def test_mean_rows() -> None:
    found = mean_rows(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 6]))
    assert found.tolist() == [[0, 1], [6, 7]]


def test_equal_seeds_are_equal_heads_and_leave_torchs_chance_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (make_head(make_shape(), seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))
    assert not torch.equal(one.classifier.weight, other.classifier.weight)


@pytest.mark.parametrize(
    ("combination", "layers"),
    [
        ("embeddings", (0,)),
        ("second-to-last", (5,)),
        ("last", (6,)),
        ("weighted-last-4", (3, 4, 5, 6)),
        ("concat-last-4", (3, 4, 5, 6)),
        ("weighted-all", (1, 2, 3, 4, 5, 6)),
    ],
)
def test_the_six_combinations(combination: Combination, layers: tuple[int, ...]) -> None:
    assert combined_layers(combination, 6) == layers


@pytest.mark.parametrize(
    ("combination", "num_layers"),
    [("weighted-last-4", 3), ("concat-last-4", 3), ("second-to-last", 1)],
)
def test_too_few_layers_are_named(combination: Combination, num_layers: int) -> None:
    with pytest.raises(UserError, match=f"{combination} reads more layers .* which are"):
        combined_layers(combination, num_layers)
    assert combined_layers("last", 1) == (1,) and combined_layers("embeddings", 1) == (0,)


def test_a_mean_of_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="take linear"):
        make_shape("mean", reads="tokens")
