"""Word counts to a WordPiece vocabulary.

Frequent neighbours are merged into new pieces, the most frequent pair first, until there are more
pieces than asked for; of these the ones that longest-match-first really uses are kept.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as count_from
from itertools import filterfalse, islice
from math import inf

import numpy as np

from bertie.errors import UserError
from bertie.text.characters import CJK, within
from bertie.text.files import TokenizerConfig
from bertie.text.wordpiece import PREFIX, WordPiece

MOST = 10_000_000
LIMITS = {
    "size": (1, MOST),
    "num_unused": (0, MOST),
    "min_count": (1, inf),
    "max_alphabet": (1, MOST),
    "min_cjk_count": (1, inf),
    "surplus": (0, 4),
}
SHIFT = 32  # a pair of symbols in one int64: left << SHIFT | right


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnConfig:
    """What the vocabulary shall hold."""

    size: int = 30_522  # pieces in all, special tokens and [unused] slots among them
    num_unused: int = 100  # [unused0] ..: free slots for a user's own tokens
    min_count: int = 2  # rarer words teach nothing
    max_alphabet: int = 1_000  # the most frequent characters; CJK ones do not count
    min_cjk_count: int = 3  # a CJK character that comes as often is kept
    surplus: float = 0.2  # learn so many more pieces than asked for, then keep the used ones

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also where it is not a number
                limits = f"at least {low}" if high == inf else f"{low} to {high:,}"
                raise UserError(f"learn.{name} is {limits}; found {value}")


def learn(
    counts: Mapping[str, int],
    config: LearnConfig,
    tokenizer: TokenizerConfig,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """The pieces of a vocabulary of exactly `config.size`; equal counts, equal answer."""
    reserved = list(tokenizer.special_tokens)
    reserved += [f"[unused{number}]" for number in range(config.num_unused)]
    # A longer word is [UNK] whatever the vocabulary: it teaches nothing.
    counts = {word: n for word, n in counts.items() if len(word) <= tokenizer.max_word_chars}
    symbols = alphabet(counts, config)
    is_reserved = frozenset(reserved).__contains__  # such a piece is there already
    room = config.size - len(reserved) + sum(map(is_reserved, symbols))
    if len(symbols) > room:
        raise UserError(
            f"{len(symbols)} single characters and {len(reserved)} special tokens do not fit into "
            f"{config.size} pieces; raise learn.size, or lower learn.max_alphabet or raise "
            "learn.min_cjk_count"
        )
    num_merges = int((room - len(symbols)) * (1 + config.surplus))
    known = frozenset(symbols)
    usable = sorted(  # sorted: the order in which words were counted must not matter
        (word, count)
        for word, count in counts.items()
        if count >= config.min_count and len(word) > 1 and known.issuperset(spelled(word))
    )
    merged = Merger(dict(usable), symbols).run(num_merges, on_progress)
    merged = list(filterfalse(is_reserved, merged))
    chosen = symbols + most_used(merged, symbols, usable, room - len(symbols))
    missing = room - len(chosen)  # a small corpus has no more to give
    chosen = list(filterfalse(is_reserved, chosen))
    taken = {*reserved, *chosen}
    free = (name for n in count_from(config.num_unused) if (name := f"[unused{n}]") not in taken)
    return reserved + list(islice(free, missing)) + chosen


def extend(
    counts: Mapping[str, int],
    pieces: Sequence[str],
    config: LearnConfig,
    tokenizer: TokenizerConfig,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """The pieces as they are, and behind them new ones for these words, up to `config.size`.

    What would be learned from the words alone, and is not there yet, is added: the most used first,
    counted while the old pieces compete. [unused] slots stay free; a model may have given them a
    meaning. There are enough new ones if the words have them: no more than `len(pieces)` of
    `config.size` can be there already.
    """
    if config.size <= len(pieces):
        raise UserError(
            f"the vocabulary has {len(pieces)} pieces already; to extend it, learn.size must be "
            f"more than that; found {config.size}"
        )
    learned = learn(counts, replace(config, num_unused=0), tokenizer, on_progress)
    there = frozenset(pieces)
    new = [p for p in learned if p not in there and not p.startswith("[unused")]
    longest = tokenizer.max_word_chars
    usable = [(w, n) for w, n in counts.items() if n >= config.min_count and len(w) <= longest]
    used = count_uses([*pieces, *new], usable)
    ranked = sorted(new, key=lambda piece: (-used[piece], piece))
    enough = [piece for piece in ranked if used[piece] >= config.min_count]
    return [*pieces, *enough[: config.size - len(pieces)]]


def spelled(word: str) -> list[str]:
    """A word in single characters: "cat" -> c ##a ##t."""
    return [word[0]] + [PREFIX + character for character in word[1:]]


def alphabet(counts: Mapping[str, int], config: LearnConfig) -> list[str]:
    """Single characters, first and continuing, most frequent first."""
    forms: Counter[str] = Counter()
    for word, count in counts.items():
        for symbol in spelled(word):
            forms[symbol] += count
    characters: Counter[str] = Counter()
    for symbol, count in forms.items():
        characters[symbol[-1]] += count
    ordered = sorted(characters, key=lambda c: (-characters[c], c))
    is_cjk = {c: within(ord(c), CJK) for c in ordered}
    kept = set(islice((c for c in ordered if not is_cjk[c]), config.max_alphabet))
    kept |= {c for c in ordered if is_cjk[c] and characters[c] >= config.min_cjk_count}
    return sorted(
        (s for s in forms if s[-1] in kept), key=lambda s: (-characters[s[-1]], s[-1], len(s))
    )


