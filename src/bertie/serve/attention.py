"""How much each piece of a text looks at each other one, in a layer, for people to see."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertie.errors import UserError
from bertie.infer.engine import Engine
from bertie.infer.verb import Verb, check_text
from bertie.serve.refusals import Refused

MAX_PIECES = 128  # a person looks at no more; an answer has heads x pieces x pieces numbers


class Looks(NamedTuple):
    """The attention of one layer's heads."""

    tokens: tuple[str, ...]
    layer: int  # 1 is the first
    num_layers: int
    heads: np.ndarray  # (H, L, L) of each head, from each piece to each


def look_verb(engine: Engine, layer: int) -> Verb[str, Looks]:
    """`layer` is 1 to the number of layers, or counted from the last, -1."""
    total = engine.model.config.num_layers
    if not 1 <= (number := layer if layer > 0 else total + 1 + layer) <= total:
        raise UserError(f"no layer {layer}: the model has 1 to {total}, or -1 to {-total}")
    most = min(MAX_PIECES, engine.max_length)

    def read(asked: object) -> str:
        text = check_text(asked)
        num_pieces = len(engine.tokenizer.split_masked(text).ids) + 2
        if num_pieces > most:
            raise Refused(
                413,
                f"a text of {num_pieces:,} pieces; the limit is {most} for attention; send a part",
                "text",
            )
        return text

    def answer(texts: Sequence[str]) -> list[Looks]:
        found = [engine.attention(text) for text in texts]
        return [Looks(one.pieces, number, total, one.weights[number - 1]) for one in found]

    return Verb(read=read, size=len, answer=answer)
