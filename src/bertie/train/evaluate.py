"""How well a model fills masks and tells pairs apart, on text it has not seen."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bertie.model.bert import Bert
from bertie.objectives import IGNORED, token_losses
from bertie.train.distributed import World

LANGUAGE_MODELS = {"next_token": "lm", "previous_token": "back"}
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
    for batch in batches:
        moved = batch.to(world.device)
        with torch.autocast(world.device.type, dtype, enabled=dtype is not None):
            answers = model(*moved[:5], predicted=moved.predicted)
        logits = dict(zip(model.heads, answers, strict=True))
        if "masked_lm" in logits:
            seen = moved.ids[moved.predicted]
            is_masked, is_kept = seen == mask_id, seen == moved.labels
            is_chosen = moved.labels != IGNORED
            chosen = (is_masked, ~is_masked & ~is_kept, is_kept)
            for kind, is_kind in zip(KINDS, chosen, strict=True):
                add(sums, kind, logits["masked_lm"], moved.labels, is_kind & is_chosen)
        for head, term in LANGUAGE_MODELS.items():
            if head in logits:
                labels = moved.labels if term == "lm" else moved.previous
                add(sums, term, logits[head], labels, labels != IGNORED)
        if "next_sentence" in logits:
            labels = moved.pair_labels
            add(sums, pair, logits["next_sentence"], labels, labels != IGNORED)
    model.train(was_training)
    return find_means(dict(zip(sums, world.sum(list(sums.values())), strict=True)))


def add(
    sums: defaultdict[str, Tensor | float],
    kind: str,
    logits: Tensor,
    labels: Tensor,
    is_kind: Tensor,
) -> None:
    sums[f"{kind}_loss"] += token_losses(logits, labels)[is_kind].sum()
    sums[f"{kind}_accuracy"] += (logits.argmax(-1) == labels)[is_kind].sum()
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
