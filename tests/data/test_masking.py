"""Masks: 15%, 80/10/10, never a special token, whole words whole, the same in any company."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.chance import fold, stream
from bertie.data.masking import (
    MaskConfig,
    Masked,
    Sequences,
    Vocabulary,
    count_predicted,
    fill,
    find_budgets,
    mask,
    runs,
)
from bertie.errors import UserError

# [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4; ids of words from 5, of their continuations from 60
SIZE, FIRST, CONTINUES = 91, 5, 60
VOCABULARY = Vocabulary(SIZE, 4, np.arange(SIZE) < 5)
UNITS = ["token", "word", "span"]
LENGTHS = [3, 4, 5, 9, 31, 128, 128, 77, 512]


def make(lengths: list[int], seed: int = 0, *, unknown: float = 0.02) -> Sequences:
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], some tokens unknown, some words of several pieces."""
    rng = np.random.default_rng(seed)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(FIRST, SIZE, bounds[-1]).astype(np.uint16)
    ids[rng.random(len(ids)) < unknown] = 1
    ids[bounds[1:] - 1] = 3
    for start, length in zip(bounds, lengths, strict=False):
        if length > 8:
            ids[start + length // 2] = 3
    ids[bounds[:-1]] = 2
    keys = fold(stream(seed, 1), np.arange(len(lengths)))
    return Sequences(ids, bounds, keys, ids < CONTINUES)


def part(sequences: Sequences, rows: list[int]) -> Sequences:
    """Some of the sequences, in another order."""
    pieces = [slice(sequences.bounds[n], sequences.bounds[n + 1]) for n in rows]
    lengths = [p.stop - p.start for p in pieces]
    assert sequences.starts_word is not None
    return Sequences(
        np.concatenate([sequences.ids[p] for p in pieces]),
        np.concatenate([[0], np.cumsum(lengths)]),
        sequences.keys[rows],
        np.concatenate([sequences.starts_word[p] for p in pieces]),
    )


def words_of(sequences: Sequences) -> np.ndarray:
    """The number of the word of each token; special tokens are words of their own."""
    is_special = sequences.ids < 5
    starts = (sequences.ids < CONTINUES) | np.concatenate([[True], is_special[:-1]])
    return np.cumsum(starts)


def rows_of(sequences: Sequences, masked: Masked) -> np.ndarray:
    return np.searchsorted(sequences.bounds, masked.predicted, "right") - 1


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("seed", range(5))
def test_labels_restore_the_text_and_the_rest_is_untouched(unit: Any, seed: int) -> None:
    sequences = make(LENGTHS * 3, seed)
    before = sequences.ids.copy()
    masked = mask(sequences, MaskConfig(unit=unit), VOCABULARY)
    assert (sequences.ids == before).all()
    restored = masked.ids.copy()
    restored[masked.predicted] = masked.labels
    assert (restored == before).all() and masked.ids.dtype == before.dtype
    assert (np.diff(masked.predicted) > 0).all()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_special_tokens_are_never_predicted(unit: Any, rate: float) -> None:
    sequences = make(LENGTHS * 20, 3, unknown=0.2)
    masked = mask(sequences, MaskConfig(unit=unit, rate=rate), VOCABULARY)
    assert masked.labels.min() >= FIRST
    special = sequences.ids < FIRST
    assert (masked.ids[special] == sequences.ids[special]).all()


@pytest.mark.parametrize("unit", UNITS)
def test_at_least_one_and_at_most_the_budget(unit: Any) -> None:
    sequences = make(LENGTHS * 20, 4)
    lengths = np.diff(sequences.bounds)
    for config in (MaskConfig(unit=unit), MaskConfig(unit=unit, max_predictions=3)):
        masked = mask(sequences, config, VOCABULARY)
        counts = np.bincount(rows_of(sequences, masked), minlength=len(lengths))
        has_any = np.add.reduceat(sequences.ids >= FIRST, sequences.bounds[:-1]) > 0
        assert (counts[has_any] >= 1).all() and not counts[~has_any].any()
        assert (counts <= find_budgets(lengths, config)).all()
        assert counts.sum() == count_predicted(sequences, config, VOCABULARY)


def test_budgets_are_those_of_the_original() -> None:
    lengths = np.array(
        [3, 10, 30, 128, 512]
    )  # 0.45, 1.5, 4.5, 19.2, 76.8: half to even, at least 1
    assert find_budgets(lengths, MaskConfig()).tolist() == [1, 2, 4, 19, 77]
    assert find_budgets(lengths, MaskConfig(max_predictions=20)).tolist() == [1, 2, 4, 19, 20]
    expected = [min(76, max(1, round(length * 0.15))) for length in range(1, 600)]
    found = find_budgets(np.arange(1, 600), MaskConfig(max_predictions=76))
    assert found.tolist() == expected


def test_single_tokens_fill_the_budget_exactly() -> None:
    sequences = make([128] * 100, 5)
    masked = mask(sequences, MaskConfig(), VOCABULARY)
    assert np.bincount(rows_of(sequences, masked)).tolist() == [19] * 100


@pytest.mark.parametrize("unit", UNITS)
def test_fifteen_percent_are_predicted(unit: Any) -> None:
    sequences = make([128] * 200 + [512] * 50, 6)
    masked = mask(sequences, MaskConfig(unit=unit), VOCABULARY)
    assert 0.145 < len(masked.predicted) / len(sequences.ids) < 0.1501


@pytest.mark.parametrize("unit", UNITS)
def test_a_sequence_is_masked_the_same_in_any_company(unit: Any) -> None:
    sequences = make(LENGTHS * 4, 7)
    config = MaskConfig(unit=unit)
    whole = mask(sequences, config, VOCABULARY)
    order = [35, 0, 17, 3]
    some = mask(part(sequences, order), config, VOCABULARY)
    expected = np.concatenate(
        [whole.ids[sequences.bounds[n] : sequences.bounds[n + 1]] for n in order]
    )
    assert (some.ids == expected).all()
    counts = np.bincount(rows_of(sequences, whole), minlength=36)
    assert len(some.predicted) == counts[order].sum()


def make_bare(seed: int) -> Sequences:
    """Sequences without special tokens: some begin with the rest of a word, one has no token."""
    framed = make(LENGTHS * 4, seed, unknown=0.0)
    lengths = np.diff(framed.bounds) - 2
    lengths[5] = 0
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(seed).integers(FIRST, SIZE, bounds[-1]).astype(np.uint16)
    return Sequences(ids, bounds, framed.keys, ids < CONTINUES)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_without_frames_too_a_sequence_is_masked_the_same_in_any_company(
    unit: Any, rate: float
) -> None:
    config = MaskConfig(unit=unit, rate=rate)
    sequences = make_bare(17)
    whole = mask(sequences, config, VOCABULARY)
    counts = np.bincount(rows_of(sequences, whole), minlength=36)
    assert counts.sum() == count_predicted(sequences, config, VOCABULARY)
    for row in np.flatnonzero(np.diff(sequences.bounds)).tolist():
        alone = mask(part(sequences, [row]), config, VOCABULARY)
        assert (alone.ids == whole.ids[slice(*sequences.bounds[row : row + 2])]).all()
        assert len(alone.predicted) == counts[row]
        assert counts[row] <= find_budgets(np.diff(sequences.bounds)[[row]], config)[0]


def within(share: float, expected: float, count: int) -> bool:
    return abs(share - expected) <= 4 * np.sqrt(max(expected * (1 - expected), 1e-12) / count)


SHARES = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.2, 0.8), (0.8, 0.2, 0.0)]


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_tokens_fare_as_the_shares_say(unit: Any, shares: tuple[float, float, float]) -> None:
    """Within binomial bounds; a random piece is the true one once in a vocabulary."""
    names = ("mask_share", "random_share", "keep_share")
    config = MaskConfig(unit=unit, **dict(zip(names, shares, strict=True)))
    sequences = make([128] * 500, 8)
    masked = mask(sequences, config, VOCABULARY)
    seen, count = masked.ids[masked.predicted], len(masked.predicted)
    assert count > 9000
    by_chance = shares[1] / SIZE
    assert within((seen == 4).mean(), shares[0] + by_chance, count)
    assert within((seen == masked.labels).mean(), shares[2] + by_chance, count)


