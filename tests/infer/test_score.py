"""A text's score is what its tokens are guessed with, each masked alone."""

import math

import pytest
import torch
import transformers

import bertie
from bertie.errors import UserError
from bertie.infer import batches, fill, verb
from bertie.infer.engine import Engine
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import SENTENCES, make_directory

LONG = " ".join(SENTENCES * 2)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return bertie.load(make_directory(tmp_path_factory.mktemp("score")))


def test_equals_masking_by_hand(engine: Engine) -> None:
    theirs = open_theirs("BertForMaskedLM", engine.source)
    tokenizer = transformers.AutoTokenizer.from_pretrained(engine.source)
    for text, scored in zip(SENTENCES, engine.score(SENTENCES), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        wanted = []
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = theirs(input_ids=masked).logits[0, place]
            wanted.append(logits.log_softmax(-1)[ids[0, place]].item())
        assert [token.log_probability for token in scored.tokens] == pytest.approx(wanted, abs=1e-4)
        assert scored.total == pytest.approx(sum(wanted), abs=1e-3)
        assert scored.perplexity == pytest.approx(math.exp(-sum(wanted) / len(wanted)), rel=1e-4)
        if "ï" not in text:
            places = [text[token.start : token.end].lower() for token in scored.tokens]
            assert places == [token.piece.removeprefix("##") for token in scored.tokens]


def test_a_long_text_is_scored_in_windows_around_each_token(engine: Engine) -> None:
    scored = engine.score(LONG)
    assert len(scored.tokens) == len(engine.tokenizer.ids(LONG)) > engine.max_length
    words = [
        t for t in scored.tokens if f" {LONG[t.start : t.end]} " == LONG[t.start - 1 : t.end + 1]
    ]
    for token in (words[0], words[len(words) // 2], words[-1]):
        masked = engine.fill(f"{LONG[: token.start]}[MASK]{LONG[token.end :]}", top=120).masks[0]
        chance = next(fill.probability for fill in masked if fill.piece == token.piece)
        assert math.exp(token.log_probability) == pytest.approx(chance, rel=1e-4)


def test_neighbours_and_batches_change_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*SENTENCES, LONG, "Paris"]
    alone = [engine.score(text).total for text in texts]
    monkeypatch.setattr(batches, "BATCH_TOKENS", 100)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 1000)
    monkeypatch.setattr(fill, "HEAD_ROWS", 3)
    assert [one.total for one in engine.score(texts)] == pytest.approx(alone, abs=1e-3)
    assert [one.total for one in engine.score_each(iter(texts))] == pytest.approx(alone, abs=1e-3)


def test_a_mask_in_the_text_stays_hidden(engine: Engine) -> None:
    scored = engine.score("Paris is the [MASK] of France")
    assert "[MASK]" not in [token.piece for token in scored.tokens]
    assert len(scored.tokens) == len(engine.score("Paris is the of France").tokens)


def test_a_text_that_would_take_hours_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "the " * 2_049
    with pytest.raises(
        UserError, match=r"has 2,049 pieces, .*; 2,048 are scored at most: give its"
    ):
        engine.score(many)
    with pytest.raises(UserError, match="text 2: the text has 2,049 pieces"):
        engine.score(["a", many])
    monkeypatch.setattr("bertie.infer.score.MAX_PIECES", 4)
    assert len(engine.score("the the the the").tokens) == 4


@pytest.mark.parametrize("text", ["", " \n", "[MASK]"])
def test_a_text_without_words_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises(UserError, match=r"^no token to score in"):
        engine.score(text)
    with pytest.raises(UserError, match="text 2: no token to score in"):
        engine.score(["a", text])
