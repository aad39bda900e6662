"""Which tokens are hidden and predicted, for many sequences at once.

Every draw is keyed by its sequence and its position, so a sequence is masked the same in any batch.
"""

# T tokens of all sequences in a row   N sequences   M predicted tokens   U units (words)
# C candidates, tokens or words that may be chosen   K sequences whose spans are still drawn

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertie.data.chance import Bits, Ints, below, choose, fold
from bertie.errors import UserError

# What the draws of one sequence are for.
ORDER, ANCHOR, SPAN, REPLACE, RANDOM = range(5)
MASKED, REPLACED = 0, 1  # and 2, kept
MAX_SEQUENCES = 1 << 20  # masked at once


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskConfig:
    """How much is hidden, and how. The defaults are the paper's, drawn anew in each epoch.

    token  any token
    word   whole words, by the word starts of the store
    span   runs of whole words, as in SpanBERT
    next   nothing is hidden: each token is predicted where the one before it stands; the rest of
           these settings means nothing then
    """

    unit: Literal["token", "word", "span", "next"] = "token"
    rate: float = 0.15  # of all tokens, [CLS] and [SEP] counted, though never chosen
    max_predictions: int | None = None  # in one sequence; none: what the rate gives
    mask_share: float = 0.8  # of the predicted tokens: [MASK] is seen
    random_share: float = 0.1  # a random piece of the whole vocabulary is seen
    keep_share: float = 0.1  # the token itself is seen
    span_stop: float = 0.2  # the chance of a span to end after each word
    max_span: int = 10  # words
    static_copies: int | None = None  # pairs and masks of this many epochs come again and again

    def __post_init__(self) -> None:
        shares = (self.mask_share, self.random_share, self.keep_share)
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise UserError(f"mask_share, random_share and keep_share sum to 1; found {shares}")
        if not 0 < self.rate < 1:
            raise UserError(f"rate is between 0 and 1; found {self.rate}")
        for name, value in (
            ("max_predictions", self.max_predictions),
            ("static_copies", self.static_copies),
            ("max_span", self.max_span),
        ):
            if value is not None and value < 1:
                raise UserError(f"{name} is at least 1; found {value}")
        if not 0 < self.span_stop <= 1:
            raise UserError(f"span_stop is above 0 and at most 1; found {self.span_stop}")

    @property
    def predicted_share(self) -> float:
        """Of all tokens, at most."""
        return 1.0 if self.unit == "next" else self.rate


class Vocabulary(NamedTuple):
    """What masking has to know of the pieces."""

    size: int
    mask_id: int
    is_special: NDArray[np.bool_]  # (V,) [PAD], [UNK], [CLS], [SEP], [MASK] and extra tokens


class Sequences(NamedTuple):
    """N sequences in a row; `row` and `position` of a token follow from `bounds`."""

    ids: np.ndarray  # (T,)
    bounds: Ints  # (N + 1,)
    keys: Bits  # (N,) where the chance of each comes from
    starts_word: NDArray[np.bool_] | None  # (T,) where the unit is not the token

    def find_rows(self) -> Ints:  # (T,)
        return np.repeat(np.arange(len(self.keys)), np.diff(self.bounds))


class Masked(NamedTuple):
    ids: np.ndarray  # (T,) as the model sees them
    predicted: Ints  # (M,) places in ids, ascending
    labels: np.ndarray  # (M,) the true ids there


class Chosen(NamedTuple):
    places: Ints  # (M,) in any order
    draws: Ints  # (M,) which draw of its sequence replaces a token; those with the same fare alike


def find_budgets(lengths: Ints, config: MaskConfig) -> Ints:
    """(N,) -> (N,): tokens to predict at most, as the original rounds."""
    if config.unit == "next":
        return lengths - 1
    counts: Ints = np.maximum(1, np.rint(lengths * config.rate).astype(np.int64))
    return counts if config.max_predictions is None else np.minimum(counts, config.max_predictions)


def mask(sequences: Sequences, config: MaskConfig, vocabulary: Vocabulary) -> Masked:
    """Hides tokens; `ids` stays as it is."""
    if config.unit == "next":
        return predict_next(sequences)
    rows = sequences.find_rows()  # (T,)
    chosen = UNITS[config.unit](sequences, rows, config, vocabulary)
    order = np.argsort(chosen.places)
    places, draws = chosen.places[order], chosen.draws[order]
    row = rows[places]  # (M,)
    shares = (config.mask_share, config.random_share, config.keep_share)
    fate = choose(fold(fold(sequences.keys, REPLACE)[row], draws), shares)
    position = places - sequences.bounds[row]
    # Uniform over all ids, special ones too, as in the original.
    other = below(fold(fold(sequences.keys, RANDOM)[row], position), vocabulary.size)
    labels = sequences.ids[places]
    seen = np.where(fate == MASKED, vocabulary.mask_id, np.where(fate == REPLACED, other, labels))
    ids = sequences.ids.copy()
    ids[places] = seen.astype(ids.dtype)
    return Masked(ids, places, labels)


