"""A grown model knows what it knew: pieces by their strings, positions by their numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.grow import Grown, grow, open_grown
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.errors import UserError
from bertie.model.bert import pack
from bertie.text.files import TokenizerConfig, write_tokenizer
from bertie.text.tokenizer import Tokenizer
from tests.model.tiny import TINY, make

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["play", "##s", "##ing", "token", "##iz", "##ation", "the", ".", "p", "##x", "##y"]
OLD = Tokenizer([*SPECIALS, *WORDS, "[unused0]", "[unused1]", *(f"w{n}" for n in range(19))])
NEW_PIECES = ["tokenization", "##xy", "ψ", "##q", "playing", "##", "[unused7]", "the.", "[X]"]
HEADS = ("masked_lm", "next_sentence")


def shuffled(pieces: list[str]) -> list[str]:
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(1)).tolist()
    return [pieces[place] for place in order]


def new_tokenizer(pieces: list[str]) -> Tokenizer:
    return Tokenizer(pieces, TokenizerConfig(extra_tokens=("[X]",) if "[X]" in pieces else ()))


def grown(pieces: list[str], max_positions: int | None = None, **options: object) -> Grown:
    rng = torch.Generator().manual_seed(9)
    model = make(heads=HEADS, **options)
    new = new_tokenizer(pieces)
    return grow(model, old=OLD, new=new, max_positions=max_positions, generator=rng)


def test_an_extended_and_reordered_vocabulary_gives_old_texts_the_same_logits() -> None:
    assert len(OLD.pieces) == TINY.vocab_size == 37
    new = new_tokenizer(shuffled([*OLD.pieces, *NEW_PIECES]))
    model, found = make(heads=HEADS), grown(new.pieces, 31)
    old_ids = torch.tensor([OLD.id(piece) for piece in ("[CLS]", "play", "##s", "[MASK]", "w3")])
    new_ids = torch.tensor([new.id(OLD.pieces[id]) for id in old_ids])
    masked, pair = model(*pack([old_ids]))
    masked_now, pair_now = found.model(*pack([new_ids]))
    columns = torch.tensor([new.id(piece) for piece in OLD.pieces])
    torch.testing.assert_close(masked_now[:, columns], masked, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pair_now, pair, rtol=1e-12, atol=1e-12)
    assert found.num_kept == 37 and found.num_left_out == 0
    assert not found.model.training


def test_a_new_piece_is_the_mean_of_what_spelled_it() -> None:
    new = new_tokenizer([*OLD.pieces, *NEW_PIECES])
    model, found = make(heads=HEADS), grown(new.pieces)
    spelled = {
        "tokenization": ["token", "##iz", "##ation"],
        "##xy": ["##x", "##y"],
        "playing": ["play", "##ing"],
        "the.": ["the", "."],
    }
    for name in ("embeddings.token.weight", "masked_lm.bias"):
        before, after = model.state_dict()[name], found.model.state_dict()[name]
        assert len(after) == len(new.pieces)
        for piece, parts in spelled.items():
            mean = before[[OLD.id(part) for part in parts]].mean(0)
            torch.testing.assert_close(after[new.id(piece)], mean)
    assert (found.num_composed, found.num_random) == (4, 5)  # ψ ##q ## [unused7] [X]


def test_a_piece_that_cannot_be_spelled_is_random_around_the_mean_of_all() -> None:
    pieces = [*OLD.pieces, *(chr(0x400 + n) for n in range(400))]
    model, found = make(heads=HEADS), grown(pieces)
    means = model.embeddings.token.weight.mean(0)
    rows = (found.model.embeddings.token.weight[37:] - means).detach()
    assert rows.abs().max() <= 2 * TINY.init_std
    assert rows.std().item() == pytest.approx(
        0.88 * TINY.init_std, rel=0.05
    )  # cut at two deviations
    assert rows.mean().abs() < 0.02
    again = grown(pieces).model.embeddings.token.weight
    assert torch.equal(again, found.model.embeddings.token.weight), "equal seed, equal rows"


def test_a_smaller_vocabulary_leaves_pieces_out() -> None:
    found = grown(shuffled(OLD.pieces[:20]))
    assert (found.num_kept, found.num_left_out, found.num_composed) == (20, 17, 0)


def test_special_tokens_are_matched_by_what_they_do() -> None:
    new = Tokenizer(
        ["<m>", "<u>", "<c>", "<s>", "<p>", "play"],
        TokenizerConfig(
            mask_token="<m>", unk_token="<u>", cls_token="<c>", sep_token="<s>", pad_token="<p>"
        ),
    )
    model = make(heads=HEADS)
    found = grow(model, old=OLD, new=new)
    wanted = [OLD.id(token) for token in ("[MASK]", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "play")]
    torch.testing.assert_close(
        found.model.embeddings.token.weight, model.embeddings.token.weight[wanted]
    )


def test_new_positions_repeat_the_old_ones() -> None:
    found = grown(OLD.pieces, 45)
    before, after = make().embeddings.position.weight, found.model.embeddings.position.weight
    assert (found.num_new_positions, len(after)) == (26, 45)
    for position in range(45):
        assert torch.equal(after[position], before[position % 19])
    found.model(*pack([torch.arange(37).repeat(2)[:45]]))


def test_the_old_model_is_left_alone_and_shares_nothing() -> None:
    model = make(heads=HEADS)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = grow(model, old=OLD, new=new_tokenizer(OLD.pieces))
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter += 1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_keeps_its_rows_exactly(dtype: torch.dtype) -> None:
    model, found = make(heads=HEADS, dtype=dtype), grown(shuffled(OLD.pieces), dtype=dtype)
    new = Tokenizer(shuffled(OLD.pieces))
    rows = found.model.embeddings.token.weight[[new.id(piece) for piece in OLD.pieces]]
    assert torch.equal(rows, model.embeddings.token.weight)
    assert {weight.dtype for weight in found.model.state_dict().values()} == {dtype}


@pytest.mark.parametrize("heads", [(), ("masked_lm",), ("token", "span")])
def test_all_heads_come_along(heads: tuple[str, ...]) -> None:
    model = make(heads=heads, num_labels=5, has_pooler=True)
    found = grow(model, old=OLD, new=new_tokenizer([*OLD.pieces, "playing"]), max_positions=20)
    assert (found.model.heads, found.model.num_labels) == (heads, 5)
    assert found.model.config == replace(TINY, vocab_size=38, max_positions=20)
    before, after = model.state_dict(), found.model.state_dict()
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert torch.equal(after[name][: len(weight)], weight)


def test_a_directory_grows_and_saves_and_opens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "old", OLD.pieces, OLD.config)
    save_model(
        make(heads=("masked_lm",), dtype=torch.float32),
        tmp_path / "model",
        tokenizer_from=tmp_path / "old",
    )
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    new = new_tokenizer(shuffled([*OLD.pieces, *NEW_PIECES]))
    found = open_grown(tmp_path / "model", new, heads=HEADS, max_positions=40)
    assert found.fresh == ("pooler", "next_sentence")
    new.save(tmp_path / "new")
    save_model(found.model, tmp_path / "grown", tokenizer_from=tmp_path / "new")
    opened = open_model(tmp_path / "grown")
    assert (opened.model.config, opened.fresh) == (found.model.config, ())
    for name, weight in opened.model.state_dict().items():
        assert torch.equal(weight, found.model.state_dict()[name])
    with torch.no_grad():
        found.model.embeddings.token.weight.zero_()
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == files


def test_a_foreign_tokenizer_and_lost_positions_are_refused() -> None:
    with pytest.raises(UserError, match="37 pieces and the tokenizer that should be its own 5"):
        grow(make(), old=Tokenizer(SPECIALS), new=OLD)
    with pytest.raises(UserError, match="has 19 positions and would lose some with 12"):
        grow(make(), old=OLD, new=OLD, max_positions=12)
