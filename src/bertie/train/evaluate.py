"""How well a model fills masks and tells pairs apart, on text it has not seen."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.bert import Bert
from bertie.objectives import BLOCK_BYTES, IGNORED, token_losses
from bertie.train.distributed import World

# Heads that give logits of all pieces, and what their figures are called.
PIECES = {"masked_lm": "mlm", "next_token": "lm", "previous_token": "back"}
KINDS = ("mask", "random", "kept")  # what the model sees where a token was chosen


@torch.no_grad()
def evaluate_pretraining(
    model: Bert,
    batches: Iterable[Any],
    *,
    mask_id: int,
    pair: str,
    world: World,
    dtype: torch.dtype | None = None,
) -> dict[str, float]:
    """Means of losses and accuracies; of masked LM apart for [MASK], random and kept positions.

    A kept token can be copied, so only the [MASK] positions tell what was learned. `pair` names
    the figures of pairs. Every rank brings batches of its own, and gets the means over all.
    """
    was_training = model.training
    model.eval()
    sums: defaultdict[str, Tensor | float] = defaultdict(float)
    names = PIECES | {"next_sentence": pair}
    for batch in batches:
        moved = batch.to(world.device)
        with torch.autocast(world.device.type, dtype, enabled=dtype is not None):
            answers = model(*moved[:5], predicted=moved.predicted, is_projected=False)
            for head, answer in zip(model.heads, answers, strict=True):
                if head not in names:
                    continue
                labels = labels_of(moved, head)
                output = model.output_layer(head) if head in PIECES else None
                scores = score(answer, output, labels)
                is_target = labels != IGNORED
                if head == "masked_lm":
                    seen = moved.ids[moved.predicted]
                    is_masked, is_kept = seen == mask_id, seen == labels
                    chosen = (is_masked, ~is_masked & ~is_kept, is_kept)
                    for kind, is_kind in zip(KINDS, chosen, strict=True):
                        add(sums, kind, scores, is_kind & is_target)
                else:
                    add(sums, names[head], scores, is_target)
    model.train(was_training)
    return find_means(dict(zip(sums, world.sum(list(sums.values())), strict=True)))


def labels_of(batch: Any, head: str) -> Tensor:  # (M,) or (N,)
    if head == "previous_token":
        labels: Tensor = batch.previous
        return labels
    return batch.labels if head in PIECES else batch.pair_labels  # type: ignore[no-any-return]


def score(
    rows: Tensor, output: tuple[Tensor, Tensor] | None, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses, and whether an answer is right; of pieces, without storing all the logits.

    (M, E), (V, E) and (V,), (M,) -> (M,), (M,); without an output layer, the rows are logits.
    """
    size = len(rows) if output is None else BLOCK_BYTES // (4 * len(output[0]))
    losses, rights = [], []
    for some, wanted in zip(rows.split(max(1, size)), labels.split(max(1, size)), strict=True):
        logits = some if output is None else F.linear(some, *output)
        losses.append(token_losses(logits, wanted))
        rights.append(logits.argmax(-1) == wanted)
    return torch.cat(losses), torch.cat(rights)


def add(
    sums: defaultdict[str, Tensor | float],
    kind: str,
    scores: tuple[Tensor, Tensor],
    is_kind: Tensor,
) -> None:
    losses, rights = scores
    sums[f"{kind}_loss"] += losses[is_kind].sum()
    sums[f"{kind}_accuracy"] += rights[is_kind].sum()
    sums[kind] += is_kind.sum()


def find_means(sums: dict[str, float]) -> dict[str, float]:
    """Of each kind that was there; and of all masked LM positions together."""
    for figure in ("", "_loss", "_accuracy"):
        if any(f"{kind}{figure}" in sums for kind in KINDS):
            sums[f"mlm{figure}"] = sum(sums.get(f"{kind}{figure}", 0.0) for kind in KINDS)
    return {
        name: total / sums[name.rpartition("_")[0]]
        for name, total in sums.items()
        if "_" in name and sums[name.rpartition("_")[0]]
    }
