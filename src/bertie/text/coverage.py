"""How well a vocabulary fits a text: pieces per word, unknown words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bertie.text.count import WordCounter, WordCounts
from bertie.text.files import TokenizerConfig
from bertie.text.memo import Memo
from bertie.text.wordpiece import WordPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Counts over a text; a word is what WordPiece gets: punctuation marks and CJK ones count."""

    num_words: int
    num_characters: int
    num_pieces: int
    num_whole: int  # words that are one piece
    num_unknown: int
    most_unknown: tuple[tuple[str, int], ...]  # the most frequent unknown words

    @property
    def pieces_per_word(self) -> float:
        return self.num_pieces / max(1, self.num_words)

    @property
    def characters_per_piece(self) -> float:
        return self.num_characters / max(1, self.num_pieces)

    @property
    def whole_share(self) -> float:
        return self.num_whole / max(1, self.num_words)

    @property
    def unknown_share(self) -> float:
        return self.num_unknown / max(1, self.num_words)


class Fitting:
    """Adds up the coverage of one vocabulary over counts of words, in bounded memory."""

    def __init__(self, pieces: Sequence[str], config: TokenizerConfig) -> None:
        self.wordpiece = WordPiece(
            pieces, unk_token=config.unk_token, max_word_chars=config.max_word_chars
        )
        self.num_pieces_of = Memo(self._count_pieces, capacity=1 << 18, longest=40)
        self.num_words = self.num_characters = self.num_pieces = 0
        self.num_whole = self.num_unknown = 0
        self.unknown = WordCounts()  # forgets rare ones: only the most frequent are shown

    def _count_pieces(self, word: str) -> int:
        """0 for an unknown word."""
        ids, _ = self.wordpiece.cut(word)
        return 0 if ids == [self.wordpiece.unk] else len(ids)

    def add(self, counts: Mapping[str, int]) -> None:
        unknown: dict[str, int] = {}
        for word, count in counts.items():
            num_pieces = self.num_pieces_of[word]
            self.num_words += count
            self.num_characters += len(word) * count
            self.num_pieces += count * max(1, num_pieces)
            if not num_pieces:
                self.num_unknown += count
                unknown[word] = count
            elif num_pieces == 1:
                self.num_whole += count
        self.unknown.add(unknown)

    def finish(self) -> Coverage:
        ranked = sorted(self.unknown.items(), key=lambda item: (-item[1], item[0]))
        return Coverage(
            num_words=self.num_words,
            num_characters=self.num_characters,
            num_pieces=self.num_pieces,
            num_whole=self.num_whole,
            num_unknown=self.num_unknown,
            most_unknown=tuple(ranked[:10]),
        )


def cover_batches(
    batches: Iterable[Iterable[str]], vocabularies: Sequence[tuple[list[str], TokenizerConfig]]
) -> list[Coverage]:
    """The coverage of all texts by each vocabulary, its pieces and settings, in one pass."""
    fittings = [Fitting(*vocabulary) for vocabulary in vocabularies]
    counters: list[tuple[TokenizerConfig, WordCounter]] = []  # those that split alike share one
    for _, config in vocabularies:
        if config not in [known for known, _ in counters]:
            counters.append((config, WordCounter(config)))
    for texts in map(list, batches):
        for known, counter in counters:
            counts = counter.count(texts)
            for fitting, (_, config) in zip(fittings, vocabularies, strict=True):
                if config == known:
                    fitting.add(counts)
    return [fitting.finish() for fitting in fittings]


def cover_texts(texts: Iterable[str], pieces: list[str], config: TokenizerConfig) -> Coverage:
    return cover_batches([texts], [(pieces, config)])[0]


def cover(counts: Mapping[str, int], pieces: list[str], config: TokenizerConfig) -> Coverage:
    """The coverage of counted words."""
    fitting = Fitting(pieces, config)
    fitting.add(counts)
    return fitting.finish()
