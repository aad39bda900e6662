"""The token store: a corpus as ids on disk, memory-mapped; docs/formats.md describes it.

store = open_store(Path("store"))
store.ids[store.sentences[0] : store.sentences[1]]  # the first sentence
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from bertie.errors import UserError
from bertie.text.disk import write_text
from bertie.text.tokenizer import Tokenizer

VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
HELD_OUT = "held_out"  # the folder of the store of held-out documents, inside the store
FILES = ("ids.bin", "sentences.bin", "documents.bin", "words.bin")
OFFSET = np.dtype("<i8")


def digest_of(values: Mapping[str, Any]) -> str:
    """Of all values but the digest itself: what was changed by hand or cut short has another."""
    rest = {name: value for name, value in values.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a store holds; `digest` covers all the rest of it."""

    version: int
    num_documents: int
    num_sentences: int
    num_tokens: int
    id_type: str  # "<u2" or "<u4"
    vocab_size: int
    tokenizer: str  # fingerprint
    file_bytes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)  # how it was made
    sources: dict[str, str] = field(default_factory=dict)  # file -> hash
    statistics: dict[str, int] = field(default_factory=dict)  # what was read, dropped, unknown
    digest: str = ""

    def expected_digest(self) -> str:
        return digest_of(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Ids of all documents in a row, and where sentences and documents begin."""

    folder: Path
    manifest: Manifest
    ids: np.ndarray  # (T,) uint16 or uint32
    sentences: np.ndarray  # (S + 1,) int64: sentence s is ids[sentences[s] : sentences[s + 1]]
    documents: (
        np.ndarray
    )  # (D + 1,) int64: document d is sentences documents[d] .. documents[d + 1]
    words: np.ndarray  # (ceil(T / 8),) uint8: bit t (most significant first): id t starts a word

    def load_tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / TOKENIZER)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuses a tokenizer that gives other ids than the store's."""
        if tokenizer.fingerprint != self.manifest.tokenizer:
            raise UserError(
                f"{self.folder} was made with another tokenizer ({self.manifest.vocab_size} "
                f"pieces) than the model's ({len(tokenizer.pieces)} pieces); prepare the text "
                "again with the model's: bertie prepare TEXT --vocab MODEL --out STORE"
            )


def id_type(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def open_store(folder: Path) -> Store:
    """Maps a store into memory; one that is damaged or unfinished is refused."""
    manifest = read_manifest(folder)
    arrays = {}
    types: list[np.dtype[Any]] = [np.dtype(manifest.id_type), OFFSET, OFFSET, np.dtype("u1")]
    kinds = dict(zip(FILES, types, strict=True))
    for name, kind in kinds.items():
        path, expected = folder / name, manifest.file_bytes[name]
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            raise UserError(
                f"{path} should have {expected} bytes, "
                f"{'is missing' if found is None else f'has {found}'}; prepare the store again"
            )
        # An empty file cannot be mapped.
        arrays[name] = np.memmap(path, kind, "r") if expected else np.zeros(0, kind)
    ids, sentences, documents, words = arrays.values()
    _check_ends(folder, manifest, sentences, documents)
    return Store(
        folder=folder,
        manifest=manifest,
        ids=ids,
        sentences=sentences,
        documents=documents,
        words=words,
    )


def _check_ends(
    folder: Path, manifest: Manifest, sentences: np.ndarray, documents: np.ndarray
) -> None:
    ends = (len(documents) - 1, int(documents[-1]), len(sentences) - 1, int(sentences[-1]))
    counts = (
        manifest.num_documents,
        manifest.num_sentences,
        manifest.num_sentences,
        manifest.num_tokens,
    )
    if ends != counts:
        raise UserError(f"{folder}: the offsets do not fit the counts; prepare the store again")


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        if folder.is_file():
            raise UserError(
                f"{folder} is a file, not a token store; if it is text, make one of it: "
                f"bertie prepare {folder} --vocab DIR --out STORE"
            )
        raise UserError(
            f"no token store at {folder}: it has no {MANIFEST}; make one: "
            f"bertie prepare TEXT --vocab DIR --out {folder}"
        )
    try:
        values = json.loads(path.read_bytes())
        version = values.get("version")
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged: no JSON object; prepare the store again") from None
    if version != VERSION:
        raise UserError(
            f"{path} has version {version!r}, this bertie reads {VERSION}; prepare again"
        )
    try:
        manifest = Manifest(**values)
    except TypeError as error:
        raise UserError(f"{path} is damaged: {error}; prepare the store again") from None
    if manifest.digest != manifest.expected_digest():
        raise UserError(f"{path} is damaged: its digest is wrong; prepare the store again")
    return manifest


class StoreWriter:
    """Appends documents; the store appears, whole, when `finish` is called."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.type = id_type(len(tokenizer.pieces))
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, BinaryIO] = {name: (folder / name).open("wb") for name in FILES}
        self._num_tokens = self._num_sentences = self._num_documents = 0
        self._bits = np.zeros(0, bool)  # of an unfinished byte
        self._files["sentences.bin"].write(OFFSET.type(0).tobytes())
        self._files["documents.bin"].write(OFFSET.type(0).tobytes())

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(
        self,
        ids: np.ndarray,  # (t,)
        starts_word: np.ndarray,  # (t,) bool
        sentence_lengths: np.ndarray,  # (s,) in tokens
        document_lengths: np.ndarray,  # (d,) in sentences
    ) -> None:
        """Appends documents, as many as `document_lengths` has."""
        assert len(ids) == len(starts_word) == sentence_lengths.sum()
        assert document_lengths.sum() == len(sentence_lengths)
        self._files["ids.bin"].write(ids.astype(self.type).tobytes())
        ends = self._num_tokens + np.cumsum(sentence_lengths, dtype=OFFSET)
        self._files["sentences.bin"].write(ends.astype(OFFSET).tobytes())
        ends = self._num_sentences + np.cumsum(document_lengths, dtype=OFFSET)
        self._files["documents.bin"].write(ends.astype(OFFSET).tobytes())
        bits = np.concatenate([self._bits, starts_word])
        whole = len(bits) // 8 * 8
        self._files["words.bin"].write(np.packbits(bits[:whole]).tobytes())
        self._bits = bits[whole:]
        self._num_tokens += len(ids)
        self._num_sentences += len(sentence_lengths)
        self._num_documents += len(document_lengths)

    def finish(
        self,
        *,
        settings: Mapping[str, Any],
        sources: Mapping[str, str],
        statistics: Mapping[str, int],
    ) -> Manifest:
        """Writes the rest and, last of all, the manifest that makes it a store."""
        self._files["words.bin"].write(np.packbits(self._bits).tobytes())
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self.tokenizer.save(self.folder / TOKENIZER)
        values: dict[str, Any] = {
            "version": VERSION,
            "num_documents": self._num_documents,
            "num_sentences": self._num_sentences,
            "num_tokens": self._num_tokens,
            "id_type": self.type.str,
            "vocab_size": len(self.tokenizer.pieces),
            "tokenizer": self.tokenizer.fingerprint,
            "file_bytes": {name: (self.folder / name).stat().st_size for name in FILES},
            "settings": dict(settings),
            "sources": dict(sources),
            "statistics": dict(statistics),
        }
        manifest = Manifest(**values, digest=Manifest(**values).expected_digest())
        text = json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n"
        write_text(self.folder / MANIFEST, text)
        return manifest
