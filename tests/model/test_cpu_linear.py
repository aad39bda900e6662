"""Linear layers laid out for a CPU compute what they were made of; in int8, token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.model import cpu_linear
from bertie.model.bert import Bert, pack
from bertie.model.config import Gelu as GeluKind
from bertie.model.config import ModelConfig
from bertie.model.cpu_linear import Int8Linear, PackedLinear, hasten, largest_weight
from bertie.model.encoder import Gelu

pytestmark = pytest.mark.skipif(not cpu_linear.can_pack(), reason="needs a torch with oneDNN")
GELUS: list[GeluKind] = ["erf", "tanh"]


def make_linear(num_in: int = 24, num_out: int = 40) -> nn.Linear:
    rng = torch.Generator().manual_seed(3)
    linear = nn.Linear(num_in, num_out)
    with torch.no_grad():
        linear.weight.normal_(generator=rng)
        linear.bias.normal_(generator=rng)
        linear.weight[7] = 0  # an output that no input reaches
        linear.weight[8] *= 1000
    return linear


def make_rows(count: int, size: int = 24) -> Tensor:
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(count))
    rows[0] = 0
    rows[-1] *= 100
    return rows


def make_bert(gelu: GeluKind = "erf") -> Bert:
    config = ModelConfig(
        vocab_size=50, hidden_size=24, num_layers=3, num_heads=3, max_positions=40, gelu=gelu
    )
    return Bert(config, ("sequence",), generator=torch.Generator().manual_seed(1)).eval()


SEQUENCES = [torch.tensor([2, *range(5, 5 + n), 3]) for n in (4, 4, 0, 17, 4)]


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("kind", [None, *GELUS])
def test_a_packed_layer_computes_what_it_was_made_of(count: int, kind: GeluKind | None) -> None:
    linear, rows = make_linear(), make_rows(count)
    gelu = None if kind is None else Gelu(ModelConfig(gelu=kind))
    wanted = linear(rows) if gelu is None else gelu(linear(rows))
    torch.testing.assert_close(PackedLinear(linear, gelu)(rows), wanted, rtol=1e-5, atol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("kind", [None, *GELUS])
def test_int8_is_as_near_as_its_steps_are_fine(kind: GeluKind | None) -> None:
    """Each weight and each input is off by half a step at most."""
    linear, rows = make_linear(), make_rows(9)
    gelu = None if kind is None else Gelu(ModelConfig(gelu=kind))
    wanted = linear(rows) if gelu is None else gelu(linear(rows))
    found = Int8Linear(linear, gelu)(rows)
    of_weights = linear.weight.abs().amax(1) / (2 * largest_weight())  # (O,)
    of_rows = rows.abs().amax(1, keepdim=True) / 254  # (T, 1)
    most = rows.abs().sum(1, keepdim=True) * of_weights + of_rows * linear.weight.abs().sum(1)
    most = most + 24 * of_weights * of_rows
    assert (found - wanted).abs().le(1.13 * most + 1e-4).all()  # GELU is at most so steep


@torch.inference_mode()
def test_without_vnni_weights_are_half_as_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    linear, rows = make_linear(), make_rows(9)
    layer = Int8Linear(linear)
    torch.testing.assert_close(layer.scales, linear.weight.abs().amax(1) / 63)
    assert (layer(rows) - linear(rows)).abs().max() < 0.03 * linear(rows).abs().max()


@torch.inference_mode()
@given(st.integers(1, 40), st.integers(0, 39), st.floats(-1e5, 1e5))
def test_int8_rounds_a_token_by_itself(count: int, changed: int, value: float) -> None:
    layer, rows = Int8Linear(make_linear()), make_rows(40)
    other = rows[:count].clone()
    other[changed % count] = value
    kept = [n for n in range(count) if n != changed % count]
    assert torch.equal(layer(other)[kept], layer(rows)[kept])


@torch.inference_mode()
@pytest.mark.parametrize("gelu", GELUS)
def test_a_hastened_model_computes_the_same(gelu: GeluKind) -> None:
    plain, quick, rough = (make_bert(gelu) for _ in range(3))
    hasten(quick, "fp32")
    hasten(rough, "int8")
    packed = pack(SEQUENCES)
    for one, two in zip(quick.states(*packed), plain.states(*packed), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    (logits,), (wanted,), (near,) = quick(*packed), plain(*packed), rough(*packed)
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)
    assert 0 < (near - wanted).abs().max() < 0.01


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_neighbours_change_nothing(precision: cpu_linear.Precision) -> None:
    model = make_bert()
    hasten(model, precision)
    together = model.encode(*pack(SEQUENCES))
    alone = torch.cat([model.encode(*pack([one])) for one in SEQUENCES])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_without_onednn_int8_is_refused_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_linear, "can_pack", lambda: False)
    model = make_bert()
    hasten(model, "fp32")
    assert isinstance(model.layers[0].get_submodule("ffn.up"), nn.Linear)
    with pytest.raises(UserError, match="int8 needs a torch with oneDNN"):
        hasten(model, "int8")


@torch.inference_mode()
def test_without_bf16_the_layers_stay_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "can_pack_bf16", lambda: False)
    model, plain = make_bert(), make_bert().to(torch.bfloat16)
    with pytest.warns(UserWarning, match="this processor has no bf16.*; take fp32"):
        hasten(model, "bf16")
    assert isinstance(model.layers[0].get_submodule("ffn.up"), nn.Linear)
    assert torch.equal(model.encode(*pack(SEQUENCES)), plain.encode(*pack(SEQUENCES)))


def test_torch_knows_whether_there_is_bf16() -> None:
    """oneDNN itself says no in the same case, in words of its own."""
    weight = make_linear().to(torch.bfloat16)
    if cpu_linear.can_pack_bf16():
        PackedLinear(weight)
    else:
        with pytest.raises(RuntimeError, match="bf16"):
            PackedLinear(weight)
