"""Counting words: the same whatever the batches and workers, in bounded memory."""

from bertie.text.count import WordCounter, WordCounts, count_words
from bertie.text.files import TokenizerConfig
from tests.text.reference import AWKWARD

CONFIG = TokenizerConfig()


def test_workers_and_batches_change_nothing() -> None:
    texts = [f"{text} word{number % 7}" for number, text in enumerate(AWKWARD * 3)]
    batches = [texts[start : start + 5] for start in range(0, len(texts), 5)]
    alone = count_words([texts], CONFIG)
    assert alone == count_words(batches, CONFIG) == count_words(batches, CONFIG, workers=2)
    assert list(count_words(batches, CONFIG)) == list(count_words(batches, CONFIG, workers=2))


def test_counts_are_of_words_as_the_tokenizer_sees_them() -> None:
    counts = WordCounter(CONFIG).count(["The the, [MASK] THE!", "中文 " + "x" * 101])
    assert counts == {"the": 3, ",": 1, "!": 1, "中": 1, "文": 1, "x" * 101: 1}


def test_memory_is_bounded_and_what_was_forgotten_is_said() -> None:
    counts = WordCounts(capacity=50)
    for start in range(0, 1000, 10):
        counts.add({f"rare{number}": 1 for number in range(start, start + 10)} | {"often": 3})
        assert len(counts) <= 50
    assert counts["often"] == 300
    assert sum(counts.values()) + counts.num_forgotten == 1300
