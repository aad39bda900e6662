"""The shape of a model and what it costs, counted before anything is built."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertie.config import build
from bertie.errors import UserError
from bertie.model.bert import Bert, pack
from bertie.model.config import (
    DIRECTED,
    SIZES,
    Memory,
    ModelConfig,
    count_parameters,
    encoder_parts,
    head_parts,
    infer_flops,
    infer_memory,
    named_size,
    train_flops,
    train_memory,
)
from bertie.model.heads import HEADS
from tests.model.tiny import VARIANTS, directed

PRETRAINING = ("masked_lm", "next_sentence")
PLAIN = tuple(head for head in HEADS if head not in DIRECTED)
ODD = ModelConfig(
    vocab_size=37,
    hidden_size=12,
    num_layers=3,
    num_heads=2,
    ffn_size=20,
    max_positions=11,
    num_segments=3,
)


@pytest.mark.parametrize(
    ("size", "encoder", "with_heads"),
    [("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108)],
)
def test_the_published_sizes_have_the_published_counts(
    size: str, encoder: int, with_heads: int
) -> None:
    config = named_size(size)
    assert count_parameters(config) == encoder
    assert count_parameters(config, PRETRAINING) == with_heads


@pytest.mark.parametrize("config", [*map(named_size, SIZES), ODD], ids=[*SIZES, "odd"])
@pytest.mark.parametrize("heads", [(), PRETRAINING, ("sequence",), PLAIN], ids=str)
def test_the_built_module_has_as_many_parameters_as_were_counted(
    config: ModelConfig, heads: tuple[str, ...]
) -> None:
    with torch.device("meta"):
        model = Bert(config, heads, num_labels=5, has_pooler=True)
    counted = count_parameters(config, heads, num_labels=5)
    assert sum(p.numel() for p in model.parameters()) == counted


@pytest.mark.parametrize("config", [ODD, *VARIANTS.values()], ids=["odd", *VARIANTS])
def test_every_part_is_counted_as_its_formula_says(config: ModelConfig) -> None:
    c = config
    letters = {
        "V": c.vocab_size,
        "H": c.hidden_size,
        "P": c.max_positions,
        "S": c.num_segments,
        "L": c.num_layers,
        "F": c.ffn_size,
        "E": c.embedding_size,
        "T": c.bilstm_layers,
        "C": 7,
    }
    parts = encoder_parts(c) + head_parts(c, (*PLAIN, *directed(c)), 7)
    for part in parts:
        formula = part.formula.replace("·", "*").replace("²", "**2")
        formula = re.sub(r"(\d)(?=[HE])", r"\1*", formula)
        assert eval(formula, {}, letters) == part.count, part
    with torch.device("meta"):
        model = Bert(c, (*PLAIN, *directed(c)), num_labels=7, has_pooler=True)
    assert sum(p.numel() for p in model.parameters()) == sum(part.count for part in parts)


def test_albert_base_has_the_published_count() -> None:
    albert = ModelConfig(vocab_size=30_000, embedding_size=128, share_layers=True)
    assert count_parameters(albert) == 11_683_584


def test_a_layer_of_base_has_12_h_squared_and_13_h_parameters() -> None:
    one, two = (replace(named_size("base"), num_layers=n) for n in (1, 2))
    assert count_parameters(two) - count_parameters(one) == 12 * 768**2 + 13 * 768


def test_sizes_are_written_as_layers_hidden_heads() -> None:
    assert named_size("12/768/12") == named_size("base") == ModelConfig()
    assert named_size("4/256/4", vocab_size=100).vocab_size == 100


def test_pretraining_flops_are_those_of_the_formula() -> None:
    layers, h, n, v = 12, 768, 128, 30_522
    expected = (
        6 * 12 * layers * h * h * n + 12 * layers * h * n * n + 6 * 0.15 * n * (v * h + h * h)
    )
    assert train_flops(ModelConfig(), length=n) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("switches", [{}, {"embedding_size": 5, "share_layers": True}], ids=str)
def test_the_module_does_as_many_flops_as_were_counted(switches: dict[str, Any]) -> None:
    config, length = replace(ODD, max_positions=40, **switches), 40
    model = Bert(config, PRETRAINING).eval()
    one = pack([torch.randint(0, 37, (length,))])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*one, predicted=torch.arange(6))  # 15% of 40
    pooler = 2 * 12 * 12 + 2 * 12 * 2  # of one row in forty: not counted as useful work
    num_spared = 40 - 6 - 1  # rows that no head reads, in the last layer, behind its attention
    spared = num_spared * 2 * (12 * 12 + 2 * 12 * config.ffn_size)
    assert counter.get_total_flops() == train_flops(config, length=length) / 3 + pooler - spared
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.encode(*one)
    assert counter.get_total_flops() == infer_flops(config, length=length)


@pytest.mark.parametrize(("batch_size", "length"), [(4, 128), (1, 400)])
@pytest.mark.parametrize(
    "switches",
    [{}, {"attention": "left"}, {"embedding_size": 32, "share_layers": True}, {"layer": "lstm"}],
    ids=str,
)
def test_the_memory_of_a_training_step_is_what_autograd_keeps(
    batch_size: int, length: int, switches: dict[str, Any]
) -> None:
    config = replace(named_size("2/128/4", vocab_size=500), **switches)
    model = Bert(config, PRETRAINING)
    estimate = train_memory(config, batch_size=batch_size, length=length)
    within = 0.08 if "layer" in switches else 0.05
    measured = measure_kept(model, batch_size, length)
    assert measured == pytest.approx(estimate.activations, rel=within)
    assert estimate.weights == 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("batch_size", "length"), [(4, 128), (1, 400)])
def test_layers_that_are_computed_again_keep_what_goes_in(batch_size: int, length: int) -> None:
    """And in the backward pass one of them has all of its own."""
    config = named_size("4/128/4", vocab_size=500)
    model = Bert(config, PRETRAINING)
    model.recomputes = True
    settings = {"batch_size": batch_size, "length": length}
    more = train_memory(replace(config, num_layers=5), **settings).activations
    one = more - train_memory(config, **settings).activations
    estimate = train_memory(config, **settings, recompute=True).activations
    assert measure_kept(model, batch_size, length) + one == pytest.approx(estimate, rel=0.05)


def measure_kept(model: Bert, batch_size: int, length: int) -> int:
    """Bytes that autograd keeps of a training step, without the weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # by address; held, so no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    batch = pack([torch.randint(0, 500, (length,)) for _ in range(batch_size)])
    predicted = torch.arange(round(0.15 * batch_size * length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits, _ = model(*batch, predicted=predicted)
        logits.log_softmax(-1)
    return sum(storage.nbytes() for storage in kept.values())


def test_memory_sums_up() -> None:
    parts = Memory(weights=1, gradients=2, optimizer=4, activations=8)
    assert parts.total == 15
    base = train_memory(ModelConfig(), batch_size=1, length=128)
    assert base.total - base.activations == 16 * 110_106_428
    assert infer_memory(ModelConfig(), batch_size=1, length=128).weights == 4 * 109_482_240


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "hidden_size 100 is not a multiple of num_heads 3"),
        ({"vocab_size": 0}, "vocab_size must be at least 1; found 0"),
        ({"ffn_size": -4}, "ffn_size must be at least 1; found -4"),
        ({"dropout": 1.0}, "dropout must be in 0 .. 1, below 1; found 1.0"),
        ({"classifier_dropout": -0.1}, "classifier_dropout must be in 0 .. 1"),
        ({"init_std": float("nan")}, "init_std must be in 0 .. 1, above 0; found nan"),
        ({"norm_eps": 0.0}, "norm_eps must be in 0 .. 1, above 0; found 0.0"),
        ({"gelu": "swish"}, "gelu takes one of erf, tanh; found 'swish'"),
        ({"layers": 3}, "no setting layers"),
    ],
)
def test_a_config_that_cannot_be_is_refused(settings: dict[str, object], found: str) -> None:
    with pytest.raises(UserError, match=found):
        build(ModelConfig, settings)


@pytest.mark.parametrize("size", ["huge", "4/256", "4/256/x", "4/256/-4", "²/4/4"])
def test_a_size_that_is_none_is_refused(size: str) -> None:
    with pytest.raises(UserError, match="there are tiny, mini, small, medium, base, large"):
        named_size(size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "right"}, "attention must be both or left; found 'right'"),
        ({"positions": "rotary"}, "positions must be learned or sinusoidal"),
        ({"combine": "mean"}, "combine must be sum or product"),
        ({"layer": "gru"}, "layer must be transformer or lstm"),
        ({"embedding_size": -1}, "embedding_size must be at least 0"),
        ({"bilstm_layers": -1}, "bilstm_layers must be at least 0"),
        ({"layer": "lstm", "attention": "left"}, "has no attention"),
        ({"hidden_size": 15, "num_heads": 3, "layer": "lstm"}, "hidden_size 15 is odd"),
    ],
)
def test_switches_that_are_none_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ModelConfig(**settings)
