"""Batches of a training step, flat as ours take them and padded as the peer does."""

import argparse
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.data.instances import InstanceConfig
from bertie.data.loader import IGNORED, Batch, Loader, Step
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import Store
from bertie.model.config import ModelConfig

DIFFERENT_STEPS = 4  # of full batches; they come again


class Padded(NamedTuple):
    """A batch as `transformers` takes it: B sequences of length L."""

    input_ids: Tensor  # (B, L)
    token_type_ids: Tensor  # (B, L)
    attention_mask: Tensor  # (B, L)
    labels: Tensor  # (B, L)
    next_sentence_label: Tensor  # (B,)


def pad(batch: Batch, num_sequences: int, length: int) -> Padded:
    """The first sequences of a flat batch, each in a row of its own."""
    rows = torch.zeros(5, num_sequences, length, dtype=torch.int64)
    labels = torch.full((len(batch.ids),), IGNORED)
    labels[batch.predicted] = torch.where(batch.labels == IGNORED, labels[0], batch.labels)
    flat = (batch.ids, batch.segments, torch.ones_like(batch.ids), labels)
    rows[3] = IGNORED
    for n in range(num_sequences):
        start, end = int(batch.bounds[n]), int(batch.bounds[n + 1])
        for kind, values in enumerate(flat):
            rows[kind, n, : end - start] = values[start:end]
    return Padded(rows[0], rows[1], rows[2], rows[3], batch.pair_labels[:num_sequences])


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The same instances for both, one micro-batch a step."""

    steps: list[Step]
    padded: list[Padded]

    def describe(self) -> dict[str, Any]:
        num_sequences, length = self.padded[0].input_ids.shape
        num_tokens = sum(step.num_tokens for step in self.steps)
        num_predicted = sum(step.num_targets["mlm"] for step in self.steps)
        num_filled = sum(step.num_filled for step in self.steps)
        return {
            "length": length,
            "sequences_a_step": num_sequences,
            "mean_length": round(num_tokens / num_sequences / len(self.steps), 1),
            "predicted_a_step": round(num_predicted / len(self.steps), 1),
            "filled_share": round(num_filled / (num_filled + num_tokens), 4),
        }

    def count_flops(self, config: ModelConfig, number: int) -> int:
        """Useful ones of a step: nothing for padding, the MLM head only where it is needed."""
        layers, hidden, vocab = config.num_layers, config.hidden_size, config.vocab_size
        lengths = self.padded[number].attention_mask.sum(1)  # (B,)
        layer_flops = 72 * hidden**2 * int(lengths.sum()) + 12 * hidden * int((lengths**2).sum())
        head_flops = 6 * self.steps[number].num_targets["mlm"] * (vocab * hidden + hidden**2)
        return layers * layer_flops + head_flops


def make_data(store: Store, options: argparse.Namespace, length: int, batch_size: int) -> Data:
    """The first steps of a run; on a GPU filled up to one shape, that of the largest of them."""
    loader = LoaderConfig(batch_size=batch_size, micro_tokens=batch_size * length)
    config = DataConfig(instances=InstanceConfig(max_length=length), loader=loader)
    steps = read_steps(store, config, options.rounds * options.steps)
    if options.device == "cuda":
        largest, least = (f(step.num_tokens for step in steps) for f in (max, min))
        shape = {
            "micro_tokens": largest,
            "max_sequences": batch_size + -(-(largest - least) // length),  # tails count, too
            "max_predicted": max(step.num_targets["mlm"] for step in steps),
        }
        filled = replace(config, loader=replace(loader, fill=True, **shape))
        steps = read_steps(store, filled, len(steps))
    assert all(len(step.micro_batches) == 1 for step in steps)
    batches = [step.micro_batches[0] for step in steps]
    return Data(steps=steps, padded=[pad(batch, batch_size, length) for batch in batches])


def read_steps(store: Store, config: DataConfig, num_steps: int) -> list[Step]:
    with Loader(store, config) as made:
        return [made.step(number) for number in range(num_steps)]


def make_full_data(store: Store, num_steps: int, length: int, batch_size: int) -> Data:
    """Steps whose sequences are all of the full length, of two made-up segments."""
    generator = torch.Generator().manual_seed(0)
    size = batch_size * length
    positions = torch.arange(length).repeat(batch_size)
    steps = []
    for number in range(min(num_steps, DIFFERENT_STEPS)):
        ids = torch.randint(5, store.manifest.vocab_size, (size,), generator=generator)
        predicted = torch.randperm(size, generator=generator)[: round(0.15 * size)].sort().values
        batch = Batch(
            ids=ids,
            segments=(positions >= length // 2).long(),
            positions=positions,
            bounds=torch.arange(0, size + 1, length),
            longest=length,
            predicted=predicted,
            labels=ids[predicted].clone(),
            pair_labels=torch.randint(2, (batch_size,), generator=generator),
        )
        ids[predicted] = 4
        steps.append(
            Step(
                number=number,
                epoch=0,
                micro_batches=(batch,),
                num_targets={"mlm": len(predicted), "nsp": batch_size},
                num_tokens=size,
                num_filled=0,
            )
        )
    padded = [pad(step.micro_batches[0], batch_size, length) for step in steps]
    order = [number % len(steps) for number in range(num_steps)]
    return Data(steps=[steps[n] for n in order], padded=[padded[n] for n in order])
