"""Text to words: clean, lower, strip accents, split at spaces, punctuation and CJK characters.

A *chunk* is what white space leaves of the original text; a *word* is normalised, and goes to
WordPiece. Chunks are independent of each other, so everything here works on one at a time.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from bertie.text.characters import spell
from bertie.text.files import TokenizerConfig

# str.split() takes these for white space, BERT drops them; NUL is dropped too, and does not split.
FALSE_SPACES = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
PRINTABLE_WORD = re.compile(
    r"[A-Za-z0-9]+|[^A-Za-z0-9]"
)  # printable ASCII: the rest is punctuation
WORD = re.compile(r"[^ ]+")


class Placed(NamedTuple):
    """A word and where each of its characters comes from in the chunk."""

    word: str
    places: Sequence[int]


class Spelling(dict[int, str]):
    """Code point -> what stands for it in the normalised text; the table of `str.translate`."""

    def __init__(self, config: TokenizerConfig) -> None:
        self.config = config

    def __missing__(self, code: int) -> str:
        text = spell(
            code,
            lower_case=self.config.lower_case,
            strip_accents=self.config.strips_accents,
            split_cjk=self.config.split_cjk,
        )
        self[code] = text
        return text


class Splitter:
    """Splits text into chunks, and chunks into words, as the settings say."""

    def __init__(self, config: TokenizerConfig) -> None:
        self.lower_case = config.lower_case
        self.spelling = Spelling(config)
        self.openers = frozenset(token[0] for token in config.special_tokens)
        self.special = pattern_of(config.special_tokens)

    def divide(self, text: str, special: re.Pattern[str] | None = None) -> list[str]:
        """Text and special tokens in turn: the odd ones of the list are special tokens.

        `special` finds fewer than all of them: see `pattern_of`.
        """
        special = self.special if special is None else special
        has_special = any(opener in text for opener in self.openers) and special.search(text)
        return special.split(text) if has_special else [text]

    def words(self, chunk: str) -> list[str]:
        """The words of a chunk without special tokens."""
        if chunk.isascii() and chunk.isprintable():
            lowered = chunk.lower() if self.lower_case else chunk
            return [lowered] if lowered.isalnum() else PRINTABLE_WORD.findall(lowered)
        return chunk.translate(self.spelling).split()

    def placed_words(self, chunk: str) -> list[Placed]:
        """The same words, each with the places of its characters."""
        if chunk.isascii() and chunk.isprintable():
            lowered = chunk.lower() if self.lower_case else chunk
            found = PRINTABLE_WORD.finditer(lowered)
            return [Placed(match.group(), range(*match.span())) for match in found]
        spelled = [self.spelling[ord(character)] for character in chunk]
        places = [place for place, text in enumerate(spelled) for _ in text]
        found = WORD.finditer("".join(spelled))
        return [Placed(match.group(), places[match.start() : match.end()]) for match in found]


def pattern_of(special_tokens: Sequence[str]) -> re.Pattern[str]:
    ordered = sorted(special_tokens, key=len, reverse=True)  # the longest match wins
    return re.compile(f"({'|'.join(map(re.escape, ordered))})")


def mark_false_spaces(text: str) -> str:
    for character in FALSE_SPACES:
        if character in text:
            text = text.replace(character, "\0")
    return text