def test_spans_fare_alike_and_as_the_shares_say() -> None:
    sequences = make([512] * 400, 9, unknown=0.0)
    masked = mask(sequences, MaskConfig(unit="span"), VOCABULARY)
    seen = masked.ids[masked.predicted]
    fate = np.where(seen == 4, 0, np.where(seen == masked.labels, 2, 1))
    counts = np.bincount(fate, minlength=3) / len(fate)
    assert np.abs(counts - (0.8, 0.1, 0.1)).max() < 0.02
    # Neighbours fare alike, but where one span touches another or a random piece is the true one.
    touch = np.diff(masked.predicted) == 1
    assert (fate[1:] == fate[:-1])[touch].mean() > 0.9
    assert (fate[1:] == fate[:-1])[~touch].mean() < 0.75


def test_random_pieces_cover_the_whole_vocabulary_evenly() -> None:
    config = MaskConfig(mask_share=0.0, random_share=1.0, keep_share=0.0)
    sequences = make([128] * 1000, 10)
    masked = mask(sequences, config, VOCABULARY)
    counts = np.bincount(masked.ids[masked.predicted], minlength=SIZE)
    assert len(counts) == SIZE  # from [PAD] to the last, though the text never has the first
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_every_position_is_chosen_as_often() -> None:
    sequences = make([128] * 3000, 11, unknown=0.0)
    masked = mask(sequences, MaskConfig(), VOCABULARY)
    counts = np.bincount(masked.predicted % 128, minlength=128)
    inside = np.delete(counts, [0, 64, 127])
    assert counts[[0, 64, 127]].tolist() == [0, 0, 0]
    assert np.abs(inside - inside.mean()).max() < 5 * np.sqrt(inside.mean())


