"""What a model that knows nothing but how frequent each piece is would lose."""

import numpy as np

from bertie.data.store import Store

MOST_TOKENS = 100_000_000  # counted; more change nothing that anyone could see
CHUNK = 1 << 24


def unigram_entropy(store: Store) -> float:
    """Nats a token of the store, special ones left out: the loss of guessing by frequency.

    A masked LM that is not below this has learned no context.
    """
    counts = np.zeros(store.manifest.vocab_size, np.int64)
    for start in range(0, min(len(store.ids), MOST_TOKENS), CHUNK):
        counts += np.bincount(store.ids[start : start + CHUNK], minlength=len(counts))
    tokenizer = store.load_tokenizer()
    counts[sorted(tokenizer.special_ids)] = 0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
