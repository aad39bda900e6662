"""What a model is made of, the named sizes, and what a size costs before anything is built."""

# L layers   H hidden size   A heads   F feed-forward size   V pieces   P positions   S segments
# C labels   B sequences in a batch   N tokens in each of them

from dataclasses import dataclass
from typing import Literal

from bertie.errors import UserError

Gelu = Literal["erf", "tanh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a BERT; the defaults are BASE with the uncased English vocabulary."""

    vocab_size: int = 30_522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_size: int = 0  # 0 stands for 4 * hidden_size, as in every published BERT
    max_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None  # before the output layer of a task; none: as dropout
    gelu: Gelu = "erf"  # Google's code has used the tanh form since February 2019
    norm_eps: float = 1e-12
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.ffn_size == 0:
            object.__setattr__(self, "ffn_size", 4 * self.hidden_size)
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; found {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}; "
                "published BERTs have one head for each 64 of hidden_size"
            )
        for name in ("dropout", "attention_dropout", "classifier_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise UserError(f"{name} must be in 0 .. 1, below 1; found {getattr(self, name)}")
        if self.gelu not in ("erf", "tanh"):
            raise UserError(f"gelu must be erf or tanh; found {self.gelu!r}")
        for name in ("norm_eps", "init_std"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must be in 0 .. 1, above 0; found {getattr(self, name)}")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads


COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "ffn_size",
    "max_positions",
    "num_segments",
)

# name -> L, H, A; base and large are the paper's, the others Google's small models
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def named_size(size: str, *, vocab_size: int = 30_522) -> ModelConfig:
    """The model of a name or of an L/H/A.

    >>> named_size("4/256/4") == named_size("mini")
    True
    """
    shape = SIZES.get(size)
    if shape is None:
        numbers = size.split("/")
        if len(numbers) != 3 or not all(n.isascii() and n.isdigit() for n in numbers):
            names = ", ".join(SIZES)
            raise UserError(f"no size {size!r}; there are {names}, or layers/hidden/heads: 4/256/4")
        shape = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    layers, hidden, heads = shape
    return ModelConfig(
        num_layers=layers, hidden_size=hidden, num_heads=heads, vocab_size=vocab_size
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the model and its parameters: the formula and what it comes to."""

    name: str
    formula: str
    count: int


def encoder_parts(config: ModelConfig, *, has_pooler: bool = True) -> list[Part]:
    """The parameters of embeddings, layers and pooler; one layer is 12H² + 13H where F = 4H."""
    c, h, f = config, config.hidden_size, config.ffn_size
    attention, ffn, norms = 4 * h * h + 4 * h, 2 * h * f + f + h, 4 * h
    parts = [
        Part(name="pieces", formula="V·H", count=c.vocab_size * h),
        Part(name="positions", formula="P·H", count=c.max_positions * h),
        Part(name="segments", formula="S·H", count=c.num_segments * h),
        Part(name="embedding norm", formula="2H", count=2 * h),
        Part(name="attention", formula="L·(4H² + 4H)", count=c.num_layers * attention),
        Part(name="feed-forward", formula="L·(2H·F + F + H)", count=c.num_layers * ffn),
        Part(name="layer norms", formula="L·4H", count=c.num_layers * norms),
    ]
    if has_pooler:
        parts.append(Part(name="pooler", formula="H² + H", count=h * h + h))
    return parts


def head_parts(config: ModelConfig, heads: tuple[str, ...], num_labels: int = 2) -> list[Part]:
    """The parameters of each head; the masked LM's output matrix is the embedding's."""
    h, v, c = config.hidden_size, config.vocab_size, num_labels
    known = {
        "masked_lm": Part(name="masked_lm", formula="H² + 3H + V", count=h * h + 3 * h + v),
        "next_sentence": Part(name="next_sentence", formula="2H + 2", count=2 * h + 2),
        "sequence": Part(name="sequence", formula="C·H + C", count=c * h + c),
        "token": Part(name="token", formula="C·H + C", count=c * h + c),
        "span": Part(name="span", formula="2H + 2", count=2 * h + 2),
        "choice": Part(name="choice", formula="H + 1", count=h + 1),
    }
    return [known[head] for head in heads]


def count_parameters(
    config: ModelConfig,
    heads: tuple[str, ...] = (),
    *,
    has_pooler: bool = True,
    num_labels: int = 2,
) -> int:
    """Exact: the built module has as many.

    >>> count_parameters(ModelConfig())
    109482240
    """
    parts = encoder_parts(config, has_pooler=has_pooler) + head_parts(config, heads, num_labels)
    return sum(part.count for part in parts)


PREDICTED_SHARE = 0.15  # of the tokens, by the masked LM (paper, 3.1)


def train_flops(config: ModelConfig, *, length: int) -> float:
    """Useful operations to pre-train on one sequence: forward once, backward twice as much.

    Matrix products only, a multiply-add as two; 6·12·L·H²·N + 12·L·H·N² + 6·0.15·N·(V·H + H²)
    where F = 4H. Recomputed, padded or predicted-nowhere positions are not useful.
    """
    layers, h = config.num_layers, config.hidden_size
    matrices = 4 * h * h + 2 * h * config.ffn_size
    head = config.vocab_size * h + h * h
    per_token = 6 * layers * matrices + 12 * layers * h * length + 6 * PREDICTED_SHARE * head
    return per_token * length


def infer_flops(config: ModelConfig, *, length: int) -> float:
    """Operations to encode one sequence, without any head."""
    layers, h = config.num_layers, config.hidden_size
    per_token = 2 * layers * (4 * h * h + 2 * h * config.ffn_size) + 4 * layers * h * length
    return float(per_token * length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes in fp32 with plain kernels; fused attention and half precision need less."""

    weights: int
    gradients: int = 0
    optimizer: int = 0  # Adam's two moments
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def train_memory(config: ModelConfig, *, batch_size: int, length: int) -> Memory:
    """To pre-train with both heads: what is held when the backward pass begins.

    A layer keeps, for each token, ten rows of H (inputs of the matrices and norms, dropout masks),
    two of F and three rows of attention weights for each head; the last one half of the ten and
    those of F only where a head reads the token. Measured in the tests.
    """
    weights = 4 * count_parameters(config, ("masked_lm", "next_sentence"))
    h, a, f = config.hidden_size, config.num_heads, config.ffn_size
    num_read = PREDICTED_SHARE + 1 / length  # of each token; the first of a sequence is pooled
    spared = (1 - num_read) * (5 * h + 2 * f)
    layers = config.num_layers * (10 * h + 2 * f + 3 * a * length) - spared
    logits = PREDICTED_SHARE * (4 * h + 2 * config.vocab_size)
    activations = round(4 * batch_size * length * (layers + 3 * h + logits))
    return Memory(
        weights=weights, gradients=weights, optimizer=2 * weights, activations=activations
    )


def infer_memory(config: ModelConfig, *, batch_size: int, length: int) -> Memory:
    """To encode; the widest moment is the feed-forward layer, before and after its GELU."""
    widest = 2 * config.ffn_size + 2 * config.hidden_size
    return Memory(
        weights=4 * count_parameters(config), activations=4 * batch_size * length * widest
    )