@pytest.mark.parametrize("unit", ["word", "span"])
def test_whole_words_are_whole(unit: Any) -> None:
    sequences = make([128, 512, 60] * 60, 12)
    masked = mask(sequences, MaskConfig(unit=unit), VOCABULARY)
    is_predicted = np.zeros(len(sequences.ids), bool)
    is_predicted[masked.predicted] = True
    word = words_of(sequences)
    hidden, size = np.bincount(word, is_predicted), np.bincount(word)
    assert ((hidden == 0) | (hidden == size)).all()
    assert (size[hidden > 0] > 1).any()


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_those_of_the_store_not_of_the_pieces(unit: Any) -> None:
    """Chinese: characters are pieces of their own, and a segmenter says which make a word."""
    sequences = make([128] * 200, 16, unknown=0.0)
    words = np.arange(len(sequences.ids)) // 2  # two characters each
    words[sequences.ids < 5] = -1 - np.arange((sequences.ids < 5).sum())
    starts = np.diff(words, prepend=-(10**9)) != 0
    masked = mask(sequences._replace(starts_word=starts), MaskConfig(unit=unit), VOCABULARY)
    is_predicted = np.zeros(len(sequences.ids), bool)
    is_predicted[masked.predicted] = True
    word = np.cumsum(starts)
    hidden, size = np.bincount(word, is_predicted), np.bincount(word)
    assert ((hidden == 0) | (hidden == size)).all() and (hidden == 2).sum() > 1000


def test_a_word_that_truncation_cut_is_a_word() -> None:
    ids = np.array([2, 60, 61, 7, 3, 62, 8, 3], np.uint16)  # [CLS] ##x ##y z [SEP] ##x z [SEP]
    keys = fold(stream(1), np.arange(1))
    seen = set()
    for seed in range(60):
        sequences = Sequences(ids, np.array([0, 8]), fold(keys, seed), ids < CONTINUES)
        masked = mask(sequences, MaskConfig(unit="word", rate=0.25), VOCABULARY)
        seen.add(tuple(masked.predicted.tolist()))
    assert seen == {(1, 2), (3, 5), (3, 6), (5, 6)}


