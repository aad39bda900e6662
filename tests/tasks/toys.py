"""Tiny models, a tokenizer of awkward text, and outputs that say exactly what the labels say."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.tasks.instances import Instances
from bertie.text.files import TokenizerConfig
from bertie.text.tokenizer import Tokenizer
from tests.model.tiny import make

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list(
    "abcdefghijklmnoprstuvwxyz0123456789.,?!'\"-中国人大学"
)  # no q: words with it are [UNK]
TOKENIZER = Tokenizer(
    [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "##ing"],
    TokenizerConfig(),
)
CONFIG = ModelConfig(
    vocab_size=len(TOKENIZER.pieces) + 3,
    hidden_size=24,
    num_layers=2,
    num_heads=3,
    ffn_size=40,
    max_positions=48,
    init_std=0.3,
)
# Emoji, CJK, combining marks, controls, words that are only [UNK], quotes, very long words.
WORDS = st.sampled_from(
    [
        *("the", "cat", "running", "q", "quqqu", "中国", "人", "中a国", "e\u0301t\u0301", "🙂"),
        *("👩\u200d👩\u200d👧", "\u200d", "\u0301", "\u202e", "don't", '"', "a-b", "ﬁn", "İ"),
        *("x" * 30, "[SEP]", "3.14"),
    ]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=25).map(" ".join)


def tiny_model(head: str, num_labels: int = 2) -> Bert:
    return make(CONFIG, heads=[head], num_labels=num_labels).float()


def of_sequences(instances: Instances, rows: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Outputs (C,) of inputs: a row of logits per instance, the same for all its inputs."""
    sizes = np.diff(instances.groups)
    return [np.array(row, np.float32) for row, n in zip(rows, sizes, strict=True) for _ in range(n)]
