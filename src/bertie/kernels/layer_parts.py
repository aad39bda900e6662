"""What goes into a layer as one operation, what it keeps for the way back, and what that finds."""

# T tokens of all sequences in a row   D hidden size   U feed-forward size
# H heads   K head size (D = H * K)   R rows that are kept (R = T where all are)

from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """What a layer learns, in float32."""

    qkv: Tensor  # (3 D, D)
    qkv_bias: Tensor  # (3 D,)
    out: Tensor  # (D, D)
    out_bias: Tensor  # (D,)
    attention_norm: Tensor  # (D,)
    attention_norm_bias: Tensor  # (D,)
    up: Tensor  # (U, D)
    up_bias: Tensor  # (U,)
    down: Tensor  # (D, U)
    down_bias: Tensor  # (D,)
    ffn_norm: Tensor  # (D,)
    ffn_norm_bias: Tensor  # (D,)


class LayerSettings(NamedTuple):
    """What does not change while a model trains."""

    num_heads: int
    dropout: float
    attention_dropout: float
    eps: float
    is_tanh: bool
    longest: int
    is_float8: bool = False  # no rows are `kept` then
    is_left: bool = False  # a token sees itself and those before it; no rows are `kept` then


class Seeds(NamedTuple):
    """(1,) each, for the three places where a layer drops."""

    shares: Tensor
    attention: Tensor
    ffn: Tensor


class Saved(NamedTuple):
    """What the backward pass needs again."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (T, 3, H, K); where rows are kept, keys and values alone: (T, 2, H, K)
    queries: Tensor  # (R, H, K) where rows are kept; else none, they are in qkv: (0, H, K)
    log_sums: Tensor  # (H, R)
    mixed: Tensor  # (R, H, K)
    first_sum: Tensor  # (R, D)
    first_statistics: Tensor  # (2, R)
    middle: Tensor  # (R, D)
    wide: Tensor  # (R, U) before gelu; with its bias where the product has added that
    active: Tensor  # (R, U) after; with eight bits none, it is made again: (0, U)
    second_sum: Tensor  # (R, D)
    second_statistics: Tensor  # (2, R)
    qkv_weight: Tensor  # the large weights in the precision of the rows; or eight bits, transposed
    out_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor


class Gradients(NamedTuple):
    """What the backward pass finds."""

    x: Tensor  # (T, D)
    qkv: Tensor  # (3 D, D)
    qkv_bias: Tensor  # (3 D,)
    out: Tensor  # (D, D)
    first_sums: Tensor  # (3, D) of attention_norm, attention_norm_bias, out_bias
    up: Tensor  # (U, D)
    up_bias: Tensor  # (U,)
    down: Tensor  # (D, U)
    second_sums: Tensor  # (3, D) of ffn_norm, ffn_norm_bias, down_bias

    def of_weights(self) -> LayerWeights:
        norm, norm_bias, out_bias = self.first_sums
        ffn_norm, ffn_norm_bias, down_bias = self.second_sums
        return LayerWeights(
            qkv=self.qkv,
            qkv_bias=self.qkv_bias,
            out=self.out,
            out_bias=out_bias,
            attention_norm=norm,
            attention_norm_bias=norm_bias,
            up=self.up,
            up_bias=self.up_bias,
            down=self.down,
            down_bias=down_bias,
            ffn_norm=ffn_norm,
            ffn_norm_bias=ffn_norm_bias,
        )
