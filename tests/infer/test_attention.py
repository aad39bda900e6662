"""Attention equals that of transformers; a layer's guesses are those of the head on its rows."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertie
from bertie.errors import UserError
from bertie.infer.engine import Engine
from tests.infer.models import SENTENCES, make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("attention"))


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return bertie.load(directory)


@pytest.mark.parametrize("text", ["", "a", "Paris is the [MASK] of France.", SENTENCES[1]])
def test_attention_is_that_of_transformers(directory: Path, engine: Engine, text: str) -> None:
    theirs = transformers.BertForMaskedLM.from_pretrained(directory, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    batch = tokenizer([text], return_tensors="pt")
    with torch.inference_mode():
        wanted = torch.cat(theirs.eval()(**batch, output_attentions=True).attentions).numpy()
    found = engine.attention(text)
    assert list(found.pieces) == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    assert found.weights.shape == (2, 3, len(found.pieces), len(found.pieces))
    np.testing.assert_allclose(found.weights, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)


def test_the_last_layer_guesses_what_fill_says(engine: Engine) -> None:
    text = "Paris is the [MASK] of France, [MASK]."
    guesses = engine.guess_layers(text, top=5)
    assert [one.piece for one in guesses] == ["[MASK]", "[MASK]"]
    for one, fills in zip(guesses, engine.fill(text).masks, strict=True):
        assert len(one.layers) == 3  # embeddings and two layers
        assert [guess.piece for guess in one.layers[-1]] == [fill.piece for fill in fills]
        chances = [fill.probability for fill in fills]
        assert [guess.probability for guess in one.layers[-1]] == pytest.approx(chances, rel=1e-4)


def test_without_a_mask_each_piece_is_masked_in_turn(engine: Engine) -> None:
    text = "the capital of france"
    guesses = engine.guess_layers(text)
    assert [one.piece for one in guesses] == engine.tokenizer.tokens(engine.tokenizer.ids(text))
    first = engine.guess_layers("[MASK] capital of france")[0]
    assert first.layers[-1][0].piece == guesses[0].layers[-1][0].piece


def test_what_cannot_be_shown_is_refused(engine: Engine, tmp_path: Path) -> None:
    for text, message in (
        ("the " * 39, r"the text has 39 pieces; .* 38 at most: give a part of it"),
        (None, "must be a str; found NoneType"),
        (b"x", "must be a str; found bytes"),
    ):
        for ask in (engine.attention, engine.guess_layers):
            with pytest.raises(UserError, match=message):
                ask(text)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="; attention is over 38 at most"):
        engine.attention("the " * 39)
    with pytest.raises(UserError, match="; guesses after each layer are made for texts of 38 at"):
        engine.guess_layers("the " * 39)
    headless = bertie.load(make_directory(tmp_path, ()))
    assert headless.attention("\ud800").weights.shape[:2] == (2, 3)
    with pytest.raises(UserError, match="no masked LM head"):
        headless.guess_layers("a")


def test_many_threads_see_the_same(engine: Engine) -> None:
    alone = engine.attention(SENTENCES[0]).weights
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: engine.attention(SENTENCES[0]).weights, range(16)):
            np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


def test_a_model_that_looks_left_shows_no_weight_to_the_right(tmp_path: Path) -> None:
    engine = bertie.load(make_directory(tmp_path, attention="left"))
    weights = engine.attention(SENTENCES[0]).weights
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_a_model_of_lstms_has_no_attention(tmp_path: Path) -> None:
    engine = bertie.load(make_directory(tmp_path, layer="lstm"))
    with pytest.raises(UserError, match="has no attention to show"):
        engine.attention(SENTENCES[0])
    assert engine.fill("Paris is the [MASK].").masks
