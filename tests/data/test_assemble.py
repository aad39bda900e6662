"""Rows become the text they stand for, with special tokens in their places."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.data.assemble import Assembler, find_seconds
from bertie.data.chance import fold, stream
from bertie.data.index import IndexSpec, open_index
from bertie.data.instances import InstanceConfig, row_lengths
from bertie.data.store import Store
from bertie.errors import UserError
from tests.data.stores import CONTINUES, TOKENIZER, awkward, write_store

CLS, SEP = TOKENIZER.id("[CLS]"), TOKENIZER.id("[SEP]")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("store"), awkward(huge=200))


def told(store: Store, row: np.void) -> list[int]:
    """One sequence, token by token."""
    starts = set(store.sentences[store.documents].tolist())
    ids = [CLS]
    for place in range(row["a"], row["a"] + row["a_length"]):
        if row["num_breaks"] and place in starts and place > row["a"]:
            ids.append(SEP)
        ids.append(int(store.ids[place]))
    ids.append(SEP)
    if row["b_length"]:
        ids += [*store.ids[row["b"] : row["b"] + row["b_length"]].tolist(), SEP]
    return ids


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "sop"},
        {"kind": "full"},
        {"kind": "full", "across_documents": True, "max_length": 64},
    ],
    ids=str,
)
def test_sequences_are_the_text_of_their_rows(store: Store, settings: dict[str, Any]) -> None:
    config = InstanceConfig(**settings)
    rows = open_index(IndexSpec(store=store, config=config, seed=0, epoch=0)).rows
    rows = np.array(rows[np.random.default_rng(0).permutation(len(rows))[:400]])
    keys = fold(stream(1), np.arange(len(rows)))
    sequences = Assembler(store, reads_words=True).assemble(rows, keys)
    parts = np.split(sequences.ids, sequences.bounds[1:-1])
    assert [part.tolist() for part in parts] == [told(store, row) for row in rows]
    assert (np.diff(sequences.bounds) == row_lengths(rows)).all()
    assert (sequences.keys == keys).all()
    # In these stores a word starts where the piece is no continuation, and specials are words.
    assert sequences.starts_word is not None
    assert (sequences.starts_word == (sequences.ids < CONTINUES)).all()
    if config.across_documents:
        assert rows["num_breaks"].max() > 3


def test_the_second_segment_begins_behind_the_first_separator(store: Store) -> None:
    rows = np.array(
        open_index(IndexSpec(store=store, config=InstanceConfig(kind="sop"), seed=0, epoch=0)).rows
    )
    seconds, lengths = find_seconds(rows, row_lengths(rows)), row_lengths(rows)
    has_b = rows["b_length"] > 0
    assert has_b.any() and not has_b.all()
    assert (lengths - seconds == np.where(has_b, rows["b_length"].astype(int) + 1, 0)).all()


def test_words_are_read_only_where_they_are_needed(store: Store) -> None:
    rows = np.array(
        open_index(IndexSpec(store=store, config=InstanceConfig(), seed=0, epoch=0)).rows
    )
    keys = fold(stream(1), np.arange(len(rows)))
    assert Assembler(store, reads_words=False).assemble(rows, keys).starts_word is None


def test_special_ids_are_the_tokenizers(store: Store) -> None:
    vocabulary = Assembler(store, reads_words=False).vocabulary
    assert set(np.flatnonzero(vocabulary.is_special).tolist()) == TOKENIZER.special_ids
    assert vocabulary.size == len(TOKENIZER.pieces) and vocabulary.mask_id == TOKENIZER.id("[MASK]")


def test_a_row_outside_the_store_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[4, 5], [6]])
    index = open_index(IndexSpec(store=store, config=InstanceConfig(), seed=0, epoch=0))
    rows = np.array(index.rows)
    for field, value in (("a", 10**9), ("b", -5)):
        wrong = rows.copy()
        wrong[field][0] = value
        with pytest.raises(UserError, match="damaged; delete its folder index"):
            Assembler(store, reads_words=False).assemble(
                wrong, fold(stream(1), np.arange(len(rows)))
            )