@pytest.mark.parametrize("unit", ["word", "span"])
def test_a_word_beyond_the_budget_comes_only_where_nothing_else_does(unit: Any) -> None:
    long = [20, *[60] * 12]
    alone = np.array([2, *long, 3], np.uint16)  # a word of 13 pieces, budget 2
    both = np.array([2, *long, 8, 3], np.uint16)
    for ids, expected in ((alone, [1, 2]), (both, [14])):
        for seed in range(20):
            sequences = Sequences(ids, np.array([0, len(ids)]), stream(seed), ids < CONTINUES)
            masked = mask(sequences, MaskConfig(unit=unit), VOCABULARY)
            assert masked.predicted.tolist() == expected


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 6), max_size=12), st.integers(1, 9)),
        min_size=1,
        max_size=9,
    )
)
@settings(max_examples=200, deadline=None, database=None)
def test_words_are_taken_in_order_while_there_is_room(groups: list[tuple[list[int], int]]) -> None:
    """As one would by hand: skip what does not fit, and try on."""
    expected = []
    for lengths, budget in groups:
        left, taken = budget, []
        for length in lengths:
            taken.append(length <= left)
            left -= length if length <= left else 0
        if lengths and not any(taken):
            taken[0] = True
        expected += taken
    flat = np.array([length for lengths, _ in groups for length in lengths], np.int64)
    counts = np.array([len(lengths) for lengths, _ in groups])
    assert fill(flat, counts, np.array([b for _, b in groups])).tolist() == expected


def test_spans_are_as_long_as_spanbert_draws_them() -> None:
    """One piece a word and few tokens hidden, so that spans seldom meet: mean 3.8, at most 10."""
    sequences = make([512] * 600, 13, unknown=0.0)
    sequences = sequences._replace(starts_word=np.ones(len(sequences.ids), bool))
    masked = mask(sequences, MaskConfig(unit="span", rate=0.05), VOCABULARY)
    starts = np.flatnonzero(np.diff(masked.predicted, prepend=-9) != 1)
    lengths = np.diff(starts, append=len(masked.predicted))
    odds = 0.2 * 0.8 ** np.arange(10)
    mean = (np.arange(1, 11) * odds).sum() / odds.sum()
    assert abs(lengths.mean() - mean) < 0.4  # some are cut by the budget, some touch
    assert (lengths > 10).mean() < 0.05 and (lengths == 10).mean() > 0.01


def test_spans_do_not_cross_a_special_token() -> None:
    sequences = make([128] * 300, 14, unknown=0.0)
    masked = mask(sequences, MaskConfig(unit="span", rate=0.5, max_span=10), VOCABULARY)
    assert not np.isin(masked.predicted % 128, [0, 64, 127]).any()


def test_other_keys_other_masks() -> None:
    sequences = make([128] * 50, 15)
    masks = [
        set(mask(sequences._replace(keys=keys), MaskConfig(), VOCABULARY).predicted.tolist())
        for keys in (sequences.keys, fold(sequences.keys, 0), fold(stream(0, 2), np.arange(50)))
    ]
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert len(masks[one] & masks[two]) < 0.25 * len(masks[one])


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_to_hide_is_no_error(unit: Any) -> None:
    ids = np.array([2, 1, 3, 2, 3], np.uint16)
    sequences = Sequences(ids, np.array([0, 3, 5]), fold(stream(1), np.arange(2)), ids < 60)
    masked = mask(sequences, MaskConfig(unit=unit), VOCABULARY)
    assert len(masked.predicted) == len(masked.labels) == 0 and (masked.ids == ids).all()
    assert count_predicted(sequences, MaskConfig(unit=unit), VOCABULARY) == 0


def test_runs_of_no_length_are_nothing() -> None:
    assert runs(np.array([4, 7, 9]), np.array([2, 0, 1])).tolist() == [4, 5, 9]
    assert runs(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": 1.0},
        {"mask_share": 0.9},
        {"mask_share": 1.2, "random_share": -0.3},
        {"max_predictions": 0},
        {"static_copies": 0},
        {"span_stop": 0.0},
        {"max_span": 0},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        MaskConfig(**wrong)


def test_next_tokens_are_predicted_where_the_one_before_them_stands() -> None:
    sequences, config = make([3, 1, 9, 2]), MaskConfig(unit="next")
    found = mask(sequences, config, VOCABULARY)
    assert found.ids is sequences.ids
    assert found.predicted.tolist() == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 13]
    assert (found.labels == sequences.ids[found.predicted + 1]).all()
    assert count_predicted(sequences, config, VOCABULARY) == len(found.predicted)
    lengths = np.diff(sequences.bounds)
    assert find_budgets(lengths, config).tolist() == [2, 0, 8, 1]
