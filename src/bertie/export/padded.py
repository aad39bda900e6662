"""A model as other programs feed it: rows of ids filled up to one length, and a mask.

`PaddedBert` computes what `Bert` computes, with plain operations on fixed-rank tensors: this is the
form that torch.export takes, and `onnx_graph.py` writes down the same steps.
"""

# N sequences   W the length all are filled up to   D hidden size   H heads   K head size   C labels

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import UserError
from bertie.infer.embed import Embedding
from bertie.model.attention import is_before
from bertie.model.bert import Bert
from bertie.model.encoder import Layer
from bertie.model.heads import PieceHead, get_head

INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # (N, W) each, as transformers has them
LOGITS = {  # head -> the names of its outputs, as transformers has them
    "masked_lm": ("logits",),
    "next_token": ("logits",),
    "next_sentence": ("next_sentence_logits",),
    "sequence": ("logits",),
    "token": ("logits",),
    "span": ("start_logits", "end_logits"),
    "choice": ("logits",),  # of each option, which is a row of its own
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A tensor that comes out: (N, ...), or (N, W, ...) where it is of tokens."""

    name: str
    is_of_tokens: bool


def list_outputs(heads: tuple[str, ...]) -> tuple[Output, ...]:
    """What a model with these heads gives; one without any gives vectors of texts and tokens."""
    if not heads:
        return (
            Output(name="embedding", is_of_tokens=False),
            Output(name="hidden", is_of_tokens=True),
        )
    return tuple(
        Output(name=name, is_of_tokens=get_head(head).reads != "pooled")
        for head in heads
        for name in LOGITS[head]
    )


class PaddedBert(nn.Module):
    """A model over filled-up rows; the outputs are those of `list_outputs`, in that order."""

    def __init__(self, model: Bert, embedding: Embedding) -> None:
        super().__init__()
        self.model = model
        self.embedding = embedding

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """3 (N, W) -> (N, ...) or (N, W, ...) each"""
        model = self.model
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)  # (1, W)
        x = model.embeddings(ids, segments, positions)  # (N, W, D)
        is_key = mask.bool()[:, None, None]  # (N, 1, 1, W)
        if model.config.attention == "left":
            is_key = is_key & is_before(ids.shape[1], ids.device)  # (N, 1, W, W)
        total = model.config.num_layers
        num_layers = total if model.heads else self.embedding.num_layers(total)
        for layer in list(model.layers)[:num_layers]:
            assert isinstance(layer, Layer)
            x = run_layer(layer, x, is_key)
        if not model.heads:
            return pool(x, mask, self.embedding), x
        return self.run_heads(x, mask)

    def run_heads(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:  # (N, W, D), (N, W)
        model = self.model
        read = hidden[:, 0]  # (N, D)
        if model.config.reads_last:
            read = hidden[torch.arange(mask.shape[0], device=mask.device), mask.sum(1) - 1]
        pooled = None if model.pooler is None else model.pooler.dense(read).tanh()  # (N, D)
        outputs: list[Tensor] = []
        for name in model.heads:
            head = model.get_submodule(name)
            if isinstance(head, PieceHead):
                outputs.append(head(hidden, model.embeddings.token.weight))  # (N, W, V)
            elif name == "span":
                outputs.extend(head(hidden).unbind(-1))  # 2 (N, W)
            else:
                outputs.append(head(pooled if get_head(name).reads == "pooled" else hidden))
        return tuple(outputs)


def check_exportable(model: Bert) -> None:
    """Rows that are filled up are for attention."""
    if model.config.layer != "transformer" or model.config.bilstm_layers:
        raise UserError("a model with an LSTM is not exported; take one of Transformer layers")


def run_layer(layer: Layer, x: Tensor, is_key: Tensor) -> Tensor:  # (N, W, D), (N, 1, 1 or W, W)
    attention = layer.attention
    qkv = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1))  # (N, W, 3, H, K)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (N, H, W, K)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=is_key)
    x = layer.attention_norm(x + attention.out(mixed.transpose(1, 2).flatten(2)))
    y: Tensor = layer.ffn_norm(x + layer.ffn(x))
    return y


def pool(x: Tensor, mask: Tensor, embedding: Embedding) -> Tensor:  # (N, W, D), (N, W) -> (N, D)
    weights = mask.unsqueeze(-1).to(x.dtype)  # (N, W, 1)
    if embedding.pooling == "cls":
        return x[:, 0]
    if embedding.pooling == "max":
        return x.masked_fill(weights == 0, torch.finfo(x.dtype).min).amax(1)
    return (x * weights).sum(1) / weights.sum(1)
