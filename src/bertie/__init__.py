"""BERT, end to end: from a folder of raw text to a served model.

model = bertie.load()  # the English model that ships; or one of yours: bertie.load("my_run/model")
model.fill("Paris is the [MASK] of France.").best
model.embed(["A text.", "Another."])  # (2, hidden size)

A fine-tuned one can classify, classify_pairs, tag, answer or choose.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bertie.infer.engine import Engine

__all__ = ["load"]
__version__ = "0.1.0"


def load(
    directory: "str | Path | None" = None,
    *,
    device: str | None = None,
    precision: str = "fp32",
    show: bool = True,
) -> "Engine":
    """A model directory, ready to be asked; on a GPU where there is one, if no device is named.

    If no directory is named, it is the model that ships with bertie, or $BERTIE_MODEL.
    `precision` is fp32, bf16, int8 (CPU) or fp16 (GPU): the lower, the faster, where the processor
    has instructions for it, and a little less exact. What takes long shows a bar where stderr is a
    terminal, unless `show` is false.
    """
    from bertie.embedded import find_model
    from bertie.infer.engine import Engine  # torch comes with it

    return Engine.load(find_model(directory), device=device, precision=precision, show=show)
