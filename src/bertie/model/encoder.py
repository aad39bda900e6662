"""The encoder of BERT: embeddings, layers, pooler. Rows are tokens of all sequences, no padding."""

# T tokens of all sequences in a row   N sequences   D hidden size   H heads   K head size (D = H*K)
# U feed-forward size   R rows that are kept (R = T where all are)   E size of embeddings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.kernels import HALF, can_encode, can_use, can_use_float8, stream_dtype
from bertie.model.attention import attend
from bertie.model.config import ModelConfig
from bertie.model.dropout import Dropout, add_dropped

APPROXIMATE = {"erf": "none", "tanh": "tanh"}  # ours -> torch's


class Gelu(nn.Module):
    """x times the share of a normal distribution that lies below x."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.approximate = APPROXIMATE[config.gelu]

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)


def layer_norm(config: ModelConfig, size: int = 0) -> nn.LayerNorm:
    return nn.LayerNorm(size or config.hidden_size, eps=config.norm_eps)


def embedding(num_rows: int, num_columns: int) -> nn.Embedding:
    """Without torch's own initial values, which cost a second of imports where none are wanted."""
    values = torch.empty(num_rows, num_columns)
    made: nn.Embedding = nn.Embedding.from_pretrained(values, freeze=False)
    return made


def waves(positions: Tensor, size: int) -> Tensor:  # (T,) -> (T, E)
    """Sines and cosines of a position, each slower than the one before (Vaswani et al., 3.5)."""
    speeds = 10_000 ** (-torch.arange(0, size, 2, device=positions.device) / size)
    turns = positions.unsqueeze(-1) * speeds  # (T, E / 2)
    return torch.stack((turns.sin(), turns.cos()), -1).flatten(-2)[..., :size]


class Embeddings(nn.Module):
    """A row per token: its piece, its segment and its position, combined and normed."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.input_size
        self.token = embedding(config.vocab_size, size)
        self.segment = embedding(config.num_segments, size)
        is_learned = config.positions == "learned"
        self.position = embedding(config.max_positions, size) if is_learned else None
        self.wave_height = 2**0.5 * config.init_std  # so that a row is as large as a learned one
        self.is_product = config.combine == "product"
        self.norm = layer_norm(config, size)
        self.dropout = Dropout(config.dropout)
        is_smaller = config.embedding_size > 0
        self.projection = nn.Linear(size, config.hidden_size) if is_smaller else None

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor) -> Tensor:  # 3 (T,)
        dtype = stream_dtype(self.token.weight)
        is_plain = self.position is not None and not self.is_product and self.projection is None
        if is_plain and can_use(ids) and dtype in HALF and not torch.compiler.is_compiling():
            return self.forward_in_kernels(ids, segments, positions, dtype)
        token, segment, place = self.token(ids), self.segment(segments), self.place(positions)
        combined = token * segment * place if self.is_product else token + segment + place  # (T, E)
        rows: Tensor = self.dropout(self.norm(combined))
        if self.projection is not None:
            rows = self.projection(rows)  # (T, D)
        return rows.to(dtype)

    def place(self, positions: Tensor) -> Tensor:  # (T,) -> (T, E)
        if self.position is None:
            size, dtype = self.token.weight.shape[1], self.token.weight.dtype
            return (self.wave_height * waves(positions, size)).to(dtype)
        rows: Tensor = self.position(positions)
        return rows

    def forward_in_kernels(
        self, ids: Tensor, segments: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> Tensor:  # (T, D)
        """The same on a GPU in half precision, see bertie.kernels.embeddings."""
        from bertie.kernels.embeddings import EmbeddingWeights, Places, embed

        assert self.position is not None
        weights = EmbeddingWeights(
            token=self.token.weight,
            segment=self.segment.weight,
            position=self.position.weight,
            norm=self.norm.weight,
            norm_bias=self.norm.bias,
        )
        return embed(
            Places(ids, segments, positions),
            torch.randint(2**31 - 1, (1,), device=ids.device),
            weights,
            dropout=self.dropout.share if self.training else 0.0,
            eps=self.norm.eps,
            dtype=dtype,
        )


class SelfAttention(nn.Module):
    """Each token looks at all tokens of its sequence, on both sides, or at those to its left."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.is_left = config.attention == "left"
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None = None
    ) -> Tensor:  # (T, D) -> (R, D)
        qkv = self.project(x)  # (T, 3, H, K)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(qkv, bounds, longest, dropout, is_left=self.is_left)  # (T, H, K)
        if kept is not None:
            mixed = mixed.index_select(0, kept)
        out: Tensor = self.out(mixed.flatten(1))  # (R, D)
        return out

    def project(self, x: Tensor) -> Tensor:  # (T, D) -> (T, 3, H, K)
        """Queries, keys and values."""
        qkv: Tensor = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        return qkv


