"""The loss of guessing by frequency equals its definition, whatever the text."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertie.data import entropy
from bertie.data.entropy import guess_by_frequency, unigram_entropy
from tests.data.stores import FIRST, PIECES, awkward, write_store

SPECIAL = range(5)


def test_it_is_the_definition(tmp_path: Path) -> None:
    store = write_store(tmp_path, awkward(huge=50))
    counts = Counter(i for i in store.ids.tolist() if i not in SPECIAL)
    assert len(counts) > 80 and any(i in SPECIAL for i in store.ids.tolist())
    total = sum(counts.values())
    expected = -sum(n / total * math.log(n / total) for n in counts.values())
    assert unigram_entropy(store) == pytest.approx(expected, rel=1e-12)


def test_guessing_among_equals_costs_their_logarithm(tmp_path: Path) -> None:
    ids = np.arange(FIRST, FIRST + 50)
    assert unigram_entropy(write_store(tmp_path, [[50]], ids=ids)) == pytest.approx(math.log(50))


def test_one_piece_alone_is_no_surprise(tmp_path: Path) -> None:
    ids = np.full(9, len(PIECES) - 1)
    assert unigram_entropy(write_store(tmp_path, [[9]], ids=ids)) == 0


def test_pieces_are_counted_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path, awkward(huge=5))
    whole = unigram_entropy(store)
    monkeypatch.setattr(entropy, "CHUNK", 1001)
    assert unigram_entropy(store) == whole
    monkeypatch.setattr(entropy, "MOST_TOKENS", 5000)
    assert unigram_entropy(store) == pytest.approx(whole, rel=0.02)  # of the first tokens


def test_guessing_the_store_itself_costs_its_entropy(tmp_path: Path) -> None:
    ids = np.repeat(np.arange(FIRST, FIRST + 4), [5000, 3000, 1500, 500])
    store = write_store(tmp_path, [[len(ids)]], ids=ids)
    loss, num_right = guess_by_frequency(store, ids)
    assert loss / len(ids) == pytest.approx(unigram_entropy(store), rel=0.01)
    assert num_right == 5000


def test_a_piece_that_never_came_costs_much_but_not_all(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[9]], ids=np.full(9, FIRST))
    loss, num_right = guess_by_frequency(store, np.array([len(PIECES) - 1]))
    assert loss == pytest.approx(math.log(9 + len(PIECES)))
    assert num_right == 0
    assert guess_by_frequency(store, np.zeros(0, np.int64)) == (0.0, 0)
