"""What a model is made of, the named sizes, and what a size costs before anything is built."""

# L layers   H hidden size   A heads   F feed-forward size   V pieces   P positions   S segments
# E size of embeddings   T layers of an LSTM on top   C labels   B sequences in a batch
# N tokens in each of them

from dataclasses import dataclass
from typing import Literal, get_args

from bertie.errors import UserError

Gelu = Literal["erf", "tanh"]
Attention = Literal["both", "left"]
Positions = Literal["learned", "sinusoidal"]
Combine = Literal["sum", "product"]
LayerKind = Literal["transformer", "lstm"]


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
    attention: Attention = "both"  # left: no token sees a later one, as in GPT
    embedding_size: int = 0  # smaller embeddings, then a matrix to hidden_size, as in ALBERT; 0: no
    share_layers: bool = False  # all layers have the same weights, as in ALBERT
    positions: Positions = "learned"  # sinusoidal: fixed waves, as in the first Transformer
    combine: Combine = "sum"  # of the embeddings of piece, segment and position
    layer: LayerKind = "transformer"  # lstm: two directions that never meet, as in ELMo
    bilstm_layers: int = 0  # of an LSTM in both directions on top of the last layer

    def __post_init__(self) -> None:
        if self.ffn_size == 0:
            object.__setattr__(self, "ffn_size", 4 * self.hidden_size)
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; found {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; "
                "published BERTs have one head for each 64 of hidden_size"
            )
        for name in DROPOUTS:
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise UserError(f"{name} must be in 0 .. 1, below 1; found {getattr(self, name)}")
        for name, choice in CHOICES.items():
            known, found = get_args(choice), getattr(self, name)
            if found not in known:
                raise UserError(f"{name} must be {' or '.join(known)}; found {found!r}")
        self._check_switches()
        for name in ("norm_eps", "init_std"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must be in 0 .. 1, above 0; found {getattr(self, name)}")

    def _check_switches(self) -> None:
        for name in ("embedding_size", "bilstm_layers"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be at least 0; found {getattr(self, name)}")
        if self.layer == "lstm" and self.attention != "both":
            raise UserError('layer = "lstm" has no attention; leave model.attention out')
        if (self.layer == "lstm" or self.bilstm_layers) and self.hidden_size % 2:
            raise UserError(
                f"hidden_size {self.hidden_size} is odd; an LSTM has a half for each direction"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def input_size(self) -> int:  # E
        """Numbers of an embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def num_layer_weights(self) -> int:
        """Layers that have weights of their own."""
        return 1 if self.share_layers else self.num_layers

    @property
    def reads_last(self) -> bool:
        """Whether the last token of a sequence has seen the others, and the first has not."""
        return self.attention == "left"


DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")
COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "ffn_size",
    "max_positions",
    "num_segments",
)

CHOICES = {
    "gelu": Gelu,
    "attention": Attention,
    "positions": Positions,
    "combine": Combine,
    "layer": LayerKind,
}
# What a plain BERT has none of; a model that has some is no BERT to other programs.
SWITCHES = (
    "attention",
    "embedding_size",
    "share_layers",
    "positions",
    "combine",
    "layer",
    "bilstm_layers",
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
    h, t = config.hidden_size, config.bilstm_layers
    parts = embedding_parts(config) + layer_parts(config)
    if t:
        parts.append(
            Part(name="LSTM on top", formula="T·(6H² + 8H)", count=t * (6 * h * h + 8 * h))
        )
    if has_pooler:
        parts.append(Part(name="pooler", formula="H² + H", count=h * h + h))
    return parts


def embedding_parts(config: ModelConfig) -> list[Part]:
    c, h, e = config, config.hidden_size, config.input_size
    letter = "E" if c.embedding_size else "H"
    parts = [Part(name="pieces", formula=f"V·{letter}", count=c.vocab_size * e)]
    if c.positions == "learned":
        parts.append(Part(name="positions", formula=f"P·{letter}", count=c.max_positions * e))
    parts += [
        Part(name="segments", formula=f"S·{letter}", count=c.num_segments * e),
        Part(name="embedding norm", formula=f"2{letter}", count=2 * e),
    ]
    if c.embedding_size:
        parts.append(Part(name="projection", formula="E·H + H", count=e * h + h))
    return parts


def layer_parts(config: ModelConfig) -> list[Part]:
    h, f, times = config.hidden_size, config.ffn_size, config.num_layer_weights
    each = "" if config.share_layers else "L·"
    if config.layer == "lstm":
        return [Part(name="LSTM", formula=f"{each}(4H² + 8H)", count=times * (4 * h * h + 8 * h))]
    attention, ffn, norms = 4 * h * h + 4 * h, 2 * h * f + f + h, 4 * h
    return [
        Part(name="attention", formula=f"{each}(4H² + 4H)", count=times * attention),
        Part(name="feed-forward", formula=f"{each}(2H·F + F + H)", count=times * ffn),
        Part(name="layer norms", formula=f"{each}4H", count=times * norms),
    ]


def head_parts(config: ModelConfig, heads: tuple[str, ...], num_labels: int) -> list[Part]:
    """The parameters of each head; the masked LM's output matrix is the embedding's."""
    h, c = config.hidden_size, num_labels
    known = {name: piece_part(config, name) for name in ("masked_lm", *DIRECTED)} | {
        "next_sentence": Part(name="next_sentence", formula="2H + 2", count=2 * h + 2),
        "sequence": Part(name="sequence", formula="C·H + C", count=c * h + c),
        "token": Part(name="token", formula="C·H + C", count=c * h + c),
        "span": Part(name="span", formula="2H + 2", count=2 * h + 2),
        "choice": Part(name="choice", formula="H + 1", count=h + 1),
    }
    return [known[head] for head in heads]


DIRECTED = ("next_token", "previous_token")  # heads that predict what the row has not seen


def piece_part(config: ModelConfig, name: str) -> Part:
    """A head that gives logits of all pieces; of an LSTM it reads the half of one direction."""
    h, e, v = config.hidden_size, config.input_size, config.vocab_size
    read = h // 2 if config.layer == "lstm" and name in DIRECTED else h
    formula = "H² + 3H + V" if not config.embedding_size else "H·E + 3E + V"
    if read != h:
        formula = formula.replace("H²", "H²/2").replace("H·E", "H·E/2")
    return Part(name=name, formula=formula, count=read * e + 3 * e + v)


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


def train_flops(
    config: ModelConfig, *, length: int, predicted_share: float = PREDICTED_SHARE
) -> float:
    """Useful operations to pre-train on one sequence: forward once, backward twice as much.

    Matrix products only, a multiply-add as two; 6·12·L·H²·N + 12·L·H·N² + 6·0.15·N·(V·H + H²)
    where F = 4H. Recomputed, padded or predicted-nowhere positions are not useful, and with
    attention to the left half of what attention computes.
    """
    head = config.vocab_size * config.input_size + config.hidden_size * config.input_size
    return 3 * infer_flops(config, length=length) + 6 * predicted_share * head * length


def infer_flops(config: ModelConfig, *, length: int) -> float:
    """Operations to encode one sequence, without any head."""
    layers, h, e = config.num_layers, config.hidden_size, config.embedding_size
    matrices = layers * (4 * h * h + 2 * h * config.ffn_size)
    attention = 4 * layers * h * length * (0.5 if config.attention == "left" else 1)
    if config.layer == "lstm":
        matrices, attention = layers * 4 * h * h, 0
    matrices += e * h + config.bilstm_layers * 6 * h * h
    return float((2 * matrices + attention) * length)


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


def train_memory(
    config: ModelConfig,
    *,
    batch_size: int,
    length: int,
    predicted_share: float = PREDICTED_SHARE,
    recompute: bool = False,
) -> Memory:
    """To pre-train with both heads: what is held when the backward pass begins.

    A layer keeps, for each token, ten rows of H (inputs of the matrices and norms, dropout masks),
    two of F and three rows of attention weights for each head; the last one half of the ten and
    those of F only where a head reads the token. Where layers are computed again, each keeps the
    rows that go in, and one at a time has the others. Measured in the tests.
    """
    weights = 4 * count_parameters(config, ("masked_lm", "next_sentence"))
    h, a, f = config.hidden_size, config.num_heads, config.ffn_size
    layer = 10 * h + 2 * f + 3 * a * length
    num_read = min(1.0, predicted_share + 1 / length)  # the first of a sequence is pooled
    spared = (1 - num_read) * (5 * h + 2 * f)
    if config.layer == "lstm":  # four gates, cells, what goes in and out, dropout masks
        layer, spared = 8 * h, 0
    if config.bilstm_layers:  # which reads all rows
        spared = 0
    layers = config.num_layers * layer - spared
    if recompute:
        layers = config.num_layers * h + layer
    layers += config.bilstm_layers * 9 * h
    e = config.input_size
    logits = predicted_share * (h + 3 * e + 2 * config.vocab_size)
    activations = round(4 * batch_size * length * (layers + 3 * e + logits))
    return Memory(
        weights=weights, gradients=weights, optimizer=2 * weights, activations=activations
    )


def infer_memory(config: ModelConfig, *, batch_size: int, length: int) -> Memory:
    """To encode; the widest moment is the feed-forward layer, before and after its GELU."""
    widest = 2 * config.ffn_size + 2 * config.hidden_size
    return Memory(
        weights=4 * count_parameters(config), activations=4 * batch_size * length * widest
    )
