"""BERT's tokenizer: text to WordPiece ids with their places in the original text, and back.

    tokenizer = Tokenizer.load(Path("model"))
    tokenizer.encode("a text", "its pair", max_length=128).ids

Ids and offsets equal those of Hugging Face's `tokenizers`. A WordPiece split is a pure function of
the word, and words repeat: splits are kept, in bounded memory, and bulk encoding joins them.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from bertie.errors import UserError, check_known
from bertie.text.files import TokenizerConfig, read_tokenizer, write_tokenizer
from bertie.text.memo import Memo
from bertie.text.sequences import (
    Encoded,
    Keep,
    Pieces,
    Truncate,
    assemble,
    fit,
    num_specials,
    window_starts,
)
from bertie.text.wordpiece import ID, PREFIX, WordPiece
from bertie.text.words import Splitter, mark_false_spaces, pattern_of

CHUNK = re.compile(r"\S+")
# What decoding replaces in a piece and the space before it, in this order, as the reference does.
TIDY = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


class Cut(NamedTuple):
    """A chunk's pieces as packed int32: ids, and places relative to the chunk."""

    ids: bytes
    starts: bytes
    ends: bytes


class Tokenizer:
    """Text <-> ids for one vocabulary and one way to split text."""

    def __init__(self, pieces: Sequence[str], config: TokenizerConfig | None = None) -> None:
        self.pieces = list(pieces)
        self.config = config or TokenizerConfig()
        self.id_of = {piece: id for id, piece in enumerate(self.pieces)}
        for token in self.config.special_tokens:
            if token not in self.id_of:
                raise UserError(f"the vocabulary of {len(self.pieces)} pieces has no {token}")
        self.special_ids = frozenset(self.id_of[token] for token in self.config.special_tokens)
        self._splitter = Splitter(self.config)
        self._wordpiece = WordPiece(
            self.pieces,
            unk_token=self.config.unk_token,
            max_word_chars=self.config.max_word_chars,
        )
        self._special_cuts = {
            token: Cut(self._wordpiece.firsts[token], packed(0), packed(len(token)))
            for token in self.config.special_tokens
        }
        # [MASK] and a user's own tokens belong into text; [CLS], [SEP], [PAD], [UNK] around it.
        self._inside = pattern_of((self.config.mask_token, *self.config.extra_tokens))
        # Text to train on has none of these either: [MASK] is for those who choose what to hide.
        self._of_corpus = pattern_of((self.config.unk_token, *self.config.extra_tokens))
        self._words = Memo(self._wordpiece.split, capacity=1 << 18, longest=40)
        self._chunks = Memo(self._chunk_ids, capacity=1 << 18, longest=40)
        self._word_cuts = Memo(self._wordpiece.cut, capacity=1 << 16, longest=40)
        self._cuts = Memo(self._cut_chunk, capacity=1 << 16, longest=40)

    def remember(self, num_chunks: int) -> "Tokenizer":
        """Bounds what is kept for speed, to so many chunks and half as many words.

        Measured on 230 MB of English: 2^18 of each, which is the default, find 95% of the text,
        cost 90 MB and give 10.0 MB/s; 2^17 chunks find 93%, cost 37 MB and give 9.1 MB/s.
        """
        self._chunks.capacity = num_chunks
        self._words.capacity = num_chunks // 2
        return self

    @classmethod
    def load(cls, folder: Path, *, lower_case: bool | None = None) -> "Tokenizer":
        """The tokenizer of a model directory."""
        return cls(*read_tokenizer(Path(folder), lower_case=lower_case))

    def save(self, folder: Path) -> None:
        write_tokenizer(Path(folder), self.pieces, self.config)

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids; a store carries it."""
        decided = {"max_length": None, "strip_accents": self.config.strips_accents}
        settings = asdict(self.config) | decided
        return hashlib.sha256(json.dumps([self.pieces, settings]).encode()).hexdigest()

    def id(self, piece: str) -> int:
        """The id of a piece of the vocabulary."""
        if piece not in self.id_of:
            raise UserError(f"no piece {piece!r} among the {len(self.pieces)} of the vocabulary")
        return self.id_of[piece]

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[list[str], TokenizerConfig]]:
        return type(self), (self.pieces, self.config)  # the splits kept stay behind

    # Many texts, ids only.

    def ids(self, text: str) -> np.ndarray:
        """Ids of a text (n,), without special tokens around it."""
        return np.frombuffer(self._packed(text), ID)

    def ids_of_all(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text."""
        return [self.ids(text).tolist() for text in texts]

    def flat_ids(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts in a row (T,), and how many each has (n,)."""
        return self._flat(map(self._packed, texts))

    def corpus_ids(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same of text to train on, where "[SEP]", "[MASK]" and their like are plain text.

        One that somebody's text happens to spell would tear a sequence apart, or teach that [MASK]
        is a word. [UNK] stays what it is: so a text says that a word was lost.
        """
        return self._flat(self._packed(text, self._of_corpus) for text in texts)

    def _flat(self, texts: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
        packed = list(texts)
        lengths = np.fromiter(map(len, packed), np.int64, len(packed)) // ID.itemsize
        return np.frombuffer(b"".join(packed), ID), lengths

    def _packed(self, text: str, special: re.Pattern[str] | None = None) -> bytes:
        parts = self._splitter.divide(text, special)
        packed = [
            self._wordpiece.firsts[part]
            if number % 2
            else b"".join(map(self._chunks.__getitem__, mark_false_spaces(part).split()))
            for number, part in enumerate(parts)
        ]
        return packed[0] if len(packed) == 1 else b"".join(packed)

    def _chunk_ids(self, chunk: str) -> bytes:
        words = self._splitter.words(chunk)
        if len(words) == 1:
            return self._words[words[0]]
        return b"".join(map(self._words.__getitem__, words))

    def spell(self, piece: str) -> list[int]:
        """Ids that spell a piece of another vocabulary; none where this one has no letters for it.

        "tokens" may be token ##s here, and "##izing" may be ##iz ##ing.
        """
        continues = piece.startswith(PREFIX) and piece != PREFIX
        words = self._splitter.words(piece.removeprefix(PREFIX) if continues else piece)
        if continues and len(words) != 1:
            return []
        cuts = [self._wordpiece.cut(word, continues=continues)[0] for word in words]
        ids = b"".join(chain.from_iterable(cuts))
        found: list[int] = np.frombuffer(ids, ID).tolist()
        return [] if self.id_of[self.config.unk_token] in found else found

    # One text, with places.

    def split(self, text: str) -> Pieces:
        """The pieces of a text, with their places in it."""
        return self._split(self._splitter.divide(text))

    def split_masked(self, text: str) -> Pieces:
        """The same for a text that a person wrote: its [MASK] is the mask, its "[SEP]" is text.

        [CLS], [SEP], [PAD] and [UNK] make the frame of a sequence; one that somebody's text
        happens to spell would tear it apart. `split` takes them for special, as the reference.
        """
        return self._split(self._splitter.divide(text, self._inside))

    def split_corpus(self, text: str) -> Pieces:
        """The pieces of `corpus_ids`, with their places."""
        return self._split(self._splitter.divide(text, self._of_corpus))

    def _split(self, parts: Sequence[str]) -> Pieces:
        cuts: list[Cut] = []
        starts: list[int] = []
        begin = 0
        for number, part in enumerate(parts):
            if number % 2:
                starts.append(begin)
                cuts.append(self._special_cuts[part])
            else:
                for match in CHUNK.finditer(mark_false_spaces(part)):
                    starts.append(begin + match.start())
                    cuts.append(self._cuts[match.group()])
            begin += len(part)
        counts = [len(cut.ids) // ID.itemsize for cut in cuts]
        shift = np.repeat(np.array(starts, ID), np.array(counts, ID))
        return Pieces(
            np.frombuffer(b"".join([cut.ids for cut in cuts]), ID),
            np.frombuffer(b"".join([cut.starts for cut in cuts]), ID) + shift,
            np.frombuffer(b"".join([cut.ends for cut in cuts]), ID) + shift,
        )

    def _cut_chunk(self, chunk: str) -> Cut:
        ids: list[bytes] = []
        starts: list[int] = []
        ends: list[int] = []
        for word, places in self._splitter.placed_words(chunk):
            word_ids, word_ends = self._word_cuts[word]
            ids += word_ids
            starts += [places[start] for start in (0, *word_ends[:-1])]
            ends += [places[end - 1] + 1 for end in word_ends]
        return Cut(b"".join(ids), array("i", starts).tobytes(), array("i", ends).tobytes())

    # Model input.

    def encode(
        self,
        first: str,
        second: str | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "longest",
        keep: Keep = "front",
    ) -> Encoded:
        """[CLS] first [SEP] (second [SEP]), at most `max_length` long; what was cut is counted."""
        check_known("truncate", truncate, get_args(Truncate))
        check_known("keep", keep, get_args(Keep))
        a, b = self._split_both(first, second)
        num_a, num_b = len(a.ids), 0 if b is None else len(b.ids)
        room = num_a + num_b if max_length is None else max_length - num_specials(b is not None)
        kept_a, kept_b = fit(num_a, num_b, room, truncate)
        if room < 0 or kept_a + kept_b > room:
            raise UserError(
                f"{num_a + num_b} pieces and {num_specials(b is not None)} special tokens do not "
                f"fit into {max_length} with truncate={truncate!r}"
            )
        a, b = trim(a, kept_a, keep), None if b is None else trim(b, kept_b, keep)
        return self._assemble(a, b, num_cut=num_a + num_b - kept_a - kept_b)

    def windows(
        self, first: str, second: str | None = None, *, max_length: int, stride: int
    ) -> list[Encoded]:
        """The whole text in windows: of `second` beside all of `first`, or of `first` if alone.

        `stride` is the distance from window to window, as in the paper's code; Hugging Face calls
        the overlap of two windows by that name. A stride beyond what a window holds would leave
        text out: alone it is refused; beside a `first`, whose length takes from the window, it is
        lowered to the room that is left.
        """
        a, b = self._split_both(first, second)
        fixed, text = (None, a) if b is None else (a, b)
        size = max_length - num_specials(b is not None) - (0 if fixed is None else len(fixed.ids))
        if size < 1 and fixed is None:
            raise UserError(
                f"no room for windows in {max_length}: the special tokens take "
                f"{num_specials(is_pair=False)}; raise max_length"
            )
        if size < 1:
            raise UserError(
                f"the first text alone has {len(a.ids)} pieces: no room for windows of the second "
                f"in {max_length}; shorten it or raise max_length"
            )
        stride = stride if fixed is None else min(stride, size)
        parts = [
            (start, text.part(start, start + size))
            for start in window_starts(len(text.ids), size, stride)
        ]
        return [
            self._assemble(part, None, begin=start)
            if fixed is None
            else self._assemble(fixed, part, begin=start)
            for start, part in parts
        ]

    def _split_both(self, first: str, second: str | None) -> tuple[Pieces, Pieces | None]:
        return self.split(first), None if second is None else self.split(second)

    def _assemble(
        self, a: Pieces, b: Pieces | None, *, num_cut: int = 0, begin: int = 0
    ) -> Encoded:
        cls_id, sep_id = self.id_of[self.config.cls_token], self.id_of[self.config.sep_token]
        return assemble(a, b, cls_id=cls_id, sep_id=sep_id, num_cut=num_cut, begin=begin)

    # Back to text.

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as written in the vocabulary."""
        try:
            return [self.pieces[id] if id >= 0 else self.pieces[len(self.pieces)] for id in ids]
        except IndexError:
            raise UserError(f"an id is outside the vocabulary of {len(self.pieces)}") from None

    def decode(self, ids: Iterable[int], *, with_specials: bool = False) -> str:
        """Readable text: continuations joined, spaces between words, none before closing marks."""
        tokens = self.tokens(id for id in ids if with_specials or int(id) not in self.special_ids)
        spelled = []
        for place, token in enumerate(tokens):
            if place and token.startswith(PREFIX):
                spelled.append(tidy(token.removeprefix(PREFIX)))
            else:
                spelled.append(tidy(f" {token}" if place else token))
        return "".join(spelled)


def tidy(text: str) -> str:
    if " " in text:
        for found, better in TIDY.items():
            text = text.replace(found, better)
    return text


def trim(pieces: Pieces, count: int, keep: Keep) -> Pieces:
    total = len(pieces.ids)
    return pieces.part(0, count) if keep == "front" else pieces.part(total - count, total)


def packed(number: int) -> bytes:
    return ID.type(number).tobytes()
