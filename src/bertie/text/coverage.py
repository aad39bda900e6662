"""How well a vocabulary fits a text: pieces per word, unknown words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertie.text.count import WordCounter
from bertie.text.files import TokenizerConfig
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


def cover_texts(texts: Iterable[str], pieces: list[str], config: TokenizerConfig) -> Coverage:
    return cover(WordCounter(config).count(texts), pieces, config)


def cover(counts: Mapping[str, int], pieces: list[str], config: TokenizerConfig) -> Coverage:
    """The coverage of counted words."""
    wordpiece = WordPiece(pieces, unk_token=config.unk_token, max_word_chars=config.max_word_chars)
    num_pieces = num_whole = 0
    unknown: dict[str, int] = {}
    for word, count in counts.items():
        ids, _ = wordpiece.cut(word)
        num_pieces += count * len(ids)
        if ids == [wordpiece.unk]:
            unknown[word] = count
        elif len(ids) == 1:
            num_whole += count
    ranked = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
    return Coverage(
        num_words=sum(counts.values()),
        num_characters=sum(len(word) * count for word, count in counts.items()),
        num_pieces=num_pieces,
        num_whole=num_whole,
        num_unknown=sum(unknown.values()),
        most_unknown=tuple(ranked[:10]),
    )
