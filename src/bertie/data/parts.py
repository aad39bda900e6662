"""Documents to tokens, part by part: the unit of work of `bertie prepare`, and of its resume.

A part is what one unit of input became; it is done when its summary is there and tells the sizes
that its files have. Parts are joined in order, so the store has the same bytes whatever the number
of processes.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertie.data.blocks import Problems
from bertie.data.corpus import document_hash, is_held_out
from bertie.data.store import StoreWriter, id_type
from bertie.text.characters import CJK, within
from bertie.text.chinese import Segmenter
from bertie.text.disk import write_text
from bertie.text.sentences import split_sentences
from bertie.text.tokenizer import Tokenizer
from bertie.text.wordpiece import PREFIX

JOIN_TOKENS = 1 << 22  # copy so many tokens at a time

CJK_CHARACTER = re.compile(
    "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(*CJK, strict=True)) + "]"
)
SUFFIXES = (".ids", ".words", ".sentences", ".documents")
DOCUMENT = np.dtype([("sentences", "<u4"), ("tokens", "<u8"), ("hash", "V20")])


@dataclass(frozen=True, kw_only=True, slots=True)
class PartConfig:
    """What becomes of a document."""

    segmenter: Literal["none", "jieba"] = "none"  # Chinese words, for whole-word masks
    deduplicate: bool = True  # of equal documents only the first stays
    min_tokens: int = 1  # shorter documents are dropped


class Encoded(NamedTuple):
    """Some documents as arrays."""

    ids: np.ndarray  # (t,)
    starts_word: np.ndarray  # (t,) bool
    sentence_lengths: np.ndarray  # (s,) in tokens, none is 0
    documents: np.ndarray  # (d,) DOCUMENT


class Encoder:
    """Documents to arrays, with the words of the tokenizer or of a segmenter."""

    def __init__(self, tokenizer: Tokenizer, segmenter: str) -> None:
        self.tokenizer = tokenizer
        self.segmenter = Segmenter.load() if segmenter == "jieba" else None
        self.continues = np.array([piece.startswith(PREFIX) for piece in tokenizer.pieces])
        self.is_cjk = np.array([is_cjk_piece(piece) for piece in tokenizer.pieces])

    def encode(self, texts: Sequence[str]) -> Encoded:
        split = [split_sentences(text) for text in texts]
        sentences = [sentence for document in split for sentence in document]
        ids, lengths = self.tokenizer.corpus_ids(sentences)
        starts_word = ~self.continues[ids]
        if self.segmenter is not None:
            self.mark_words(self.segmenter, sentences, ids, lengths, starts_word)
        owners = np.repeat(np.arange(len(split)), [len(document) for document in split])
        documents = np.zeros(len(split), DOCUMENT)
        documents["sentences"] = np.bincount(owners[lengths > 0], minlength=len(split))
        documents["tokens"] = np.bincount(owners, lengths, minlength=len(split))
        documents["hash"] = [np.void(document_hash(text)) for text in texts]
        return Encoded(ids, starts_word, lengths[lengths > 0], documents)

    def mark_words(
        self,
        segmenter: Segmenter,
        sentences: list[str],
        ids: np.ndarray,
        lengths: np.ndarray,
        starts_word: np.ndarray,
    ) -> None:
        """Clears the bit of each CJK character that does not begin a word of the segmenter."""
        rows = np.flatnonzero(self.is_cjk[ids])  # of all CJK pieces
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(rows, np.concatenate([[0], ends])).tolist()
        for number, (first, last) in enumerate(pairwise(cuts)):
            if first == last:
                continue
            sentence, starts = sentences[number], set(segmenter.starts(sentences[number]))
            places = [match.start() for match in CJK_CHARACTER.finditer(sentence)]
            if len(places) != last - first:  # one is not in the vocabulary: look closer
                begin = int(ends[number] - lengths[number])
                places = (
                    self.tokenizer.split_corpus(sentence).starts[rows[first:last] - begin].tolist()
                )
            starts_word[rows[first:last]] = [place in starts for place in places]


def is_cjk_piece(piece: str) -> bool:
    return len(piece) == 1 and within(ord(piece), CJK)


class PartWriter:
    """Encodes documents into the files `stem`.*; the part is done when its summary is there."""

    def __init__(self, stem: Path, encoder: Encoder) -> None:
        self.stem = stem
        self.encoder = encoder
        self.kind = id_type(len(encoder.tokenizer.pieces))
        self.unk_id = encoder.tokenizer.id(encoder.tokenizer.config.unk_token)
        self.summary: Counter[str] = Counter()
        self.files = {name: stem.with_suffix(name).open("wb") for name in SUFFIXES}

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()

    def add(self, texts: Sequence[str]) -> None:
        encoded = self.encoder.encode(texts)
        self.files[".ids"].write(encoded.ids.astype(self.kind).tobytes())
        self.files[".words"].write(encoded.starts_word.tobytes())
        self.files[".sentences"].write(encoded.sentence_lengths.astype("<u4").tobytes())
        self.files[".documents"].write(encoded.documents.tobytes())
        self.summary["documents_read"] += len(texts)
        self.summary["characters"] += sum(map(len, texts))
        self.summary["unknown_tokens"] += int((encoded.ids == self.unk_id).sum())

    def finish(self, problems: Problems) -> None:
        """The summary is written when all it tells is on the disk: also a power cut leaves that."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.__exit__()
        summary = {
            "counts": dict(self.summary),
            "problems": asdict(problems),
            "bytes": find_sizes(self.stem),
        }
        write_text(self.stem.with_suffix(".json"), json.dumps(summary))


