"""How well a model fills masks and tells pairs apart, on text it has not seen."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from bertie.model.bert import Bert
from bertie.objectives import IGNORED, token_losses


@torch.no_grad()
def evaluate_pretraining(model: Bert, batches: Iterable[Any], mask_id: int) -> dict[str, float]:
    """Means of losses and accuracies; of masked LM apart for [MASK] and for other positions.

    A kept token can be copied, so only the [MASK] positions tell what was learned.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    sums: defaultdict[str, float] = defaultdict(float)
    for batch in batches:
        moved = batch.to(device)
        logits = dict(zip(model.heads, model(*moved[:5], predicted=moved.predicted), strict=True))
        is_hidden = moved.ids[moved.predicted] == mask_id
        losses = token_losses(logits["masked_lm"], moved.labels)
        is_right = logits["masked_lm"].argmax(-1) == moved.labels
        for name, chosen in (("mask", is_hidden), ("seen", ~is_hidden & (moved.labels != IGNORED))):
            sums[f"{name}_loss"] += float(losses[chosen].sum())
            sums[f"{name}_accuracy"] += int(is_right[chosen].sum())
            sums[name] += int(chosen.sum())
        if "next_sentence" in logits:
            is_pair = moved.pair_labels != IGNORED
            right = logits["next_sentence"].argmax(-1) == moved.pair_labels
            sums["nsp_accuracy"] += int(right[is_pair].sum())
            sums["nsp"] += int(is_pair.sum())
    model.train(was_training)
    return {
        name: total / sums[name.rpartition("_")[0]]
        for name, total in list(sums.items())
        if name.endswith(("_loss", "_accuracy")) and sums[name.rpartition("_")[0]]
    }
