"""A layer in C computes what the layer it was made of does, in every precision."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bertie.infer.attention import weigh
from bertie.model.bert import Bert, pack
from bertie.model.config import Gelu, ModelConfig
from bertie.model.cpu_layer import NativeLayer, Precision, can_run, panels
from bertie.model.cpu_linear import hasten
from bertie.model.eight_bits import LARGEST, TINY, quantise
from bertie.model.encoder import Layer
from bertie.native import build

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=96,
    num_layers=3,
    num_heads=3,
    ffn_size=160,
    max_positions=600,
    init_std=0.1,
)
PRECISIONS: list[Precision] = ["fp32", "bf16", "int8"]
# Of errors, relative in norm. Below fp32 it is compared with a twin that rounds the same numbers;
# one that lies between two steps may go to either.
BOUNDS: dict[Precision, float] = {"fp32": 5e-6, "bf16": 5e-3, "int8": 5e-3}
LENGTHS = (1, 17, 31, 32, 33, 7, 8, 129, 0, 511)

needs_native = pytest.mark.skipif(
    not can_run(CONFIG, "fp32"), reason="needs AVX-512 and a C compiler"
)


@pytest.fixture
def threads() -> Iterator[None]:
    """Three threads, on whatever there is."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def skip_without(precision: Precision) -> None:
    if not can_run(CONFIG, precision):
        pytest.skip(f"this processor has no instructions for {precision}")


def make_layer(config: ModelConfig = CONFIG) -> Layer:
    rng = torch.Generator().manual_seed(5)
    (layer, *_) = Bert(config, generator=rng).eval().layers
    assert isinstance(layer, Layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "bias" in name or "norm" in name:  # which begin as zeros and ones
                parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.3)
    return layer


def make_rows(num_rows: int, size: int = CONFIG.hidden_size) -> Tensor:
    rows = torch.randn(num_rows, size, generator=torch.Generator().manual_seed(num_rows))
    if num_rows > 1:
        rows[0] = 0
        rows[-1] *= 30
    return rows


