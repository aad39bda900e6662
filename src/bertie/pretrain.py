"""From a token store to a pre-trained model directory: wiring of loader, model, objective, loop."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertie.checkpoint.model_dir import open_model, save_model
from bertie.checkpoint.state import Checkpoint, Counters, find_checkpoint
from bertie.data.loader import Batch, Loader
from bertie.data.steps import DataConfig
from bertie.data.store import TOKENIZER, Store, open_store
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.objectives import Term, cross_entropy
from bertie.prepare import HELD_OUT
from bertie.train.evaluate import evaluate_pretraining
from bertie.train.log import Log
from bertie.train.loop import Run, TrainConfig, train
from bertie.train.optim import OptimConfig

Show = Callable[[Mapping[str, Any]], None]
EVALUATED_STEPS = 20  # batches of held-out text, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    model: ModelConfig = field(default_factory=ModelConfig)  # vocab_size comes from the store
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A finished run."""

    model: Path
    counters: Counters
    held_out: dict[str, float]  # empty if the store has nothing held out


def pretrain(
    folder: Path, out: Path, recipe: PretrainRecipe, *, show: Show = lambda line: None
) -> Pretrained:
    """Trains a model on a store, going on where an earlier run in `out` stopped."""
    store = open_store(folder)
    config = replace(recipe.model, vocab_size=store.manifest.vocab_size)
    if recipe.data.instances.max_length > config.max_positions:
        raise UserError(
            f"data.instances.max_length {recipe.data.instances.max_length} is more than the "
            f"{config.max_positions} positions of the model"
        )
    settings = {"store": store.manifest.digest, **asdict(replace(recipe, model=config))}
    checkpoint = find_checkpoint(out)
    if checkpoint is not None:
        check_same(checkpoint, settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(config, recipe, checkpoint).to(device)
    begin = checkpoint.counters if checkpoint is not None else Counters()
    out.mkdir(parents=True, exist_ok=True)
    log = Log(out, every=recipe.train.log_every, begin=begin, show=show)
    run = Run(folder=out, settings=settings, tokenizer_from=store.folder / TOKENIZER)
    counters = begin
    with Loader(store, recipe.data, start_step=begin.step, end_step=recipe.train.steps) as steps:
        if begin.step < recipe.train.steps:
            counters = train(
                model,
                steps,
                objective_of(recipe.data.instances.kind),
                run,
                config=recipe.train,
                optim=recipe.optim,
                log=log,
                resume=checkpoint,
            )
    save_model(model, out / "model", tokenizer_from=store.folder / TOKENIZER)
    held_out = evaluate_held_out(model, store, recipe)
    return Pretrained(model=out / "model", counters=counters, held_out=held_out)


def check_same(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    """A run goes on with the settings it began with, or not at all."""
    before, now = flatten(checkpoint.settings), flatten(settings)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise UserError(
                f"{checkpoint.folder} was trained with {name} = {before.get(name)}, the recipe "
                f"says {now.get(name)}; take the same settings, or another --out"
            )


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def make_model(config: ModelConfig, recipe: PretrainRecipe, checkpoint: Checkpoint | None) -> Bert:
    if checkpoint is None:
        generator = torch.Generator().manual_seed(recipe.train.seed)
        return Bert(config, HEADS[recipe.data.instances.kind], generator=generator)
    opened = open_model(checkpoint.model, heads=HEADS[recipe.data.instances.kind])
    for parameter in opened.model.parameters():  # mapped from the file, which stays as it is
        parameter.data = parameter.data.clone()
    opened.model.config = config  # dropout of the classifier and the like are not in the file
    return opened.model


HEADS = {  # heads that the objective does not train are not built
    "nsp": ("masked_lm", "next_sentence"),
    "sentences": ("masked_lm", "next_sentence"),
    "sop": ("masked_lm", "next_sentence"),
    "full": ("masked_lm",),
}


def objective_of(kind: str) -> Callable[[nn.Module, Batch], dict[str, Term]]:
    pair = {"nsp": "nsp", "sentences": "nsp", "sop": "sop"}.get(kind)

    def objective(model: nn.Module, batch: Batch) -> dict[str, Term]:
        logits = model(*batch[:5], predicted=batch.predicted)
        terms = {"mlm": cross_entropy(logits[0], batch.labels)}
        if pair is not None:
            terms[pair] = cross_entropy(logits[1], batch.pair_labels)
        return terms

    return objective


def evaluate_held_out(model: Bert, store: Store, recipe: PretrainRecipe) -> dict[str, float]:
    """Losses and accuracies on the documents that were held out, with masks that stay the same."""
    if not (store.folder / HELD_OUT).is_dir():
        return {}
    held_out = open_store(store.folder / HELD_OUT)
    if held_out.manifest.num_documents < 2 and recipe.data.instances.kind != "full":
        return {}
    mask_id = held_out.load_tokenizer().id(held_out.load_tokenizer().config.mask_token)
    return evaluate_pretraining(model, held_out_batches(held_out, recipe), mask_id)


def held_out_batches(store: Store, recipe: PretrainRecipe) -> Iterator[Batch]:
    data = replace(recipe.data, masking=replace(recipe.data.masking, static_copies=1))
    data = replace(data, loader=replace(data.loader, num_workers=0))
    with Loader(store, data) as loader:
        num_steps = loader.header().num_instances // data.loader.batch_size
        for number in range(min(max(1, num_steps), EVALUATED_STEPS)):
            yield from loader.step(number).micro_batches
