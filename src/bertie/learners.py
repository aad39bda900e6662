"""What the runs of a fine-tuning train: a whole model, or a head on the features of a frozen one.

Both are made for a run, written to a folder and opened from it; all the rest of fine-tuning is the
same for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.head_dir import HeadRecord, open_head, save_head
from bertie.checkpoint.model_dir import open_model, save_weights
from bertie.checkpoint.state import Checkpoint
from bertie.data.features import FeatureRows
from bertie.errors import UserError
from bertie.feature_sets import look_up_in, open_stored_head
from bertie.model.bert import Bert, initialise
from bertie.model.config import train_memory
from bertie.model.feature_head import (
    Combination,
    FeatureHead,
    HeadKind,
    HeadShape,
    combined_layers,
    make_feature_head,
)
from bertie.tasks import describe
from bertie.tasks.task import AnyTask
from bertie.train.distributed import World
from bertie.train.hardware import find_free_bytes
from bertie.train.log import Show
from bertie.train.memory import find_micro_tokens

HEAD_TOKENS = 32_768  # most of a micro-batch of a head, which is small


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """A head on features; it takes the place of a model's own."""

    kind: HeadKind = "bilstm"  # linear: of each word or of [CLS]; mean: of all of a text's tokens
    combinations: tuple[Combination, ...] = ("concat-last-4",)  # of layers; a run for each
    hidden_size: int = 128  # of the LSTM in each direction; the paper's 768 is slow on a CPU
    num_layers: int = 2  # of the LSTM
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.hidden_size < 1 or self.num_layers < 1 or not self.combinations:
            raise UserError("head: hidden_size, num_layers and combinations are at least one")
        if not 0 <= self.dropout < 1:
            raise UserError(f"head.dropout is at least 0 and below 1; found {self.dropout}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """What makes a run differ from its neighbours."""

    seed: int
    batch_size: int
    peak: float
    budget: str
    combination: Combination | None  # of features, where a head reads them

    @property
    def name(self) -> str:
        budget = self.budget.replace(" ", "-")
        name = f"peak-{self.peak:g}-batch-{self.batch_size}-{budget}-seed-{self.seed}"
        return name if self.combination is None else f"{self.combination}-{name}"

    @property
    def settings(self) -> dict[str, str | float]:
        """What is the same for all seeds."""
        values: dict[str, str | float] = {}
        if self.combination is not None:
            values["combination"] = self.combination
        return values | {"peak": self.peak, "batch_size": self.batch_size, "budget": self.budget}


class Learner(Protocol):
    """What is trained."""

    def make(self, spec: RunSpec, checkpoint: Checkpoint | None) -> nn.Module:
        """For a run, fresh or as it was in a checkpoint."""

    def open(self, folder: Path) -> nn.Module: ...
    def write(
        self, model: nn.Module, weights: Mapping[str, Tensor], folder: Path, task: AnyTask
    ) -> None:
        """Whole weights of a model, of which this process may hold a part."""

    def find_micro_tokens(self, model: nn.Module, task: AnyTask, world: World) -> int:
        """The most tokens of a micro-batch that the memory holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BertLearner:
    """A model directory's encoder with a fresh output layer."""

    source: Path
    task: AnyTask
    freeze: int  # layers that stay as they are, from below; the embeddings with them
    bilstm_layers: int  # of an LSTM between the encoder and the output layer
    show: Show

    def make(self, spec: RunSpec, checkpoint: Checkpoint | None) -> Bert:
        generator = torch.Generator().manual_seed(spec.seed)
        opened = open_model(
            self.source if checkpoint is None else checkpoint.model,
            heads=(self.task.head,),
            num_labels=self.task.num_labels,
            bilstm_layers=self.bilstm_layers or None,
            generator=generator,
        )
        model = opened.model
        for parameter in model.parameters():  # mapped from the file, which stays as it is
            parameter.data = parameter.data.clone()
        if checkpoint is None:
            initialise(model.get_submodule(self.task.head), model.config.init_std, generator)
            if "pooler" in opened.fresh:
                self.show({"note": f"{self.source} lacks a pooler: new, untrained"})
        self.hold_still(model)
        return model

    def hold_still(self, model: Bert) -> None:
        """Lets go of what is not trained."""
        if self.freeze > len(model.layers):
            raise UserError(
                f"tune.freeze is {self.freeze}, the model has {len(model.layers)} layers"
            )
        if model.config.share_layers and 0 < self.freeze < len(model.layers):
            raise UserError(
                f"the {len(model.layers)} layers of {self.source} are one and the same; "
                "tune.freeze is none or all of them"
            )
        if self.freeze:
            for part in (model.embeddings, *model.layers[: self.freeze]):
                part.requires_grad_(False)
        if model.pooler is not None and self.task.head in ("token", "span"):
            model.pooler.requires_grad_(False)  # kept for the next task; nothing here trains it

    def open(self, folder: Path) -> Bert:
        return open_model(folder).model

    def write(
        self, model: nn.Module, weights: Mapping[str, Tensor], folder: Path, task: AnyTask
    ) -> None:
        assert isinstance(model, Bert)
        save_weights(
            weights,
            folder,
            config=model.config,
            heads=model.heads,
            card=TaskCard(**describe(task)),
            tokenizer_from=self.source,
        )

    def find_micro_tokens(self, model: nn.Module, task: AnyTask, world: World) -> int:
        assert isinstance(model, Bert)
        memory = train_memory(model.config, batch_size=1, length=task.max_length)
        found = find_micro_tokens(
            None,
            free_bytes=find_free_bytes(world.device) - memory.gradients - memory.optimizer,
            bytes_per_token=memory.activations / task.max_length,
            least=task.max_length,
            device=world.device,
        )
        return world.least(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadLearner:
    """A head on the rows of feature stores."""

    config: HeadConfig
    rows: FeatureRows
    task: AnyTask

    def make(self, spec: RunSpec, checkpoint: Checkpoint | None) -> FeatureHead:
        assert spec.combination is not None
        layers = self.layers_of(spec.combination)
        if checkpoint is not None:
            return open_head(checkpoint.model, look_up_in(self.rows, layers))
        reads: Literal["tokens", "inputs"] = "tokens" if self.task.head == "token" else "inputs"
        shape = HeadShape(
            kind=self.config.kind,
            reads=reads,
            combination=spec.combination,
            num_vectors=len(layers),
            vector_size=self.rows.stores[0].manifest.hidden_size,
            hidden_size=self.config.hidden_size,
            num_layers=self.config.num_layers,
            dropout=self.config.dropout,
            num_labels=self.task.num_labels,
        )
        return make_feature_head(shape, look_up_in(self.rows, layers), spec.seed)

    def layers_of(self, combination: Combination) -> tuple[int, ...]:
        store = self.rows.stores[0]
        layers = combined_layers(combination, store.manifest.num_layers)
        if missing := sorted(set(layers) - set(store.manifest.layers)):
            raise UserError(
                f"{store.folder} lacks layer {missing[0]}, which {combination} reads; make it "
                f"with more of them: bertie features ... --layers all"
            )
        return layers

    def open(self, folder: Path) -> FeatureHead:
        return open_stored_head(folder, self.rows)

    def write(
        self, model: nn.Module, weights: Mapping[str, Tensor], folder: Path, task: AnyTask
    ) -> None:
        assert isinstance(model, FeatureHead)
        manifest = self.rows.stores[0].manifest
        record = HeadRecord(
            shape=model.shape,
            layers=self.layers_of(model.shape.combination),
            model=manifest.model,
            model_sha256=manifest.model_sha256,
        )
        save_head(weights, folder, record=record, card=TaskCard(**describe(task)))

    def find_micro_tokens(self, model: nn.Module, task: AnyTask, world: World) -> int:
        return HEAD_TOKENS