def make_bounds(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


class Rounding(nn.Module):
    """A linear layer whose rows and weights are rounded as its precision has it."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight.double(), linear.bias.double()
        self.precision = precision

    def round(self, x: Tensor) -> Tensor:
        if self.precision == "bf16":
            return x.to(torch.bfloat16).double()
        scales = (x.abs().amax(-1, keepdim=True).clamp(min=TINY) / LARGEST).double()
        return (x.double() / scales).round() * scales

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.round(x), self.round(self.weight), self.bias).float()


def make_twin(layer: Layer, precision: Precision) -> Layer:
    twin = deepcopy(layer)
    if precision != "fp32":
        for name in ("attention.qkv", "attention.out", "ffn.up", "ffn.down"):
            linear = layer.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            twin.set_submodule(name, Rounding(linear, precision))
    return twin


def check_near(found: Tensor, wanted: Tensor, precision: Precision) -> None:
    error = (found - wanted).norm() / wanted.norm()
    assert error < BOUNDS[precision], f"{precision}: {error:.2g}"


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("lengths", [(1,), (17,), (128,), (129,), (40, 100), LENGTHS], ids=str)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_it_computes_what_its_layer_does(
    precision: Precision, lengths: tuple[int, ...], num_threads: int, threads: None
) -> None:
    skip_without(precision)
    torch.set_num_threads(num_threads)
    layer, rows, bounds = make_layer(), make_rows(sum(lengths)), make_bounds(lengths)
    wanted = make_twin(layer, precision)(rows, bounds, max(lengths))
    found = NativeLayer(layer, precision)(rows, bounds, max(lengths))
    check_near(found, wanted, precision)


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("ffn_size", [32, 64, 96, 224])
@pytest.mark.parametrize("length", [20, 40, 128, 200])
def test_the_wider_part_may_be_the_narrower(
    precision: Precision, ffn_size: int, length: int, threads: None
) -> None:
    skip_without(precision)
    layer = make_layer(replace(CONFIG, ffn_size=ffn_size))
    rows, bounds = make_rows(length), torch.tensor([0, length])
    wanted = make_twin(layer, precision)(rows, bounds, length)
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        check_near(NativeLayer(layer, precision)(rows, bounds, length), wanted, precision)


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_usual_precision_is_not_asked(dtype: torch.dtype) -> None:
    layer, rows, bounds = NativeLayer(make_layer(), "fp32"), make_rows(50), torch.tensor([0, 50])
    wanted = layer(rows, bounds, 50)
    torch.set_default_dtype(dtype)
    try:
        found = layer(rows, bounds, 50)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32 and torch.equal(found, wanted)


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize("num_heads, size", [(1, 32), (2, 128), (4, 384), (12, 768)])
def test_heads_of_any_size_and_both_gelus(gelu: Gelu, num_heads: int, size: int) -> None:
    ffn_size = 2 * size
    config = replace(CONFIG, gelu=gelu, num_heads=num_heads, hidden_size=size, ffn_size=ffn_size)
    assert can_run(config, "fp32")
    layer, rows, bounds = make_layer(config), make_rows(45, size), make_bounds((40, 5))
    check_near(NativeLayer(layer, "fp32")(rows, bounds, 40), layer(rows, bounds, 40), "fp32")


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_that_are_kept_are_those_rows(precision: Precision, threads: None) -> None:
    skip_without(precision)
    layer, rows, bounds = (
        NativeLayer(make_layer(), precision),
        make_rows(200),
        make_bounds((150, 50)),
    )
    every = layer(rows, bounds, 150)
    for kept in map(torch.tensor, ([0], [199, 0, 150, 0], range(128), range(129), range(200))):
        assert torch.equal(layer(rows, bounds, 150, kept), every[kept])


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("precision", PRECISIONS)
def test_neighbours_and_threads_change_not_a_bit(precision: Precision, threads: None) -> None:
    skip_without(precision)
    layer, rows, bounds = NativeLayer(make_layer(), precision), make_rows(769), make_bounds(LENGTHS)
    together = layer(rows, bounds, 511)
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            alone = layer(rows[start:end], torch.tensor([0, end - start]), end - start)
            assert torch.equal(alone, together[start:end])


@needs_native
@torch.inference_mode()
def test_products_in_eight_bits_are_exact() -> None:
    """Of whole numbers that eight bits hold, nothing is lost but float32's own rounding."""
    skip_without("int8")
    layer = make_layer()
    rng = torch.Generator().manual_seed(2)
    for linear in (layer.attention.qkv, layer.attention.out, layer.ffn.up, layer.ffn.down):
        whole = torch.randint(-LARGEST, LARGEST + 1, linear.weight.shape, generator=rng)
        whole[:, 0] = LARGEST  # so that the scale is 1
        linear.weight.copy_(whole)
    rows = torch.randint(-LARGEST, LARGEST + 1, (23, 96), generator=rng).float()
    rows[:, 0] = -LARGEST
    qkv = NativeLayer(layer, "int8").project(rows)
    torch.testing.assert_close(qkv, layer.project(rows), rtol=1e-6, atol=1e-2)


@needs_native
@torch.inference_mode()
def test_a_hastened_model_is_made_of_it(threads: None) -> None:
    plain, quick = (
        Bert(CONFIG, ("token",), generator=torch.Generator().manual_seed(1)).eval()
        for _ in range(2)
    )
    hasten(quick, "fp32")
    assert all(isinstance(layer, NativeLayer) for layer in quick.layers)
    packed = pack([torch.arange(2, 2 + n) for n in (3, 40, 1, 12)])
    for one, two in zip(quick.states(*packed), plain.states(*packed), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    alone = pack([torch.arange(2, 14)])
    for one, two in zip(weigh(quick, alone), weigh(plain, alone), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@needs_native
def test_a_shared_layer_is_one_in_c_too() -> None:
    model = Bert(replace(CONFIG, share_layers=True)).eval()
    hasten(model, "fp32")
    assert len(model.layers) == 3 and len({id(layer) for layer in model.layers}) == 1


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("precision", PRECISIONS)
def test_many_threads_may_ask_at_once(precision: Precision) -> None:
    skip_without(precision)
    layer, bounds = NativeLayer(make_layer(), precision), torch.tensor([0, 60])
    asked = [make_rows(60) + number for number in range(24)]
    wanted = [layer(rows, bounds, 60) for rows in asked]

    def ask(rows: Tensor) -> Tensor:
        with torch.inference_mode():
            return layer(rows, bounds, 60)

    with ThreadPoolExecutor(8) as pool:
        for found, right in zip(pool.map(ask, asked), wanted, strict=True):
            assert torch.equal(found, right)


@needs_native
@torch.inference_mode()
def test_a_nan_stays_in_its_sequence_and_is_seen() -> None:
    layer, rows, bounds = NativeLayer(make_layer(), "fp32"), make_rows(30), make_bounds((10, 20))
    clean = layer(rows, bounds, 20)
    rows[3, 4] = torch.nan
    found = layer(rows, bounds, 20)
    assert found[3].isnan().all() and torch.equal(found[10:], clean[10:])


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("bounds", [[0, 9], [1, 10], [0, 8, 7, 10], [0, 11]])
def test_bounds_that_do_not_fit_are_refused(bounds: list[int]) -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        NativeLayer(make_layer(), "fp32")(make_rows(10), torch.tensor(bounds), 10)


@needs_native
@torch.inference_mode()
@pytest.mark.parametrize("kept", [[-1], [10], [0, 99]])
def test_rows_that_are_not_there_are_refused(kept: list[int]) -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        NativeLayer(make_layer(), "fp32")(
            make_rows(10), torch.tensor([0, 10]), 10, torch.tensor(kept)
        )


@pytest.mark.parametrize(
    "change",
    [{"attention": "left"}, {"layer": "lstm"}, {"ffn_size": 100}, {"num_heads": 6}],
    ids=str,
)
def test_what_it_does_not_know_stays_with_torch(change: dict[str, object]) -> None:
    config = replace(CONFIG, **change)  # type: ignore[arg-type]
    assert not can_run(config, "fp32")


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.Switch, "is_on", False)
    model = Bert(CONFIG).eval()
    hasten(model, "fp32")
    assert all(isinstance(layer, Layer) for layer in model.layers)


@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from(PRECISIONS))
def test_panels_hold_every_weight_once(blocks: int, groups: int, precision: Precision) -> None:
    weight = torch.arange(blocks * 32 * groups * 4).view(blocks * 32, groups * 4)
    made = panels(weight, precision)  # (O / 32, I / G, 32, G)
    assert torch.equal(made.flatten().sort().values, weight.flatten())
    assert torch.equal(made.transpose(1, 2).flatten(2).flatten(0, 1), weight)


def test_rounding_to_eight_bits_is_to_the_nearest() -> None:
    weight = torch.randn(7, 40, generator=torch.Generator().manual_seed(3))
    weight[2] = 0
    numbers, scales = quantise(weight)
    assert numbers.abs().max() == LARGEST and not numbers[2].any()
    assert ((numbers * scales.unsqueeze(1) - weight).abs() <= scales.unsqueeze(1) * 0.5001).all()
