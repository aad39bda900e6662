"""What a model that knows nothing but how frequent each piece is would lose."""

import numpy as np

from bertie.data.store import Store

MOST_TOKENS = 100_000_000  # counted; more change nothing that anyone could see
CHUNK = 1 << 24


def count_pieces(store: Store) -> np.ndarray:  # (V,) int64
    """How often each piece comes, special ones left out."""
    counts = np.zeros(store.manifest.vocab_size, np.int64)
    for start in range(0, min(len(store.ids), MOST_TOKENS), CHUNK):
        counts += np.bincount(store.ids[start : start + CHUNK], minlength=len(counts))
    counts[sorted(store.load_tokenizer().special_ids)] = 0
    return counts


def unigram_entropy(store: Store) -> float:
    """Nats a token of the store, special ones left out: the loss of guessing by frequency.

    A masked LM that is not below this has learned no context.
    """
    counts = count_pieces(store)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def guess_by_frequency(store: Store, labels: np.ndarray) -> tuple[float, int]:  # (M,)
    """The summed loss, and how many are right, of one who knows the store's frequencies alone.

    Every piece counts as if it had come once more: one that the store lacks would lose infinitely
    much. The answer is always the most frequent piece.
    """
    counts = count_pieces(store)
    losses = np.log((counts + 1).sum()) - np.log(counts[labels] + 1)
    return float(losses.sum()), int((labels == counts.argmax()).sum())
