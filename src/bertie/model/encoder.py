"""The encoder of BERT: embeddings, layers, pooler. Rows are tokens of all sequences, no padding."""

# T tokens of all sequences in a row   N sequences   D hidden size   H heads   K head size (D = H*K)
# U feed-forward size   R rows that are kept (R = T where all are)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.kernels import HALF, can_encode, can_use, stream_dtype
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


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


def embedding(num_rows: int, num_columns: int) -> nn.Embedding:
    """Without torch's own initial values, which cost a second of imports where none are wanted."""
    values = torch.empty(num_rows, num_columns)
    made: nn.Embedding = nn.Embedding.from_pretrained(values, freeze=False)
    return made


class Embeddings(nn.Module):
    """A row per token: its piece, its segment and its position, summed and normed."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token = embedding(config.vocab_size, config.hidden_size)
        self.segment = embedding(config.num_segments, config.hidden_size)
        self.position = embedding(config.max_positions, config.hidden_size)
        self.norm = layer_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor) -> Tensor:  # 3 (T,)
        dtype = stream_dtype(self.token.weight)
        if can_use(ids) and dtype in HALF and not torch.compiler.is_compiling():
            return self.forward_in_kernels(ids, segments, positions, dtype)
        summed = self.token(ids) + self.segment(segments) + self.position(positions)  # (T, D)
        dropped: Tensor = self.dropout(self.norm(summed))
        return dropped.to(dtype)

    def forward_in_kernels(
        self, ids: Tensor, segments: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> Tensor:  # (T, D)
        """The same on a GPU in half precision, see bertie.kernels.embeddings."""
        from bertie.kernels.embeddings import EmbeddingWeights, Places, embed

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
    """Each token looks at all tokens of its sequence, on both sides."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None = None
    ) -> Tensor:  # (T, D) -> (R, D)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (T, 3, H, K)
        mixed = attend(qkv, bounds, longest, self.dropout if self.training else 0.0)  # (T, H, K)
        if kept is not None:
            mixed = mixed.index_select(0, kept)
        out: Tensor = self.out(mixed.flatten(1))  # (R, D)
        return out


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
        if can_encode(x, self.attention.num_heads):
            return self.forward_in_kernels(x, bounds, longest, kept)
        dropout = self.dropout if self.training else 0.0
        attended = self.attention(x, bounds, longest, kept)  # (R, D)
        residual = x if kept is None else x.index_select(0, kept)
        x = self.attention_norm(add_dropped(residual, attended, dropout))
        y: Tensor = self.ffn_norm(add_dropped(x, self.ffn(x), dropout))
        return y

    def forward_in_kernels(
        self, x: Tensor, bounds: Tensor, longest: int, kept: Tensor | None
    ) -> Tensor:  # (T, D) -> (R, D)
        """The same on a GPU in half precision, see bertie.kernels.layer."""
        from bertie.kernels.layer import LayerSettings, LayerWeights, encode_layer

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
        )
        seeds = torch.randint(2**31 - 1, (3,), device=x.device)
        return encode_layer(x, bounds, kept, seeds, weights, settings)


class Pooler(nn.Module):
    """One row per sequence, from its first token, [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, firsts: Tensor) -> Tensor:  # (N, D) -> (N, D)
        pooled: Tensor = self.dense(firsts).tanh()
        return pooled


def first_rows(bounds: Tensor, num_tokens: int) -> Tensor:  # (N + 1,) -> (N,)
    """Where each sequence begins: the rows of [CLS].

    An empty sequence at the end, there to keep N fixed, starts one row behind the last.
    """
    return bounds[:-1].clamp(max=num_tokens - 1)
