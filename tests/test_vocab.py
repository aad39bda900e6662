"""From files to a tokenizer directory."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from bertie.config import read_recipe
from bertie.data.blocks import Problems
from bertie.errors import UserError
from bertie.text.count import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.vocab import VocabRecipe, cover_files, make_vocab
from tests.text.reference import check_equal, peer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    texts = (f"the word number {n} of word{n % 13} und {n % 101} 中文" for n in range(2000))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


def recipe(*sets: str) -> VocabRecipe:
    return read_recipe(VocabRecipe, None, ["learn.size=200", "learn.num_unused=3", *sets])


def test_one_and_two_workers_write_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        make_vocab([corpus], tmp_path / str(workers), recipe(), workers=workers)
    one, two = ((tmp_path / n / "vocab.txt").read_bytes() for n in ("1", "2"))
    assert one == two


def test_the_directory_opens_and_the_held_out_text_is_not_learned(
    corpus: Path, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    learned = make_vocab(
        [corpus], tmp_path / "v", recipe(), workers=1, on_progress=lambda *p: seen.append(p)
    )
    assert Tokenizer.load(tmp_path / "v").pieces == learned.tokenizer.pieces
    assert 5 < len(learned.held_out) < 60
    assert learned.coverage.num_words < learned.num_words / 10
    assert learned.coverage.unknown_share == 0
    assert ("counting words", corpus.stat().st_size, corpus.stat().st_size) in seen
    assert seen[-1][0] == "merging pieces" and seen[-1][1] == seen[-1][2]
    fit, again = cover_files([corpus], [tmp_path / "v"] * 2, recipe().corpus, Problems())
    assert fit == again
    assert fit.num_words == learned.num_words + learned.coverage.num_words


def test_the_coverage_of_the_text_itself_counts_words_that_were_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{word}{chr(0x4E00 + number)}" for number in range(2000) for word in ("the ", "")]
    (tmp_path / "a.txt").write_text(" ".join(words), encoding="utf-8")
    monkeypatch.setattr("bertie.vocab.count_words", partial(count_words, capacity=300))
    settings = recipe("corpus.held_out_percent=0")
    learned = make_vocab([tmp_path / "a.txt"], tmp_path / "v", settings, workers=1)
    assert learned.num_forgotten > 0
    (fit,) = cover_files([tmp_path / "a.txt"], [tmp_path / "v"], settings.corpus, Problems())
    assert learned.coverage == fit and fit.num_words == 6000


def test_a_small_text_is_its_own_test(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("so few words")
    learned = make_vocab([tmp_path / "a.txt"], tmp_path / "v", recipe(), workers=1)
    assert learned.held_out == ()
    assert learned.coverage.num_words == 3
    assert learned.num_spare > 0
    assert len(learned.tokenizer.pieces) == 200


def test_a_vocabulary_is_never_overwritten(corpus: Path, tmp_path: Path) -> None:
    make_vocab([corpus], tmp_path / "v", recipe(), workers=1)
    with pytest.raises(UserError, match="exists"):
        make_vocab([corpus], tmp_path / "v", recipe(), workers=1)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_the_tokenizer_of_a_model_is_not_overwritten(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} exists; a model may need it"):
        make_vocab([corpus], tmp_path, recipe(), workers=1)
    assert (tmp_path / name).read_text() == "mine" and not (tmp_path / "vocab.txt").exists()


def test_text_without_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n \0 ")
    with pytest.raises(UserError, match="no words in 1 files"):
        make_vocab([tmp_path / "a.txt"], tmp_path / "v", recipe(), workers=1)
    assert not (tmp_path / "v").exists()


def test_a_text_that_is_held_out_whole_is_learned_from(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("so few words")
    settings = recipe("corpus.held_out_percent=100")
    learned = make_vocab([tmp_path / "a.txt"], tmp_path / "v", settings, workers=1)
    assert learned.num_words == 3 and learned.held_out == ()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Other words of the same letters, and one with new letters."""
    path = tmp_path / "other.txt"
    lines = (f"undernumber of thunder, Größe {n % 7} word{n % 5}\n\n" for n in range(900))
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.mark.parametrize("case", [True, False])
def test_an_extended_vocabulary_keeps_all_ids_and_fits_better(
    corpus: Path, other: Path, tmp_path: Path, case: bool, compared: Counter[str]
) -> None:
    settings = recipe(f"tokenizer.lower_case={str(case).lower()}", "tokenizer.max_length=77")
    old = make_vocab([corpus], tmp_path / "old", settings, workers=1).tokenizer
    bigger = recipe("learn.size=260")
    for workers in (1, 2):
        learned = make_vocab(
            [other], tmp_path / str(workers), bigger, workers=workers, extends=tmp_path / "old"
        )
    one, two = ((tmp_path / name / "vocab.txt").read_bytes() for name in ("1", "2"))
    assert one == two
    new = Tokenizer.load(tmp_path / "1")
    assert new.pieces == learned.tokenizer.pieces
    assert new.config == learned.tokenizer.config == old.config
    assert new.pieces[:200] == old.pieces and 200 < len(new.pieces) <= 260
    assert (learned.num_old, learned.num_spare) == (200, 260 - len(new.pieces))
    assert len(set(new.pieces)) == len(new.pieces)
    folders = [tmp_path / name for name in ("old", "1")]
    before, after = cover_files([other], folders, bigger.corpus, Problems())
    assert after.num_pieces < before.num_pieces and after.num_unknown < before.num_unknown
    assert after.unknown_share == 0 and {"undernumber", "thunder"} <= {*new.pieces}
    texts = [*other.read_text("utf-8").splitlines()[:30], *corpus.read_text("utf-8").splitlines()]
    check_equal(new, peer(new.pieces, lower_case=case), texts[:60], compared)


def test_new_pieces_come_by_use_and_as_many_as_asked(corpus: Path, tmp_path: Path) -> None:
    make_vocab([corpus], tmp_path / "old", recipe(), workers=1)
    (tmp_path / "new.txt").write_text("rare rare often often often of twice once\n" * 1, "utf-8")
    for size in (201, 202, 260):
        settings = recipe(f"learn.size={size}", "corpus.held_out_percent=0")
        learned = make_vocab(
            [tmp_path / "new.txt"],
            tmp_path / str(size),
            settings,
            workers=1,
            extends=tmp_path / "old",
        )
        added = learned.tokenizer.pieces[200:]
        assert added == ["often", "rare"][: size - 200]
        assert learned.num_spare == size - 200 - len(added)


def test_an_extension_that_would_change_the_old_is_refused(corpus: Path, tmp_path: Path) -> None:
    make_vocab([corpus], tmp_path / "old", recipe(), workers=1)
    wrong = {
        "leave the settings tokenizer": recipe("learn.size=300", "tokenizer.lower_case=false"),
        "has 200 pieces; say how many there shall be": recipe(),
    }
    for message, settings in wrong.items():
        with pytest.raises(UserError, match=message):
            make_vocab([corpus], tmp_path / "new", settings, workers=1, extends=tmp_path / "old")
    assert not (tmp_path / "new").exists()
