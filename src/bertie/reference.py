"""BERT in plain NumPy: one sequence at a time, no speed, nothing hidden; read it downwards.

    bert = Reference(Path("model"))           # a model directory
    hidden = bert.encode([101, 7592, 102])    # (N, D): one row of numbers for each token
    bert.masked_lm(hidden)                    # (N, V): how well each piece would fit at each place

It imports nothing of the rest of bertie, so the tests can use it to judge the fast model.
"""

# N tokens of the sequence   D hidden size   H heads   K head size (D = H * K)   F feed-forward size
# V pieces in the vocabulary   C labels

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray


def layer_norm(x: Array, scale: Array, shift: Array, eps: float) -> Array:  # (N, D) -> (N, D)
    """Each row gets mean 0 and variance 1, then a learned scale and shift for each column."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + shift


def softmax(x: Array) -> Array:
    """Positive numbers that sum to 1 along the last axis; the largest x gets the most."""
    powers = np.exp(x - x.max(-1, keepdims=True))  # the shift cancels out, and avoids overflow
    return powers / powers.sum(-1, keepdims=True)


def gelu_erf(x: Array) -> Array:
    """x times the probability that a normal random number is below x: a smooth max(0, x)."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    """The same to three digits, without erf; later checkpoints of Google were trained with it."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


GELUS = {"gelu": gelu_erf, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh}


class Reference:
    """The model of a directory with config.json and model.safetensors."""

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        weights = load_file(directory / "model.safetensors")
        # The encoder's names begin with "bert." where there are heads beside it.
        self.weights = {name.removeprefix("bert."): weight for name, weight in weights.items()}
        self.gelu = GELUS[self.config["hidden_act"]]

    # Two small machines that all parts are made of.

    def linear(self, x: Array, name: str) -> Array:
        """Every output column is a weighted sum of all input columns, plus a bias."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Array, name: str) -> Array:
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, scale, shift, self.config["layer_norm_eps"])

    # The encoder.

    def embed(self, ids: Sequence[int], segments: Sequence[int]) -> Array:  # N, N -> (N, D)
        """What the token is, which of the two texts it is in, and where it stands: summed.

        All three are tables of learned rows; attention itself knows no order.
        """
        pieces = self.weights["embeddings.word_embeddings.weight"][list(ids)]
        kinds = self.weights["embeddings.token_type_embeddings.weight"][list(segments)]
        places = self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        return self.norm(pieces + kinds + places, "embeddings.LayerNorm")

    def attention(self, x: Array, name: str) -> Array:  # (N, D) -> (N, D)
        """Every token gathers from all tokens, before and after it: that is the B in BERT.

        A token's query is compared with each token's key; the better the match, the more of that
        token's value it takes. Each head does so on its own K columns, so that it can look for
        something of its own.
        """
        num_heads = self.config["num_attention_heads"]
        heads = []
        query, key, value = (
            np.split(self.linear(x, f"{name}.self.{part}"), num_heads, axis=-1)  # H times (N, K)
            for part in ("query", "key", "value")
        )
        for q, k, v in zip(query, key, value, strict=True):
            scores = q @ k.T / math.sqrt(q.shape[-1])  # (N, N): row i is what token i looks at
            heads.append(softmax(scores) @ v)  # (N, K)
        return self.linear(np.concatenate(heads, axis=-1), f"{name}.output.dense")

    def feed_forward(self, x: Array, name: str) -> Array:  # (N, D) -> (N, D)
        """Each token for itself: up to F columns (4 * D), through the GELU, and back."""
        wide = self.gelu(self.linear(x, f"{name}.intermediate.dense"))  # (N, F)
        return self.linear(wide, f"{name}.output.dense")

    def layer(self, x: Array, number: int) -> Array:  # (N, D) -> (N, D)
        """Both machines add to what is there, and the sum is normed: "post-LN"."""
        name = f"encoder.layer.{number}"
        x = self.norm(
            x + self.attention(x, f"{name}.attention"), f"{name}.attention.output.LayerNorm"
        )
        return self.norm(x + self.feed_forward(x, name), f"{name}.output.LayerNorm")

    def encode(self, ids: Sequence[int], segments: Sequence[int] | None = None) -> Array:
        """The whole encoder: N ids -> (N, D)."""
        x = self.embed(ids, segments or [0] * len(ids))
        for number in range(self.config["num_hidden_layers"]):
            x = self.layer(x, number)
        return x

    # The heads: what is asked of the encoder's rows.

    def pool(self, hidden: Array) -> Array:  # (N, D) -> (D,)
        """One row for the whole text, from its first token, [CLS]."""
        return np.tanh(self.linear(hidden[0], "pooler.dense"))

    def masked_lm(self, hidden: Array) -> Array:  # (N, D) -> (N, V)
        """Compares each row with the embedding of every piece: which one was behind [MASK]?"""
        x = self.gelu(self.linear(hidden, "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm")
        pieces = self.weights["embeddings.word_embeddings.weight"]  # (V, D), the same table again
        return x @ pieces.T + self.weights["cls.predictions.bias"]

    def next_sentence(self, hidden: Array) -> Array:  # (N, D) -> (2,)
        """Two numbers: the second text follows the first; it does not."""
        return self.linear(self.pool(hidden), "cls.seq_relationship")

    def classify_text(self, hidden: Array) -> Array:  # (N, D) -> (C,)
        return self.linear(self.pool(hidden), "classifier")

    def classify_tokens(self, hidden: Array) -> Array:  # (N, D) -> (N, C)
        return self.linear(hidden, "classifier")

    def find_span(self, hidden: Array) -> Array:  # (N, D) -> (N, 2)
        """For each token: the answer starts here; it ends here."""
        return self.linear(hidden, "qa_outputs")