def most_used(
    pieces: list[str], symbols: list[str], words: Iterable[tuple[str, int]], count: int
) -> list[str]:
    """The `count` pieces that splitting the words uses most, in the order they were learned."""
    if len(pieces) <= count:
        return pieces
    used = count_uses([*symbols, *pieces], words)
    ranked = sorted(pieces, key=lambda piece: -used[piece])  # stable
    kept = frozenset(ranked[:count])
    return [piece for piece in pieces if piece in kept]


def count_uses(pieces: Sequence[str], words: Iterable[tuple[str, int]]) -> dict[str, int]:
    """How often each piece comes when the words, with their counts, are split."""
    splitter = WordPiece(["", *pieces], unk_token="", max_word_chars=1 << 30)
    used: Counter[bytes] = Counter()
    for word, frequency in words:
        for id in splitter.cut(word)[0]:
            used[id] += frequency
    return {piece: used[splitter.firsts[piece]] for piece in pieces}


class Merger:
    """Merges the most frequent pair of neighbours again and again, with arrays over all words.

    Every character of every word has a place; the places of a word are linked by `after` and
    `before` (-1 at its ends). A merge gives the left place the new symbol and unlinks the right.
    `where` holds for each pair the places where it began at some time; stale ones are passed over.
    """

    def __init__(self, counts: Mapping[str, int], symbols: list[str]) -> None:
        self.names = list(symbols)
        number = {symbol: index for index, symbol in enumerate(symbols)}
        letters = [number[symbol] for word in counts for symbol in spelled(word)]
        lengths = np.fromiter(map(len, counts), np.int64, len(counts))
        self.symbol = np.array(letters, np.int32)
        self.weight = np.repeat(np.fromiter(counts.values(), np.int64, len(counts)), lengths)
        places = np.arange(len(letters), dtype=np.int32)
        ends = np.cumsum(lengths)
        self.after = places + 1
        self.after[ends - 1] = -1
        self.before = places - 1
        self.before[ends - lengths] = -1
        self.count: dict[int, int] = {}
        self.where: dict[int, list[np.ndarray]] = {}
        self.heap: list[tuple[int, int]] = []  # (-count, pair); a count may be out of date
        self.change(np.flatnonzero(self.after >= 0).astype(np.int32), +1)

    def run(self, num_merges: int, on_progress: Callable[[int, int], None]) -> list[str]:
        """The names of the new pieces, in the order of their merges."""
        seen = set(self.names)
        merged: list[str] = []
        while len(merged) < num_merges and (pair := self.most_frequent()) is not None:
            name = self.names[pair >> SHIFT] + self.names[pair & ((1 << SHIFT) - 1)][len(PREFIX) :]
            self.merge(pair, name)
            if name not in seen:  # two ways can lead to the same piece
                seen.add(name)
                merged.append(name)
            if len(merged) % 256 == 0:
                on_progress(len(merged), num_merges)
        on_progress(num_merges, num_merges)
        return merged

    def most_frequent(self) -> int | None:
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.count.get(pair, 0) == -count:
                return pair if count else None
            if current := self.count.get(pair, 0):
                heapq.heappush(self.heap, (-current, pair))
        return None

    def merge(self, pair: int, name: str) -> None:
        left, right = pair >> SHIFT, pair & ((1 << SHIFT) - 1)
        places = self.places_of(pair, left, right)
        nexts = self.after[places]
        touched = np.concatenate([self.before[places], places, nexts])
        self.change(self.beginnings(touched), -1)
        self.names.append(name)
        self.symbol[places] = len(self.names) - 1
        self.symbol[nexts] = -1
        beyond = self.after[nexts]
        self.after[places] = beyond
        self.before[beyond[beyond >= 0]] = places[beyond >= 0]
        self.change(self.beginnings(np.concatenate([self.before[places], places])), +1)
        del self.where[pair]

    def places_of(self, pair: int, left: int, right: int) -> np.ndarray:
        """Where the pair begins now; of overlapping ones (a a a) the first."""
        places: np.ndarray = np.unique(np.concatenate(self.where[pair]))
        nexts = self.after[places]
        holds = (self.symbol[places] == left) & (nexts >= 0)
        holds[holds] = self.symbol[nexts[holds]] == right
        places = places[holds]
        if left != right:
            return places
        free: list[int] = []
        taken = -1
        for place in places.tolist():  # in the order of the text
            if place != taken:
                free.append(place)
                taken = int(self.after[place])
        return np.array(free, np.int32)

    def beginnings(self, places: np.ndarray) -> np.ndarray:
        """Those of the places, each once, at which a pair begins."""
        found = np.unique(places[places >= 0])
        beginning: np.ndarray = found[self.after[found] >= 0]
        return beginning

    def change(self, places: np.ndarray, sign: int) -> None:
        """Counts the pairs that begin at the places in (+1), or out (-1)."""
        if not len(places):
            return
        pairs = self.symbol[places].astype(np.int64) << SHIFT | self.symbol[self.after[places]]
        order = np.argsort(pairs, kind="stable")
        pairs, places = pairs[order], places[order]
        firsts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        totals = np.add.reduceat(self.weight[places], firsts).tolist()
        lasts = [*firsts[1:].tolist(), len(places)]
        for pair, total, first, last in zip(
            pairs[firsts].tolist(), totals, firsts.tolist(), lasts, strict=True
        ):
            count = self.count.get(pair, 0) + sign * total
            if count:
                self.count[pair] = count
            else:
                del self.count[pair]
            if sign > 0:
                self.where.setdefault(pair, []).append(places[first:last])
                heapq.heappush(self.heap, (-count, pair))
