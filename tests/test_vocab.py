"""From files to a tokenizer directory."""

import json
from pathlib import Path

import pytest

from bertie.config import read_recipe
from bertie.data.blocks import Problems
from bertie.errors import UserError
from bertie.text.tokenizer import Tokenizer
from bertie.vocab import VocabRecipe, cover_files, make_vocab


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
    fit = cover_files([corpus], tmp_path / "v", recipe().corpus, Problems())
    assert fit.num_words == learned.num_words + learned.coverage.num_words


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