def find_sizes(stem: Path) -> dict[str, int]:
    """Of the files of a part that are there."""
    paths = {name: stem.with_suffix(name) for name in SUFFIXES}
    return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}


def is_done(stem: Path) -> bool:
    """Whether a part is whole; any other one is made again."""
    try:
        summary = json.loads(stem.with_suffix(".json").read_bytes())
        return bool(summary["bytes"] == find_sizes(stem))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def read_summary(stem: Path) -> tuple[Counter[str], Problems]:
    summary = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    return Counter(summary["counts"]), Problems(**summary["problems"])


def read_table(stem: Path) -> np.ndarray:
    return np.fromfile(stem.with_suffix(".documents"), DOCUMENT)


class Choice(NamedTuple):
    """Which documents of all parts go where, and how many went nowhere."""

    is_train: np.ndarray  # (D,) bool
    is_held_out: np.ndarray  # (D,) bool
    counts: Counter[str]


def choose(tables: Sequence[np.ndarray], config: PartConfig, held_out_percent: int) -> Choice:
    """Drops what is empty, too short or a duplicate; holds out a share by the hash of the text."""
    table = np.concatenate(tables) if tables else np.zeros(0, DOCUMENT)
    _, firsts = np.unique(table["hash"], return_index=True)
    is_first = np.zeros(len(table), bool)
    is_first[firsts] = True
    is_empty = table["tokens"] == 0
    is_short = ~is_empty & (table["tokens"] < config.min_tokens)
    is_double = ~is_empty & ~is_short & ~is_first & config.deduplicate
    is_kept = ~is_empty & ~is_short & ~is_double
    held = np.fromiter(
        (is_held_out(bytes(hash), held_out_percent) for hash in table["hash"]), np.bool_, len(table)
    )
    counts = Counter(
        documents_empty=int(is_empty.sum()),
        documents_short=int(is_short.sum()),
        documents_duplicate=int(is_double.sum()),
        documents_held_out=int((is_kept & held).sum()),
    )
    return Choice(is_kept & ~held, is_kept & held, counts)


def join(
    stems: Sequence[Path],
    tables: Sequence[np.ndarray],
    is_wanted: np.ndarray,
    writer: StoreWriter,
    on_progress: Callable[[int, int], None],
) -> None:
    """Copies the wanted documents of all parts into the store, in order."""
    begin = 0
    for number, (stem, table) in enumerate(zip(stems, tables, strict=True)):
        wanted = is_wanted[begin : begin + len(table)]
        begin += len(table)
        if wanted.any():
            for encoded in read_part(stem, table, writer.type):
                copy(encoded, wanted[: len(encoded.documents)], writer)
                wanted = wanted[len(encoded.documents) :]
        on_progress(number + 1, len(stems))


def read_part(stem: Path, table: np.ndarray, kind: np.dtype[Any]) -> Iterator[Encoded]:
    """A part in groups of whole documents of about `JOIN_TOKENS`."""
    group = np.cumsum(table["tokens"]) // JOIN_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(table)]
    with (
        stem.with_suffix(".ids").open("rb") as ids,
        stem.with_suffix(".words").open("rb") as words,
        stem.with_suffix(".sentences").open("rb") as sentences,
    ):
        for first, last in pairwise(cuts):
            documents = table[first:last]
            num_tokens = int(documents["tokens"].sum())
            yield Encoded(
                np.fromfile(ids, kind, num_tokens),
                np.fromfile(words, bool, num_tokens),
                np.fromfile(sentences, "<u4", int(documents["sentences"].sum())),
                documents,
            )


def copy(encoded: Encoded, wanted: np.ndarray, writer: StoreWriter) -> None:
    documents = encoded.documents
    if not wanted.all():
        of_tokens = np.repeat(wanted, documents["tokens"].astype(np.int64))
        of_sentences = np.repeat(wanted, documents["sentences"])
        documents = documents[wanted]
        encoded = Encoded(
            encoded.ids[of_tokens],
            encoded.starts_word[of_tokens],
            encoded.sentence_lengths[of_sentences],
            documents,
        )
    writer.add(
        encoded.ids,
        encoded.starts_word,
        encoded.sentence_lengths.astype(np.int64),
        documents["sentences"].astype(np.int64),
    )
