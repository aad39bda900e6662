"""Learning a vocabulary: exact size, deterministic, frequent words whole, Chinese kept."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.text.count import WordCounts, count_words
from bertie.text.coverage import cover
from bertie.text.files import TokenizerConfig
from bertie.text.learn import LearnConfig, Merger, alphabet, extend, learn, spelled
from tests.text.reference import AWKWARD, SPECIALS

CONFIG = TokenizerConfig()


@pytest.fixture(scope="module")
def counts() -> WordCounts:
    """Words as they come in language: few frequent, many rare, made of common syllables."""
    rng = np.random.default_rng(7)
    syllables = ["ta", "ri", "no", "ve", "st", "un", "ing", "er", "qu", "o", "a", "lib"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(3000)]
    text = " ".join(rng.choice(words, 40_000, p=zipf(len(words))))
    return count_words([[text, *AWKWARD]], CONFIG)


def zipf(size: int) -> np.ndarray:
    weights = 1 / np.arange(1, size + 1)
    return weights / weights.sum()


@pytest.mark.parametrize("size", [200, 500, 1500])
def test_the_size_is_exact_and_no_piece_comes_twice(counts: WordCounts, size: int) -> None:
    config = LearnConfig(size=size, num_unused=7, max_alphabet=60, min_cjk_count=1)
    pieces = learn(counts, config, CONFIG)
    assert len(pieces) == len(set(pieces)) == size
    assert pieces[:5] == SPECIALS
    assert pieces[5:12] == [f"[unused{n}]" for n in range(7)]


def test_frequent_words_stay_whole(counts: WordCounts) -> None:
    pieces = learn(counts, LearnConfig(size=1500, num_unused=0), CONFIG)
    frequent = [word for word, _ in counts.most_common(400)]
    assert set(frequent) <= set(pieces)


def test_the_order_of_counting_changes_nothing(counts: WordCounts) -> None:
    config = LearnConfig(size=800)
    backwards = dict(reversed(list(counts.items())))
    assert learn(counts, config, CONFIG) == learn(backwards, config, CONFIG)


def test_chinese_characters_above_the_count_are_kept_whole() -> None:
    counts = {"中": 5, "文": 3, "稀": 2, "abc": 9, "xyz": 4}
    pieces = learn(counts, LearnConfig(size=40, num_unused=0, min_cjk_count=3), CONFIG)
    assert {"中", "文"} <= set(pieces)
    assert "稀" not in pieces and "##中" not in pieces


def test_the_alphabet_is_limited_to_the_most_frequent_characters() -> None:
    symbols = alphabet({"aab": 10, "bz": 1, "中": 3}, LearnConfig(max_alphabet=2))
    assert symbols == ["a", "##a", "b", "##b", "中"]


def test_a_text_that_gives_too_little_is_filled_with_unused_slots() -> None:
    pieces = learn({"ab": 5}, LearnConfig(size=50, num_unused=2), CONFIG)
    assert len(pieces) == 50
    assert pieces[-3:] == ["a", "##b", "ab"]
    assert pieces[5:-3] == [f"[unused{n}]" for n in range(42)]


def test_a_size_below_the_alphabet_is_refused(counts: WordCounts) -> None:
    with pytest.raises(UserError, match="do not fit into 50 pieces"):
        learn(counts, LearnConfig(size=50, num_unused=0), CONFIG)


def test_keeping_the_used_pieces_gives_no_more_pieces_per_word(counts: WordCounts) -> None:
    plain = learn(counts, LearnConfig(size=700, surplus=0.0), CONFIG)
    chosen = learn(counts, LearnConfig(size=700, surplus=0.3), CONFIG)
    assert cover(counts, chosen, CONFIG).num_pieces <= cover(counts, plain, CONFIG).num_pieces


words = st.dictionaries(st.text("abc", min_size=2, max_size=9), st.integers(1, 50), max_size=12)


@given(words, st.integers(1, 12))
@settings(max_examples=300, deadline=None, database=None)
def test_merging_with_arrays_is_merging_by_hand(counts: dict[str, int], num_merges: int) -> None:
    symbols = sorted({symbol for word in counts for symbol in spelled(word)})
    got = Merger(counts, symbols).run(num_merges, lambda done, total: None) if counts else []
    assert got == merge_by_hand(counts, symbols, num_merges)


def merge_by_hand(counts: dict[str, int], symbols: list[str], num_merges: int) -> list[str]:
    """The same, word by word: the most frequent pair, the lower numbers where two are equal."""
    names, merged = list(symbols), []
    split = {word: [names.index(symbol) for symbol in spelled(word)] for word in counts}
    while len(merged) < num_merges:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, numbers in split.items():
            for pair in pairwise(numbers):
                pairs[pair] += counts[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        name = names[left] + names[right][2:]
        if name not in names:
            merged.append(name)
        names.append(name)
        for numbers in split.values():
            place = 0
            while place < len(numbers) - 1:
                if numbers[place : place + 2] == [left, right]:
                    numbers[place : place + 2] = [len(names) - 1]
                place += 1
    return merged


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 0),
        ("size", 10_000_001),
        ("num_unused", -1),
        ("min_count", 0),
        ("max_alphabet", 0),
        ("min_cjk_count", 0),
        ("surplus", -0.1),
        ("surplus", 4.5),
        ("surplus", float("nan")),
        ("surplus", float("inf")),
    ],
)
def test_a_setting_out_of_bounds_is_named(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"learn\.{name} is .*; found {value}"):
        LearnConfig(**{name: value})


@pytest.mark.parametrize("surplus", [0.0, 0.2])
def test_a_reserved_name_is_not_learned_a_second_time(surplus: float) -> None:
    tokenizer = TokenizerConfig(extra_tokens=("url", "a"))
    counts = {"url": 50, "urls": 20, "[unused1]": 30, "[unused9]": 30, "abc": 9, "a": 4}
    for size in (34, 38, 60):
        config = LearnConfig(size=size, num_unused=3, surplus=surplus)
        pieces = learn(counts, config, tokenizer)
        assert len(pieces) == len(set(pieces)) == size
        assert pieces[5:10] == ["url", "a", "[unused0]", "[unused1]", "[unused2]"]
    assert "urls" in pieces


def test_words_too_rare_or_too_long_teach_nothing() -> None:
    counts = {"abab": 2, "cdcd": 3, "c" + "d" * 100: 9}
    config = LearnConfig(size=60, num_unused=0, min_count=3)
    pieces = learn(counts, config, CONFIG)
    assert "cdcd" in pieces and "abab" not in pieces and "ab" not in pieces
    assert {"a", "##b"} <= set(pieces), "the characters of rare words are known"
    assert not any("dd" in piece for piece in pieces)


def test_large_counts_do_not_overflow() -> None:
    huge = {"ab": 2**40, "abc": 2**41, "b": 2**50}
    assert "abc" in learn(huge, LearnConfig(size=20, num_unused=0), CONFIG)


def test_extending_keeps_what_is_there_and_adds_what_is_used_most() -> None:
    filler = [f"w{number}" for number in range(30)]
    old = [*CONFIG.special_tokens, "[unused0]", "a", "##b", "##c", "abc", *filler]
    counts = {"ab": 9, "abc": 99, "abcd": 7, "xyz": 8, "once": 1, "x": 3}
    config = LearnConfig(size=len(old) + 3, min_count=2)
    made = extend(counts, old, config, CONFIG)
    assert made == [*old, "ab", "xyz", "abcd"]
    backwards = dict(reversed(counts.items()))
    assert extend(backwards, old, config, CONFIG) == made
    assert extend(counts, old, replace(config, size=90), CONFIG) == [*made, "x"]


def test_an_extension_must_be_larger() -> None:
    old = [*CONFIG.special_tokens, "a"]
    with pytest.raises(UserError, match="has 6 pieces already"):
        extend({"ab": 9}, old, LearnConfig(size=6), CONFIG)
