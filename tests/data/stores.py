"""Stores that are hard for the ones who read them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertie.data.instances import Text
from bertie.data.store import Store, StoreWriter, open_store
from bertie.text.tokenizer import Tokenizer
from tests.text.reference import SPECIALS

PIECES = [
    *SPECIALS,
    *(f"[unused{n}]" for n in range(5)),
    *(f"w{n}" for n in range(60)),
    *(f"##w{n}" for n in range(30)),
]
TOKENIZER = Tokenizer(PIECES)
FIRST, CONTINUES = 10, 70  # ids: words from FIRST on, their continuations from CONTINUES on
SizedDocuments = list[list[int]]  # the lengths of the sentences of each document


def awkward(seed: int = 0, *, huge: int = 3000) -> SizedDocuments:
    """One sentence, one token, many tiny documents, a huge one, long sentences, usual ones."""
    rng = np.random.default_rng(seed)
    usual = [rng.integers(3, 40, rng.integers(2, 60)).tolist() for _ in range(40)]
    return [
        [1],
        [7],
        [1] * 300,
        *([[2], [1, 1], [9, 4]] * 25),
        *usual[:20],
        [500],
        [20, 700, 3, 700, 700, 1],
        rng.integers(5, 60, huge).tolist(),  # about 100,000 tokens
        *usual[20:],
        [30, 30],
        [1],
    ]


def text_of(documents: SizedDocuments) -> Text:
    lengths = [length for document in documents for length in document]
    counts = [len(document) for document in documents]
    return Text(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def random_ids(num_tokens: int, seed: int) -> np.ndarray:
    """Words of one to a few pieces, now and then an [UNK] or a [MASK] that the text itself has."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(FIRST, len(PIECES), num_tokens)
    ids[rng.random(num_tokens) < 0.01] = 1
    ids[rng.random(num_tokens) < 0.002] = 4
    return ids


def write_store(
    folder: Path,
    documents: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    ids: np.ndarray | None = None,
) -> Store:
    """A store of documents with sentences of these lengths."""
    lengths = np.array([length for document in documents for length in document], np.int64)
    if ids is None:
        ids = random_ids(int(lengths.sum()), seed)
    counts = np.array([len(document) for document in documents], np.int64)
    with StoreWriter(folder, TOKENIZER) as writer:
        writer.add(ids, ids < CONTINUES, lengths, counts)
        writer.finish(settings={"seed": seed}, sources={}, statistics={})
    return open_store(folder)
