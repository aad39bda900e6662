"""How much each piece of a text looks at each other one, in a layer: attention, to be shown."""

# L = T pieces of the text, with [CLS] and [SEP]   D hidden size   H heads   K head size

from dataclasses import dataclass

import numpy as np
import torch

from bertie.errors import UserError
from bertie.infer.batches import pack_inputs
from bertie.infer.engine import Engine
from bertie.infer.verb import Verb, check_text
from bertie.tasks.instances import Framer, Input

MAX_PIECES = 128  # a person looks at no more; an answer has H x L x L numbers


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Looks:
    """The attention of one layer's heads."""

    tokens: tuple[str, ...]
    layer: int  # 1 is the first
    num_layers: int
    heads: np.ndarray  # (H, L, L) of each head, from each piece to each; a row's sum is 1


def look_verb(engine: Engine, layer: int) -> Verb[Input, Looks]:
    """`layer` is 1 to the number of layers, or counted from the last, -1."""
    total = engine.model.config.num_layers
    if not 1 <= (number := layer if layer > 0 else total + 1 + layer) <= total:
        raise UserError(f"no layer {layer}: the model has 1 to {total}, or -1 to {-total}")
    most = min(MAX_PIECES, engine.max_length)

    def read(text: object) -> Input:
        framed = Framer.of(engine.tokenizer).frame(engine.tokenizer.ids(check_text(text)))
        if len(framed.ids) > most:
            raise UserError(f"a text of {len(framed.ids)} pieces; attention is shown of {most}")
        return framed

    return Verb(
        read=read,
        size=lambda framed: len(framed.ids),
        answer=lambda asked: [look(engine, framed, number) for framed in asked],
    )


@torch.inference_mode()
def look(engine: Engine, framed: Input, layer: int) -> Looks:
    model = engine.model
    packed = pack_inputs([framed], engine.device)
    hidden = model.encode(*packed, num_layers=layer - 1)  # (T, D)
    qkv = model.get_submodule(f"layers.{layer - 1}.attention.qkv")(hidden)  # (T, 3D)
    heads = qkv.unflatten(-1, (3, model.config.num_heads, -1)).float()  # (T, 3, H, K)
    query, key, _ = heads.permute(1, 2, 0, 3)  # 3 (H, L, K)
    weights = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)  # (H, L, L)
    return Looks(
        tokens=tuple(engine.tokenizer.tokens(framed.ids.tolist())),
        layer=layer,
        num_layers=model.config.num_layers,
        heads=weights.cpu().numpy(),
    )
