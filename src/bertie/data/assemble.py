"""Rows of an index become sequences of ids with their special tokens."""

# T tokens of all sequences in a row   N sequences   R runs of text, each with a [SEP] behind it

import numpy as np
from numpy.typing import NDArray

from bertie.data.chance import Bits, Ints
from bertie.data.instances import row_lengths
from bertie.data.masking import Sequences, Vocabulary, runs
from bertie.data.store import TOKENIZER, Store
from bertie.errors import UserError
from bertie.text.files import read_tokenizer


def find_seconds(rows: np.ndarray, lengths: Ints) -> Ints:
    """(N,) where segment 1 begins in each sequence; its length where there is none."""
    return np.where(rows["b_length"] > 0, rows["a_length"].astype(np.int64) + 2, lengths)


class Assembler:
    """Rows of an index -> sequences of ids with their special tokens."""

    def __init__(self, store: Store, *, reads_words: bool, framed: bool = True) -> None:
        self.ids, self.words = np.asarray(store.ids), np.asarray(store.words)
        self.store, self.reads_words, self.framed = store, reads_words, framed
        self._document_starts: Ints | None = None
        pieces, config = read_tokenizer(store.folder / TOKENIZER)
        id_of = {piece: id for id, piece in enumerate(pieces)}
        self.cls_id, self.sep_id = id_of[config.cls_token], id_of[config.sep_token]
        self.pad_id = id_of[config.pad_token]
        is_special = np.zeros(len(pieces), bool)
        is_special[[id_of[token] for token in config.special_tokens]] = True
        self.vocabulary = Vocabulary(len(pieces), id_of[config.mask_token], is_special)

    def assemble(self, rows: np.ndarray, keys: Bits) -> Sequences:
        """[CLS] A [SEP], [CLS] A [SEP] B [SEP], or with more [SEP] between documents; A if bare."""
        counts, starts, lengths = self.find_runs(rows)  # (N,), (R,), (R,)
        if len(starts) and (starts.min() < 0 or (starts + lengths).max() > len(self.ids)):
            raise UserError(f"the index of {self.store.folder} is damaged; delete its folder index")
        sizes = row_lengths(rows, framed=self.framed)
        bounds = np.concatenate([[0], np.cumsum(sizes)])  # (N + 1,)
        source = runs(starts, lengths)
        target = np.arange(len(source))
        ids = np.full(bounds[-1], self.sep_id, self.ids.dtype)  # (T,)
        if self.framed:
            # Before a run stand all runs before it, a [SEP] behind each, and a [CLS] per sequence.
            before = np.cumsum(lengths + 1) - (lengths + 1)
            target = runs(before + 1 + np.repeat(np.arange(len(rows)), counts), lengths)
            ids[bounds[:-1]] = self.cls_id
        ids[target] = self.ids[source]
        starts_word = None
        if self.reads_words:
            starts_word = np.ones(len(ids), bool)
            starts_word[target] = self.read_bits(source)
        return Sequences(ids, bounds, keys, starts_word)

    def read_bits(self, places: Ints) -> NDArray[np.bool_]:
        """Which tokens of the store start a word; the most significant bit comes first."""
        shift = (7 - (places & 7)).astype(np.uint8)
        bits: np.ndarray = self.words[places >> 3] >> shift & 1
        return bits.astype(bool)

    def find_runs(self, rows: np.ndarray) -> tuple[Ints, Ints, Ints]:
        """How many runs of text each row has, and their places in the store."""
        if rows["num_breaks"].any():
            return self.find_broken_runs(rows)
        has_b = rows["b_length"] > 0
        is_there = np.stack([np.ones(len(rows), bool), has_b], 1)  # (N, 2)
        starts = np.stack([rows["a"], rows["b"]], 1)[is_there]
        lengths = np.stack([rows["a_length"], rows["b_length"]], 1)[is_there].astype(np.int64)
        return 1 + has_b.astype(np.int64), starts, lengths

    def find_broken_runs(self, rows: np.ndarray) -> tuple[Ints, Ints, Ints]:
        """Of rows without B: a run ends where its document does."""
        if self._document_starts is None:
            self._document_starts = self.store.sentences[self.store.documents]  # (D + 1,)
        counts = 1 + rows["num_breaks"].astype(np.int64)
        row = np.repeat(np.arange(len(rows)), counts)  # (R,)
        number = runs(np.zeros_like(counts), counts)  # of the run in its row
        first = np.searchsorted(self._document_starts, rows["a"], "right")  # the document behind
        end = rows["a"] + rows["a_length"]
        starts = self._document_starts[first[row] + number - 1]
        starts = np.where(number == 0, rows["a"][row], starts)
        ends = self._document_starts[
            np.minimum(first[row] + number, len(self._document_starts) - 1)
        ]
        ends = np.where(number == counts[row] - 1, end[row], ends)
        return counts, starts, ends - starts
