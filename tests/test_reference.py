"""The NumPy reference and the PyTorch model are the same function."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.checkpoint.model_dir import save_model
from bertie.model.bert import Bert, pack
from bertie.model.config import ModelConfig
from bertie.reference import Reference, gelu_erf, gelu_tanh, layer_norm, softmax

TINY = ModelConfig(
    vocab_size=53, hidden_size=24, num_layers=3, num_heads=3, ffn_size=40, max_positions=31
)
TEXTS = [([2, 7, 9, 3, 11, 52, 3], [0, 0, 0, 0, 1, 1, 1]), ([2], [0]), (list(range(31)), [0] * 31)]
Answer = Callable[[Reference, np.ndarray], np.ndarray]


def largest(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.detach().numpy() - theirs).max())


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("head", "answer"),
    [
        ("masked_lm", Reference.masked_lm),
        ("next_sentence", Reference.next_sentence),
        ("sequence", Reference.classify_text),
        ("choice", Reference.classify_text),
        ("token", Reference.classify_tokens),
        ("span", Reference.find_span),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reference_gives_the_same_logits(
    head: str,
    answer: Answer,
    dtype: torch.dtype,
    gelu: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    config = replace(TINY, gelu=gelu, init_std=0.2)  # type: ignore[arg-type]
    model = Bert(config, (head,), num_labels=4, generator=torch.Generator().manual_seed(5))
    model.to(dtype).eval()
    save_model(model, tmp_path / "model")
    reference = Reference(tmp_path / "model")
    (logits,) = model(*pack(*([torch.tensor(t[n]) for t in TEXTS] for n in (0, 1))))
    expected = [np.atleast_2d(answer(reference, reference.encode(*text))) for text in TEXTS]
    difference = largest(logits, np.concatenate(expected))
    record_property("largest_difference", difference)
    assert difference < (1e-5 if dtype == torch.float32 else 1e-10)


def test_an_encoder_alone_is_opened_too(tmp_path: Path) -> None:
    model = Bert(TINY, has_pooler=True, generator=torch.Generator().manual_seed(5)).eval()
    save_model(model, tmp_path / "model")
    reference = Reference(tmp_path / "model")
    batch = pack([torch.tensor(TEXTS[0][0])])
    hidden = model.encode(*batch)
    assert largest(hidden, reference.encode(TEXTS[0][0])) < 1e-5
    pooled = model.pool(hidden, batch.bounds)[0]
    assert largest(pooled, reference.pool(reference.encode(TEXTS[0][0]))) < 1e-5


def test_the_reference_agrees_on_a_real_model(
    weights: Callable[[str], Path], record_property: Callable[[str, object], None]
) -> None:
    from bertie.checkpoint.model_dir import open_model

    directory = weights("minilm")
    ids = [101, 2023, 2003, 1037, 2742, 102]
    hidden = open_model(directory).model.encode(*pack([torch.tensor(ids)]))
    difference = largest(hidden, Reference(directory).encode(ids))
    record_property("largest_difference", difference)
    assert difference < 1e-5


def test_the_small_functions_do_what_they_say() -> None:
    x = np.random.default_rng(0).normal(size=(4, 9)) * 3
    torch_x = torch.from_numpy(x)
    np.testing.assert_allclose(softmax(x), torch_x.softmax(-1).numpy(), atol=1e-14)
    np.testing.assert_allclose(gelu_erf(x), torch.nn.functional.gelu(torch_x).numpy(), atol=1e-14)
    tanh = torch.nn.functional.gelu(torch_x, approximate="tanh").numpy()
    np.testing.assert_allclose(gelu_tanh(x), tanh, atol=1e-14)
    normed = layer_norm(x, np.ones(9), np.zeros(9), 1e-12)
    np.testing.assert_allclose(normed.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(normed.var(-1), 1, atol=1e-9)


def test_the_reference_stays_short_and_stands_alone() -> None:
    source = Path(__file__).parents[1] / "src" / "bertie" / "reference.py"
    text = source.read_text(encoding="utf-8")
    assert text.count("\n") <= 160
    assert "from bertie" not in text.split('"""', 2)[2]
    assert "import torch" not in text
