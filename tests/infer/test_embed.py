"""Vectors are those of transformers, whatever stands beside a text; every piece counts once."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import bertie
from bertie.errors import UserError
from bertie.infer import batches, verb
from bertie.infer.embed import divide
from bertie.infer.engine import Engine
from bertie.model.bert import pack
from bertie.tasks.classify import Classify
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import SENTENCES, make_directory, make_tuned
from tests.tasks.toys import TOKENIZER

LONG = " ".join(SENTENCES * 4)
TEXTS = [*SENTENCES, "", "Paris", LONG, "\ud800\0"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("embed"))


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return bertie.load(directory)


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_equals_the_hidden_states_of_transformers(
    pooling: str, layer: int, directory: Path, engine: Engine
) -> None:
    theirs = open_theirs("BertModel", directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    with torch.no_grad():
        states = theirs(**inputs, output_hidden_states=True).hidden_states[layer]  # (B, W, D)
    mask = inputs["attention_mask"][..., None].bool()
    pooled = {
        "mean": (states * mask).sum(1) / mask.sum(1),
        "cls": states[:, 0],
        "max": states.masked_fill(~mask, -torch.inf).amax(1),
    }
    found = engine.embed(SENTENCES, pooling=pooling, layer=layer)  # type: ignore[arg-type]
    assert found.dtype == np.float32 and found.shape == (len(SENTENCES), 24)
    np.testing.assert_allclose(found, pooled[pooling].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_neighbours_order_and_batches_change_nothing(
    pooling: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = np.stack([engine.embed(text, pooling=pooling) for text in TEXTS])  # type: ignore[arg-type]
    monkeypatch.setattr(batches, "BATCH_TOKENS", 50)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 40)
    for texts, wanted in ((TEXTS, alone), (TEXTS[::-1], alone[::-1])):
        found = np.stack(list(engine.embed_each(iter(texts), pooling=pooling)))  # type: ignore[arg-type]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@given(num_words=st.integers(0, 200), max_length=st.integers(3, 40))
def test_every_piece_counts_once(num_words: int, max_length: int) -> None:
    parts = divide("the " * num_words, TOKENIZER, max_length, "mean")
    assert sum(int(part.is_counted.sum()) for part in parts) == num_words + 2
    assert all(len(part.input.ids) <= max_length for part in parts)
    ends = divide("the " * num_words, TOKENIZER, max_length, "cls")
    assert all(np.flatnonzero(part.is_counted).tolist() == [0] for part in ends)


def test_a_long_text_is_the_mean_of_its_central_rows(engine: Engine) -> None:
    parts = divide(LONG, engine.tokenizer, engine.max_length, "mean")
    assert len(parts) > 3
    packed = pack([torch.from_numpy(part.input.ids).long() for part in parts])
    with torch.no_grad():
        rows = engine.model.states(*packed)[-2].numpy()
    wanted = rows[np.concatenate([part.is_counted for part in parts])].mean(0)
    np.testing.assert_allclose(engine.embed(LONG), wanted, rtol=1e-5, atol=1e-5)


def test_the_default_depends_on_the_training(
    directory: Path, engine: Engine, tmp_path: Path
) -> None:
    text = SENTENCES[0]
    np.testing.assert_array_equal(engine.embed(text), engine.embed(text, layer=-2, pooling="mean"))
    task = Classify(kind="classes", labels=("x", "y"), max_length=40)
    tuned = bertie.load(make_tuned(tmp_path / "a", task))
    np.testing.assert_array_equal(tuned.embed(text), tuned.embed(text, layer=-1, pooling="mean"))
    trained = make_directory(tmp_path / "b", ())
    assert bertie.load(trained).embedding[:2] == ("mean", -2)
    (trained / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (trained / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert bertie.load(trained).embedding[:2] == ("cls", -1)


def test_equals_them_on_real_weights(weights: Callable[[str], Path]) -> None:
    """A model that was trained for sentences: the mean of its last layer, as its files say."""
    directory = weights("minilm")
    engine = bertie.load(directory, device="cpu")
    theirs = open_theirs("BertModel", directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    with torch.no_grad():
        states = theirs(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    wanted = (states * mask).sum(1) / mask.sum(1)
    found = engine.embed(SENTENCES)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
    eats, lunch, chess = "A man is eating.", "Someone has lunch.", "The rook was taken."
    assert engine.similarity(eats, lunch) > engine.similarity(eats, chess)


def test_similarity_is_the_cosine(engine: Engine) -> None:
    first, second = engine.embed(SENTENCES[:2])
    wanted = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    one, two = SENTENCES[:2]
    assert engine.similarity(one, two) == pytest.approx(wanted, abs=1e-6)
    assert engine.similarity(one, one) == pytest.approx(1)
    many = engine.similarity(one, SENTENCES)
    assert many[:2] == pytest.approx([1, wanted], abs=1e-6)
    assert engine.similarity(SENTENCES, one) == pytest.approx(many, abs=1e-6)
    assert engine.similarity(SENTENCES, SENTENCES) == pytest.approx([1] * 4)
    pairs = [(one, text) for text in SENTENCES]
    assert list(engine.similarity_each(iter(pairs))) == pytest.approx(many, abs=1e-6)
    assert np.linalg.norm(engine.embed(TEXTS, normalise=True), axis=1) == pytest.approx(1)


def test_what_cannot_be_is_refused(engine: Engine) -> None:
    assert engine.embed([]).shape == (0, 24)
    for options, message in (
        ({"layer": 3}, r"no layer 3: the model has 0 \(embeddings\) to 2"),
        ({"layer": -4}, "no layer -4"),
        ({"layer": "x"}, "a layer is a whole number, as in -2; found 'x'"),
        ({"layer": 1.5}, "a layer is a whole number, as in -2; found 1.5"),
        ({"layer": True}, "a layer is a whole number, as in -2; found True"),
        ({"pooling": "median"}, "no pooling 'median'; there are: mean, cls, max"),
    ):
        with pytest.raises(UserError, match=message):
            engine.embed("a", **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="found 2 and 1 texts"):
        engine.similarity(["a", "b"], ["c"])
    with pytest.raises(UserError, match="text 1: the text must be a str; found NoneType"):
        engine.embed([None])  # type: ignore[list-item]