def predict_next(sequences: Sequences) -> Masked:
    """Every token that has a successor in its sequence, labelled with that."""
    has_next = np.ones(len(sequences.ids), bool)  # (T,)
    has_next[sequences.bounds[1:] - 1] = False
    places = np.flatnonzero(has_next)
    return Masked(sequences.ids, places, sequences.ids[places + 1])


def count_predicted(sequences: Sequences, config: MaskConfig, vocabulary: Vocabulary) -> int:
    """How many tokens `mask` would predict; for single tokens, without choosing them."""
    if config.unit == "next":
        return len(sequences.ids) - len(sequences.keys)
    rows = sequences.find_rows()
    if config.unit != "token":
        return len(UNITS[config.unit](sequences, rows, config, vocabulary).places)
    candidates = np.flatnonzero(~vocabulary.is_special[sequences.ids])
    counts = np.bincount(rows[candidates], minlength=len(sequences.keys))
    budgets = find_budgets(np.diff(sequences.bounds), config)
    return int(np.minimum(counts, budgets).sum())


def choose_tokens(
    sequences: Sequences, rows: Ints, config: MaskConfig, vocabulary: Vocabulary
) -> Chosen:
    """As many as the budget allows, all alike."""
    candidates = np.flatnonzero(~vocabulary.is_special[sequences.ids])  # (C,)
    counts = np.bincount(rows[candidates], minlength=len(sequences.keys))  # (N,)
    shuffled = shuffle(sequences, rows, candidates)
    taken = np.minimum(find_budgets(np.diff(sequences.bounds), config), counts)
    places = shuffled[runs(np.cumsum(counts) - counts, taken)]
    return Chosen(places, places - sequences.bounds[rows[places]])


def choose_words(
    sequences: Sequences, rows: Ints, config: MaskConfig, vocabulary: Vocabulary
) -> Chosen:
    """Words in random order, each that the rest of the budget has room for.

    A word longer than the whole budget comes only where nothing else was chosen, cut to the budget.
    """
    firsts, lengths, is_candidate = find_words(sequences, vocabulary)  # (U,)
    length_at = np.zeros(len(sequences.ids), np.int64)
    length_at[firsts] = lengths
    shuffled = shuffle(sequences, rows, firsts[is_candidate])  # (C,)
    budgets = find_budgets(np.diff(sequences.bounds), config)
    counts = np.bincount(rows[shuffled], minlength=len(budgets))  # (N,)
    taken = shuffled[fill(length_at[shuffled], counts, budgets)]
    sizes = np.minimum(length_at[taken], budgets[rows[taken]])
    places = runs(taken, sizes)
    return Chosen(places, places - sequences.bounds[rows[places]])


def fill(lengths: Ints, counts: Ints, budgets: Ints) -> NDArray[np.bool_]:
    """(C,), (N,), (N,) -> (C,): which words are taken, in the order given, group after group."""
    ends = np.cumsum(counts)
    starts = ends - counts
    total = np.cumsum(lengths)
    before = np.concatenate([[0], total])[starts]  # (N,) tokens of the groups before
    taken: NDArray[np.bool_] = total - np.repeat(before, counts) <= np.repeat(budgets, counts)
    # So far the words up to the first without room; those behind it are tried one by one.
    num_taken = np.concatenate([[0], np.cumsum(taken)])
    place = starts + num_taken[ends] - num_taken[starts]
    left = budgets - (np.concatenate([[0], total])[place] - before)
    empty = (left == budgets) & (counts > 0)
    active = np.flatnonzero((left > 0) & (place < ends))
    while len(active):
        at = place[active]
        fits = lengths[at] <= left[active]
        taken[at[fits]] = True
        left[active] -= np.where(fits, lengths[at], 0)
        place[active] += 1
        active = active[(left[active] > 0) & (place[active] < ends[active])]
    taken[starts[empty & (left == budgets)]] = True
    return taken


