"""A small model directory with a vocabulary of its own, and weights that are all different."""

from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import save_model
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.tasks import KnownTask, describe
from bertie.text.count import count_words
from bertie.text.files import TokenizerConfig, write_tokenizer
from bertie.text.learn import LearnConfig, learn

SENTENCES = [
    "Paris is the capital of France, and the seat of its government.",
    "The largest city of Australia is Sydney; its capital is Canberra.",
    "Naïve tokenizers stumble over 中文 and over don't-words.",
    "He plays chess, she played football, they are playing.",
]

# A shape that runs in C where there is a compiler; the usual one does not.
FOR_C = {"hidden_size": 64, "num_heads": 2, "ffn_size": 96}


def make_directory(
    folder: Path,
    heads: tuple[str, ...] = ("masked_lm", "next_sentence"),
    *,
    lower_case: bool = True,
    max_positions: int = 40,
    num_labels: int = 2,
    card: TaskCard | None = None,
    **switches: Any,
) -> Path:
    config = TokenizerConfig(lower_case=lower_case, max_length=max_positions)
    counts = count_words([SENTENCES * 3], config)
    pieces = learn(counts, LearnConfig(size=120, num_unused=3), config)
    write_tokenizer(folder / "tokenizer", pieces, config)
    usual = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "ffn_size": 40}
    shape = ModelConfig(
        vocab_size=len(pieces),
        max_positions=max_positions,
        init_std=0.3,  # large, so that a mistake is no rounding error
        **usual | switches,
    )
    rng = torch.Generator().manual_seed(5)
    model = Bert(shape, heads, num_labels=num_labels, generator=rng)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.rand(parameter.shape, generator=rng)
    save_model(model, folder / "model", card=card, tokenizer_from=folder / "tokenizer")
    return folder / "model"


def make_tuned(folder: Path, task: KnownTask, **options: int) -> Path:
    """The directory of a model that was fine-tuned for a settled task, so to say."""
    card = TaskCard(**describe(task))
    return make_directory(folder, (task.head,), num_labels=task.num_labels, card=card, **options)


def make_foreign(folder: Path, head: str, labels: tuple[str, ...] = (), **options: int) -> Path:
    """One that was fine-tuned elsewhere: no task.json, and what config.json says of labels."""
    card = TaskCard(head=head, labels=labels) if labels else None
    num_labels = len(labels) or 2
    made = make_directory(folder, (head,), num_labels=num_labels, card=card, **options)
    (made / "task.json").unlink(missing_ok=True)
    return made
