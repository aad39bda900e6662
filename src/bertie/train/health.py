"""Signs that a run does not learn, and what to try; functions of the figures logged."""

from collections.abc import Mapping
from typing import Any

from bertie.train.log import Show

MIN_PROGRESS = 0.25  # before that, a plateau at the unigram loss is usual
MIN_STEPS = 100
MOST_FILLED = 0.05  # of the tokens that go through the model; with 256 instances a step it is 3%
MARGIN = 0.1  # nats below the unigram entropy; copied targets alone give more


def find_warnings(line: Mapping[str, float], unigram: float | None) -> dict[str, str]:
    """Warnings by their kind, for a line of training metrics; `unigram` is the corpus' entropy."""
    step, found = line["step"], {}
    if line["skipped"] > max(3, 0.01 * step):
        found["skipped"] = (
            f"{line['skipped']} of {step} steps were skipped, their gradients were not finite; "
            "lower optim.peak, or take precision bf16 or fp32"
        )
    if line.get("filled_share", 0.0) > MOST_FILLED:
        found["tails"] = (
            f"{line['filled_share']:.1%} of the tokens are tails that fill batches up to one "
            "shape, and are worth nothing; a larger data.loader.batch_size has shorter ones, "
            "train.compile=false with data.loader.fill=false none"
        )
    if line["progress"] < MIN_PROGRESS or step < MIN_STEPS:
        return found
    kind = "masked LM" if "mlm_loss" in line else "LM"
    loss = line.get("mlm_loss", line.get("lm_loss", 0.0))
    if unigram is not None and loss > unigram - MARGIN:
        found["stuck"] = (
            f"the {kind} loss {loss:.2f} is that of guessing by frequency ({unigram:.2f}): no "
            "context was learned yet. Go on longer; if it stays so, lower optim.peak, lengthen "
            "optim.warmup, or take smaller batches and more steps"
        )
    for term in ("nsp", "sop"):
        if 0.45 < line.get(f"{term}_accuracy", 1.0) < 0.55:
            found[term] = (
                f"pairs are told apart no better than by chance ({term} accuracy "
                f"{line[f'{term}_accuracy']:.0%}); usual while the masked LM has learned nothing, "
                "else look at a few instances: bertie info STORE"
            )
    return found


def check_pairs(num_random: int, num_pairs: int, num_wanted: int) -> str | None:
    """A warning if few are pairs of those that should be, or not as many of both kinds."""
    if num_pairs < num_wanted / 2:
        return (
            f"{num_pairs:,} of {num_wanted:,} instances are pairs, the others teach nothing of "
            "them: a document of a single sentence has no two parts. Take text in documents of "
            "many sentences, or objective=mlm"
        )
    if num_pairs < 100 or 0.4 <= num_random / num_pairs <= 0.6:
        return None
    return (
        f"{num_random / num_pairs:.0%} of the pairs are NotNext, about 50% are wanted; many "
        "documents of a single sentence do this"
    )


def with_warnings(show: Show, unigram: float) -> Show:
    """Shows lines, and after each what it warns of, every kind once."""
    seen: set[str] = set()

    def show_all(line: Mapping[str, Any]) -> None:
        show(line)
        found = find_warnings(line, unigram) if "progress" in line else {}
        for kind in sorted(found.keys() - seen):
            seen.add(kind)
            show({"warning": found[kind]})

    return show_all