def choose_spans(
    sequences: Sequences, rows: Ints, config: MaskConfig, vocabulary: Vocabulary
) -> Chosen:
    """Spans of words from random places on, until the budget is full; no two touch a word twice.

    A span ends early at a special token, at another span and where the budget ends.
    """
    firsts, lengths, is_free = find_words(sequences, vocabulary)  # (U,)
    bounds = np.searchsorted(firsts, sequences.bounds)  # (N + 1,) of each sequence, in words
    budgets = find_budgets(np.diff(sequences.bounds), config)
    left = budgets.copy()
    draw_of = np.full(len(firsts), -1)  # (U,) which draw took a word
    active = np.arange(len(budgets))
    for number in range(4 + 2 * int(budgets.max(initial=0))):
        words = draw_span(sequences.keys, number, active, bounds, config)  # (K, max_span), -1: none
        ok = np.logical_and.accumulate((words >= 0) & is_free[words], axis=1)
        sizes = np.where(ok, lengths[words], 0)
        ok &= np.cumsum(sizes, axis=1) <= left[active][:, None]
        left[active] -= (sizes * ok).sum(axis=1)
        is_free[words[ok]] = False
        draw_of[words[ok]] = number
        active = active[left[active] > 0]
        if not len(active):
            break
    take_shortest(draw_of, lengths * is_free, bounds, left == budgets)
    taken = np.flatnonzero(draw_of >= 0)
    sizes = np.minimum(lengths[taken], budgets[rows[firsts[taken]]])
    return Chosen(runs(firsts[taken], sizes), np.repeat(draw_of[taken], sizes))


def draw_span(keys: Bits, number: int, active: Ints, bounds: Ints, config: MaskConfig) -> Ints:
    """(K, max_span) words of a span of each active sequence, -1 behind its end."""
    starts, ends = bounds[active], bounds[active + 1]
    anchor = starts + below(fold(fold(keys[active], ANCHOR), number), ends - starts)
    odds = config.span_stop * (1 - config.span_stop) ** np.arange(config.max_span)
    shares = tuple((odds / odds.sum()).tolist())
    length = 1 + choose(fold(fold(keys[active], SPAN), number), shares)
    words = anchor[:, None] + np.arange(config.max_span)
    end = np.minimum(anchor + length, ends)
    return np.where(words < end[:, None], words, -1)


def take_shortest(draw_of: Ints, lengths: Ints, bounds: Ints, is_empty: np.ndarray) -> None:
    """Where nothing was chosen, the shortest word is; a length of 0 stands for none to choose."""
    for row in np.flatnonzero(is_empty):
        here = lengths[bounds[row] : bounds[row + 1]]
        if here.any():
            draw_of[bounds[row] + np.where(here > 0, here, here.max() + 1).argmin()] = 0


def find_words(
    sequences: Sequences, vocabulary: Vocabulary
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """First places, lengths and whether it may be chosen, (U,) each; a special token is a word."""
    assert sequences.starts_word is not None
    is_special = vocabulary.is_special[sequences.ids]  # (T,)
    starts = sequences.starts_word | is_special
    starts[1:] |= is_special[:-1]  # a word that truncation cut in front
    begins = sequences.bounds[:-1]
    starts[begins[np.diff(sequences.bounds) > 0]] = True  # and one that no special token precedes
    firsts = np.flatnonzero(starts)
    return firsts, np.diff(firsts, append=len(starts)), ~is_special[firsts]


def shuffle(sequences: Sequences, rows: Ints, places: Ints) -> Ints:
    """(C,) -> (C,): the same places, row after row, in random order inside each."""
    row = rows[places]
    position = places - sequences.bounds[row]
    assert len(sequences.keys) <= MAX_SEQUENCES, "the sorting keys have no room for more"
    # One sort of plain numbers: 20 bits of row, 28 of chance, 16 of position.
    bits = fold(fold(sequences.keys, ORDER)[row], position) >> np.uint64(36)
    mixed = (row << 44).view(np.uint64) | (bits << np.uint64(16)) | position.view(np.uint64)
    mixed.sort()
    order: Ints = (mixed & np.uint64(0xFFFF)).view(np.int64)
    return order + sequences.bounds[row]


def runs(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start .. start + length - 1 of each run, one after the other.

    >>> runs(np.array([5, 9]), np.array([2, 3]))
    array([ 5,  6,  9, 10, 11])
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


UNITS: dict[str, Callable[[Sequences, Ints, MaskConfig, Vocabulary], Chosen]] = {
    "token": choose_tokens,
    "word": choose_words,
    "span": choose_spans,
}
