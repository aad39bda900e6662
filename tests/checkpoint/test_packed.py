"""Weights in eight bits: how near they are, that packing again changes nothing, who reads them."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import bertie
from bertie.checkpoint.importing import import_model
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.checkpoint.packed import (
    PACKED,
    SMALLEST,
    STORAGE,
    Packed,
    deflate,
    inflate,
    open_weight,
    pack,
    read_packed,
    unpack,
    write_packed,
)
from bertie.config import read_recipe
from bertie.errors import UserError
from bertie.evaluate import evaluate_file
from bertie.export.writing import export_model
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.pretrain import PretrainRecipe
from tests.data.stores import TOKENIZER
from tests.infer.models import make_directory
from tests.train import runs
from tests.tuned import check_same_weights, make_model, tune, write_classes

WIDTH = 7
FINITE = st.floats(-(2.0**126), 2.0**126, width=32)
ROWS = st.lists(
    st.one_of(
        st.lists(FINITE, min_size=WIDTH, max_size=WIDTH),
        st.lists(st.floats(-1, 1, width=32), min_size=WIDTH, max_size=WIDTH),
        st.just([0.0] * WIDTH),
        st.just([1e30] + [1e-30] * (WIDTH - 1)),  # one huge value
        st.just([1e-45, -3e-39] + [0.0] * (WIDTH - 2)),  # smaller than fp32's normal numbers
    ),
    min_size=1,
    max_size=5,
)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=0, atol=0, msg=name)


# --- rows ---


@given(ROWS)
def test_no_number_is_further_away_than_half_a_scale(rows: list[list[float]]) -> None:
    weight = torch.tensor(rows)
    packed = pack(weight)
    error = (unpack(packed).double() - weight.double()).abs()
    assert (error <= packed.scales.double().unsqueeze(-1) / 2 * (1 + 1e-9)).all()
    assert packed.numbers.dtype == torch.int8 and (packed.numbers.abs() <= 127).all()


@given(ROWS)
def test_what_was_opened_packs_to_the_same(rows: list[list[float]]) -> None:
    packed = pack(torch.tensor(rows))
    again = pack(unpack(packed))
    assert torch.equal(packed.numbers, again.numbers)
    assert torch.equal(packed.scales, again.scales)


def test_the_scale_is_hardly_more_than_the_largest_number_asks_for() -> None:
    weight = torch.randn(500, 33, generator=torch.Generator().manual_seed(3))
    share = pack(weight).scales / (weight.abs().amax(-1) / 127)
    assert ((share * (1 + 1e-6) >= 1) & (share <= 1 + 2.0**-15)).all()


def test_a_row_of_zeros_stays_one() -> None:
    packed = pack(torch.zeros(2, 3))
    assert torch.equal(unpack(packed), torch.zeros(2, 3))
    assert (packed.scales == SMALLEST).all()


@given(st.binary(min_size=1, max_size=60), st.integers(1, 5))
def test_inflating_undoes_deflating(content: bytes, num_rows: int) -> None:
    numbers = torch.from_numpy(np.frombuffer(content * num_rows, np.int8).copy())
    numbers = numbers.unflatten(0, (num_rows, -1))
    assert torch.equal(inflate(deflate(numbers), num_rows), numbers)


def test_a_small_file_does_not_fill_the_memory() -> None:
    """2 MB of zeros, deflated as others do it, were 2 GB."""
    zeros = zlib.compress(bytes(10**6))
    stored = {
        "a.numbers": torch.frombuffer(bytearray(zeros), dtype=torch.uint8),
        "a.scales": torch.ones(10),
    }
    with pytest.raises(UserError, match=r"a is damaged \(it is cut short, or far longer than"):
        open_weight("a", stored, Path("model"))


# --- files ---


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_directory(tmp_path / "plain")


@pytest.fixture
def packed(plain: Path, tmp_path: Path) -> Path:
    import_model(plain, tmp_path / "packed", storage="int8")
    return tmp_path / "packed"


def test_all_that_is_no_matrix_stays_as_it_is(plain: Path, packed: Path) -> None:
    before, after = (open_model(folder).model.state_dict() for folder in (plain, packed))
    for name, weight in before.items():
        if weight.ndim != 2:
            assert torch.equal(after[name], weight)
            continue
        half = weight.abs().amax(-1, keepdim=True) / 127 / 2 * (1 + 1e-4)
        assert ((after[name] - weight).abs() <= half).all()
        assert not torch.equal(after[name], weight)


def test_packing_what_was_unpacked_gives_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    import_model(packed, tmp_path / "opened")
    import_model(tmp_path / "opened", tmp_path / "again", storage="int8")
    for path in sorted(packed.iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    assert not (tmp_path / "opened" / PACKED).exists()
    assert_equal(
        open_model(packed).model.state_dict(), open_model(tmp_path / "opened").model.state_dict()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_packed_too(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = {"a.weight": torch.rand(3, 5).to(dtype), "a.bias": torch.rand(3).to(dtype)}
    write_packed(tmp_path, weights)
    found = read_packed(tmp_path / PACKED)
    assert all(weight.dtype == torch.float32 for weight in found.values())
    torch.testing.assert_close(found["a.weight"], weights["a.weight"].float(), rtol=0, atol=4e-3)
    assert torch.equal(found["a.bias"], weights["a.bias"].float())


def test_a_model_of_41_million_parameters_takes_less_than_40_megabytes(tmp_path: Path) -> None:
    """Its rows are noise here, which compresses less than what is trained."""
    shape = ModelConfig(vocab_size=30_522, hidden_size=512, num_layers=8, num_heads=8)
    with torch.device("meta"):
        model = Bert(shape, ("masked_lm", "next_sentence"))
    assert 41_600_000 < sum(weight.numel() for weight in model.parameters()) < 41_800_000
    noise = torch.randn(2048, 512, generator=torch.Generator().manual_seed(4))
    num_bytes = len(deflate(pack(noise).numbers)) / noise.numel()
    matrices = sum(w.numel() for w in model.parameters() if w.ndim == 2)
    rows = sum(len(w) for w in model.parameters() if w.ndim == 2)
    others = sum(w.numel() for w in model.parameters() if w.ndim != 2)
    beside = 300_000  # vocabulary, settings, model card
    assert matrices * num_bytes + 4 * (rows + others) + beside < 40_000_000


# --- readers ---


def test_the_engine_answers_as_from_the_opened_directory(packed: Path, tmp_path: Path) -> None:
    import_model(packed, tmp_path / "opened")
    text = "Paris is the [MASK] of France."
    one, two = (bertie.load(f, show=False).fill(text) for f in (packed, tmp_path / "opened"))
    assert one.to_json() == two.to_json()


@pytest.mark.parametrize(("form", "dtype"), [("hf", "fp32"), ("hf", "bf16"), ("onnx", "fp32")])
def test_it_is_exported(form: str, dtype: str, packed: Path, tmp_path: Path) -> None:
    export_model(packed, tmp_path / "out", form=form, precision=dtype)
    if form == "hf":
        opened = open_model(tmp_path / "out").model.state_dict()
        wanted = open_model(packed, dtype=opened["embeddings.token.weight"].dtype)
        torch.testing.assert_close(opened, dict(wanted.model.state_dict()), rtol=1e-2, atol=1e-3)
        values = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
        assert values["torch_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[dtype]


def test_transformers_opens_what_is_written_from_it(packed: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import_model(packed, tmp_path / "opened")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "opened")
    ours = open_model(packed).model
    assert torch.equal(theirs.bert.embeddings.word_embeddings.weight, ours.embeddings.token.weight)
    with pytest.raises(OSError, match="no file named"):  # and never takes it for something else
        transformers.BertForPreTraining.from_pretrained(packed)


def test_fine_tuning_starts_from_it_and_its_outcome_is_packed_too(tmp_path: Path) -> None:
    made = make_model(tmp_path / "start")
    import_model(made, tmp_path / "packed", storage="int8")
    import_model(tmp_path / "packed", tmp_path / "opened")
    write_classes(tmp_path / "set.csv")
    for name in ("packed", "opened"):
        places = {"model": tmp_path / name, "train": tmp_path / "set.csv"}
        tune("classify", "train.budget=2 epochs", out=tmp_path / f"of_{name}", **places)
    check_same_weights(tmp_path / "of_packed" / "model", tmp_path / "of_opened" / "model")
    import_model(tmp_path / "of_packed" / "model", tmp_path / "tuned", storage="int8")
    _, evaluated, _ = evaluate_file(tmp_path / "tuned", tmp_path / "set.csv")
    assert 0 <= evaluated.scores["accuracy"] <= 1


def test_pre_training_starts_from_it(tmp_path: Path) -> None:
    store = runs.write_text_store(tmp_path / "store")
    TOKENIZER.save(tmp_path / "tokenizer")
    shape = ModelConfig(vocab_size=len(TOKENIZER.pieces), hidden_size=12, num_layers=1, num_heads=3)
    model = Bert(shape, ("masked_lm", "next_sentence"), generator=torch.Generator().manual_seed(1))
    save_model(model, tmp_path / "start", tokenizer_from=tmp_path / "tokenizer", storage="int8")
    sets = [one for one in runs.TINY if not one.startswith("model.")]
    settings = read_recipe(
        PretrainRecipe, None, [*sets, "train.budget=2 steps", f"start={tmp_path / 'start'}"]
    )
    notes: list[object] = []
    made = runs.run(store, tmp_path / "run", settings, show=notes.append)
    assert {"note": f"starts from {tmp_path / 'start'}"} in notes
    assert (made.model / "model.safetensors").is_file()  # what is trained on is plain again


# --- what is refused ---


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3.4028e38])
@pytest.mark.parametrize("shape", [(3, 5), (5,)])
def test_numbers_that_are_none_are_refused(
    bad: float, shape: tuple[int, ...], tmp_path: Path
) -> None:
    weight = torch.ones(shape)
    weight[-1] = bad
    with pytest.raises(UserError, match=r"a\.weight has numbers that are not finite"):
        write_packed(tmp_path, {"a.weight": weight})
    assert not (tmp_path / PACKED).exists()


def test_no_other_storage_is_known(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no storage 'int4'; there are: float, int8"):
        import_model(plain, tmp_path / "out", storage="int4")  # type: ignore[arg-type]


def change(path: Path, stored: dict[str, Tensor], header: dict[str, str] | None = None) -> None:
    save_file(stored, path, STORAGE if header is None else header)


def test_files_of_others_and_of_later_versions_are_refused(packed: Path) -> None:
    stored = load_file(packed / PACKED)
    for header in ({}, {"format": "pt"}, {"storage": "bertie int8 2"}):
        change(packed / PACKED, stored, header)
        with pytest.raises(UserError, match="wanted 'bertie int8 1' in its header"):
            open_model(packed)


@pytest.mark.parametrize("ending", [".numbers", ".scales"])
def test_half_a_matrix_is_refused(ending: str, packed: Path) -> None:
    stored = load_file(packed / PACKED)
    stored.pop(next(name for name in stored if name.endswith(ending)))
    change(packed / PACKED, stored)
    with pytest.raises(UserError, match=rf"has no .*{ending}; it is not whole"):
        open_model(packed)


@pytest.mark.parametrize("bad", ["nan", "shape", "count"])
def test_scales_that_are_none_are_refused(bad: str, packed: Path) -> None:
    stored = load_file(packed / PACKED)
    name = next(name for name in stored if name.endswith(".scales"))
    stored[name] = {
        "nan": torch.full_like(stored[name], float("nan")),
        "shape": stored[name].unsqueeze(-1),
        "count": torch.cat([stored[name], torch.ones(1)]),
    }[bad]
    change(packed / PACKED, stored)
    with pytest.raises(UserError, match=r"model\.int8\.safetensors: "):
        open_model(packed)


@given(place=st.floats(0, 0.999), flipped=st.integers(1, 255))
def test_a_byte_that_was_changed_is_found(place: float, flipped: int) -> None:
    numbers = torch.arange(-100, 100).to(torch.int8).unflatten(0, (10, 20))
    content = deflate(numbers)
    content[int(place * len(content))] ^= flipped
    path = Path("x") / PACKED
    stored = {"a.numbers": content, "a.scales": torch.ones(10)}
    try:
        found = open_weight("a", stored, path)
    except UserError as error:
        assert str(path) in str(error)
    else:  # bits behind the last code, which say nothing
        assert torch.equal(found, unpack(Packed(numbers, torch.ones(10))))


def test_a_file_that_is_cut_short_is_refused(packed: Path) -> None:
    whole = (packed / PACKED).read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (packed / PACKED).write_bytes(whole[:length])
        with pytest.raises(UserError, match="damaged or cut short"):
            open_model(packed)
