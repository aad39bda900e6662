"""WordPiece: a word to the longest pieces of the vocabulary, from the left."""

from collections.abc import Sequence

import numpy as np

from bertie.errors import UserError

PREFIX = "##"  # marks a piece that continues a word
ID = np.dtype(np.int32)  # how ids are packed into bytes


class WordPiece:
    """Splits words by a vocabulary; ids come packed as bytes, which join faster than lists."""

    def __init__(self, pieces: Sequence[str], *, unk_token: str, max_word_chars: int) -> None:
        packed = {piece: ID.type(id).tobytes() for id, piece in enumerate(pieces)}
        if unk_token not in packed:
            raise UserError(f"the vocabulary of {len(pieces)} pieces has no {unk_token}")
        self.unk = packed[unk_token]
        self.max_word_chars = max_word_chars
        self.firsts = packed
        self.others = {
            piece.removeprefix(PREFIX): id
            for piece, id in packed.items()
            if piece.startswith(PREFIX) and piece != PREFIX
        }
        self.longest_first = longest_by_start(self.firsts)
        self.longest_other = longest_by_start(self.others)

    def split(self, word: str) -> bytes:
        """Ids of the word's pieces; one [UNK] if it cannot be spelled or is too long."""
        whole = self.firsts.get(word) if len(word) <= self.max_word_chars else None
        return b"".join(self.cut(word)[0]) if whole is None else whole

    def cut(self, word: str, *, continues: bool = False) -> tuple[list[bytes], list[int]]:
        """The id of each piece, and the place in the word where it ends.

        `continues`: it is the rest of a word, whose pieces all carry the prefix.
        """
        length = len(word)
        if length > self.max_word_chars:
            return [self.unk], [length]
        ids: list[bytes] = []
        ends: list[int] = []
        start, table, longest = 0, self.firsts, self.longest_first
        if continues:
            table, longest = self.others, self.longest_other
        while start < length:
            end = min(length, start + longest.get(word[start : start + 2], 1))
            while (id := table.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return [self.unk], [length]
            ids.append(id)
            ends.append(end)
            start, table, longest = end, self.others, self.longest_other
        return ids, ends


def longest_by_start(table: dict[str, bytes]) -> dict[str, int]:
    """First two characters -> length of the longest piece that starts with them."""
    longest: dict[str, int] = {}
    for piece in table:
        if len(piece) > 1:
            longest[piece[:2]] = max(len(piece), longest.get(piece[:2], 0))
    return longest