class FeedForward(nn.Module):
    """Each token for itself, through a wider layer and back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.ffn_size)
        self.gelu = Gelu(config)
        self.down = nn.Linear(config.ffn_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:  # (T, D) -> (T, D)
        down: Tensor = self.down(self.gelu(self.up(x)))  # through (T, U)
        return down


class Layer(nn.Module):
    """Attention, then feed-forward; each is added to its input and normed after (post-LN)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = layer_norm(config)
        self.ffn = FeedForward(config)
        self.ffn_norm = layer_norm(config)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None = None
    ) -> Tensor:  # (T, D) -> (R, D)
        """All rows, or those that are `kept` (R,) of the last layer, where only these are read."""
        is_read = kept is None or len(kept) > 0  # a kernel has at least one program
        if is_read and can_encode(x, self.attention.num_heads):
            return self.forward_in_kernels(x, bounds, longest, kept)
        dropout = self.dropout if self.training else 0.0
        attended = self.attention(x, bounds, longest, kept)  # (R, D)
        residual = x if kept is None else x.index_select(0, kept)
        x = self.attention_norm(add_dropped(residual, attended, dropout))
        y: Tensor = self.ffn_norm(add_dropped(x, self.ffn(x), dropout))
        return y

    def project(self, x: Tensor) -> Tensor:  # (T, D) -> (T, 3, H, K)
        return self.attention.project(x)

    def forward_in_kernels(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None
    ) -> Tensor:  # (T, D) -> (R, D)
        """The same on a GPU in half precision, see bertie.kernels.layer."""
        from bertie.kernels.layer_operation import encode_layer
        from bertie.kernels.layer_parts import LayerSettings, LayerWeights

        attention, norm, ffn = self.attention, self.attention_norm, self.ffn
        weights = LayerWeights(
            qkv=attention.qkv.weight,
            qkv_bias=attention.qkv.bias,
            out=attention.out.weight,
            out_bias=attention.out.bias,
            attention_norm=norm.weight,
            attention_norm_bias=norm.bias,
            up=ffn.up.weight,
            up_bias=ffn.up.bias,
            down=ffn.down.weight,
            down_bias=ffn.down.bias,
            ffn_norm=self.ffn_norm.weight,
            ffn_norm_bias=self.ffn_norm.bias,
        )
        settings = LayerSettings(
            num_heads=attention.num_heads,
            dropout=self.dropout if self.training else 0.0,
            attention_dropout=attention.dropout if self.training else 0.0,
            eps=norm.eps,
            is_tanh=ffn.gelu.approximate == "tanh",
            longest=longest,
            is_float8=can_use_float8(x, ffn.up.out_features),
            is_left=attention.is_left,
        )
        seeds = torch.randint(2**31 - 1, (3,), device=x.device)
        if kept is not None and attention.is_left:  # whose queries must lie where their tokens do
            return encode_layer(x, bounds, None, seeds, weights, settings).index_select(0, kept)
        return encode_layer(x, bounds, kept, seeds, weights, settings)


class Pooler(nn.Module):
    """One row per sequence, from its first token, [CLS]; or from its last, if that sees more."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, rows: Tensor) -> Tensor:  # (N, D) -> (N, D)
        pooled: Tensor = self.dense(rows).tanh()
        return pooled


def pooled_rows(bounds: Tensor, num_tokens: int, *, is_last: bool) -> Tensor:  # (N + 1,) -> (N,)
    """The rows that are pooled: where each sequence begins, or where it ends.

    An empty sequence at the end, there to keep N fixed, starts one row behind the last.
    """
    rows = bounds[1:] - 1 if is_last else bounds[:-1]
    return rows.clamp(0, num_tokens - 1)
