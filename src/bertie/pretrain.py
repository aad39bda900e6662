"""From a token store to a pre-trained model directory: wiring of loader, model, objective, loop."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from bertie.checkpoint.grow import open_grown, with_dropouts
from bertie.checkpoint.hugging_face import check_written
from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.model_dir import (
    CONFIG,
    check_replaceable,
    copy_model,
    open_model,
    read_config,
    save_weights,
)
from bertie.checkpoint.state import (
    MODEL,
    Checkpoint,
    Counters,
    Saving,
    find_best,
    find_checkpoint,
    list_checkpoints,
    step_of,
    verify,
)
from bertie.data.entropy import unigram_entropy
from bertie.data.loader import Batch, Loader
from bertie.data.locks import held
from bertie.data.steps import TERMS, DataConfig
from bertie.data.store import MANIFEST, TOKENIZER, Store, open_store
from bertie.embedded import find_model
from bertie.errors import UserError
from bertie.held_out import HeldOut
from bertie.model.bert import Bert
from bertie.model.config import DROPOUTS, ModelConfig, train_flops
from bertie.model.heads import read_columns
from bertie.objectives import Term, cross_entropy, linear_cross_entropy
from bertie.plan import Plan, make_plan, preflight
from bertie.report.pretraining import write_pretraining_report
from bertie.text.tokenizer import Tokenizer
from bertie.train.budget import Phase
from bertie.train.distributed import World, open_world
from bertie.train.hardware import find_peak
from bertie.train.health import with_warnings
from bertie.train.log import Log, Show, read_held_out
from bertie.train.loop import TrainConfig, Trainer, switch_kernels
from bertie.train.optim import OptimConfig
from bertie.train.record import (
    HARMLESS_TO_ALL,
    RECORD,
    begin_record,
    check_same,
    find_common_checkpoint,
)

# lm predicts each token from those before it, back from those behind it
Objective = Literal["mlm+nsp", "mlm", "nsp", "mlm+sop", "lm", "lm+back"]
HEADS = {
    "mlm": "masked_lm",
    "lm": "next_token",
    "back": "previous_token",
    "nsp": "next_sentence",
    "sop": "next_sentence",
}
# What may be changed when a run goes on: it does not change what is learned.
HARMLESS = HARMLESS_TO_ALL | {
    "store",
    "out",
    "data.loader.micro_tokens",
    "data.loader.num_workers",
    "data.loader.prefetch",
    "train.compile",
    "train.evaluate_every",
    "train.patience",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    """All settings of a run."""

    objective: Objective = "mlm+nsp"
    store: Path | None = None  # the token store to train on
    out: Path | None = None  # folder of the run
    start: Path | None = None  # model directory to go on from; `embedded`: the one that ships
    grow: bool = False  # the started model takes the store's vocabulary, and positions as needed
    model: ModelConfig | None = None  # vocab_size comes from the store; none: the start's
    data: DataConfig = field(default_factory=DataConfig)
    phases: tuple[Phase, ...] = ()  # none: all at data.instances.max_length
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        pair, kind = self.pair, self.data.instances.kind
        if pair is not None and TERMS.get(kind) != pair:
            fitting = [name for name, term in TERMS.items() if term == pair]
            raise UserError(
                f"the objective {self.objective} needs data.instances.kind = "
                f"{' or '.join(fitting)}; found {kind}"
            )
        if self.model is not None:
            check_fit(self, self.model)
        if self.data.masking.unit == "next" and "lm" not in self.terms:
            raise UserError(
                f"data.masking.unit = next hides nothing, so {self.objective} has nothing to "
                "learn; take token, word or span, or the objective lm"
            )
        if self.grow and self.start is None:
            raise UserError("grow goes with start, the model directory to go on from")

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.objective.split("+"))

    @property
    def pair(self) -> str | None:
        """The loss of pairs: nsp, sop or none."""
        return next((term for term in self.terms if term in ("nsp", "sop")), None)

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads that the objective does not train are not built."""
        return tuple(HEADS[term] for term in self.terms)


def check_fit(recipe: PretrainRecipe, model: ModelConfig) -> None:
    """Whether the recipe's objective, data and training are for such a model."""
    check_direction(recipe, model)
    if recipe.train.compile and (model.layer == "lstm" or model.bilstm_layers):
        raise UserError("train.compile is for Transformers; leave it out with an LSTM")
    kind = recipe.data.instances.kind
    if kind in TERMS and model.num_segments < 2:
        raise UserError(
            f"data.instances.kind = {kind} is of pairs, and the model knows one segment; take "
            "kind = full, or a model with model.num_segments = 2"
        )


def check_direction(recipe: PretrainRecipe, model: ModelConfig) -> None:
    """A language model must not see what it predicts; and both halves of an LSTM must learn."""
    if recipe.objective == "lm" and model.layer == "lstm":
        raise UserError("the objective lm trains one half of an LSTM; take lm+back with an LSTM")
    for head in recipe.heads:
        try:
            read_columns(head, model)
        except UserError as error:
            raise UserError(f"the objective {recipe.objective}: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A finished run."""

    model: Path
    counters: Counters
    held_out: dict[str, float]  # empty if the store has nothing held out
    unigram: float  # nats: the loss of guessing by frequency
    guessing: dict[str, float]  # what that gives at the held-out [MASK] positions


def pretrain(
    recipe: PretrainRecipe, *, command: Sequence[str] = (), show: Show = lambda line: None
) -> Pretrained:
    """Trains a model on a store, going on where an earlier run in the same folder stopped.

    `command` is what was typed, word by word; it is recorded.
    """
    if recipe.store is None or recipe.out is None:
        raise UserError("say what to train on and where to write: --store STORE --out RUN")
    with open_world(recipe.train.device) as world, ExitStack() as stack:
        store, out = open_store(recipe.store), recipe.out
        check_folder(out, recipe.start)
        checkpoint = find_common_checkpoint(out, world)
        model, notes = make_model(recipe, store, checkpoint)
        check_written(model)  # now, and not at the first checkpoint
        settings = settings_of(recipe, model.config, store)
        if checkpoint is not None:
            check_same(checkpoint.folder, checkpoint.settings, settings, harmless=HARMLESS)
        model.to(world.device)
        switch_kernels(recipe.train, world.device)  # the plan may try how much memory a step takes
        stored = 0 if checkpoint is None else checkpoint.kept["micro_tokens"]
        plan = make_plan(
            data_of(recipe),
            recipe.phases,
            recipe.train,
            optim=recipe.optim,
            store=store,
            model=model,
            objective=objective_of(recipe),
            world=world,
            micro_tokens=stored,
        )
        unigram = unigram_entropy(store)
        if world.is_first:
            stack.enter_context(held(out))
            begin_record(out, settings, world, command=command, unigram_entropy=unigram)
            if checkpoint is not None:
                notes.append(f"{plan.budget.progress(checkpoint.counters):.1%} are done")
            for note in (*notes, *preflight(plan, model, store, unigram)):
                show({"note": note})
        held_out = [held_out_of(recipe, phase.data, store, world) for phase in plan.phases]
        trainer = Trainer(
            model,
            objective_of(recipe),
            config=recipe.train,
            optim=recipe.optim,
            budget=plan.budget,
            saving=Saving(
                folder=out,
                settings=settings,
                write=partial(
                    save_weights,
                    config=model.config,
                    heads=model.heads,
                    tokenizer_from=store.folder / TOKENIZER,
                ),
                keep=recipe.train.keep,
                kept={"micro_tokens": plan.micro_tokens},
            ),
            world=world,
            log=open_log(recipe, plan, model, world, with_warnings(show, unigram), checkpoint),
            evaluate=held_out[-1],
            resume=checkpoint,
        )
        run_phases(trainer, plan, held_out, store, world)
        # Where patience ended it, the newest model has got no better for a while.
        best = find_best(out) if recipe.train.patience else None
        if best is None:
            figures = trainer.figures or trainer.evaluate(model)[0]
        else:
            figures = read_held_out(out, step_of(best))
        if world.is_first:
            publish(out, best)
            write_pretraining_report(out)
        return Pretrained(
            model=out / MODEL,
            counters=trainer.counters,
            held_out=figures,
            unigram=unigram,
            guessing=held_out[-1].guess(store),
        )


def evaluate_start(recipe: PretrainRecipe) -> dict[str, float]:
    """What a run would begin with: the figures of its model on held-out text, nothing trained."""
    assert recipe.store is not None
    store, data = open_store(recipe.store), data_of(recipe)
    with open_world(recipe.train.device) as world:
        model, _ = make_model(recipe, store, None)
        return held_out_of(recipe, data, store, world)(model.to(world.device))[0]


def run_phases(
    trainer: Trainer[Bert],
    plan: Plan,
    held_out: Sequence[HeldOut],
    store: Store,
    world: World,
) -> None:
    """One phase after the other; each is judged at its own length, which it has learned."""
    for number in range(trainer.counters.phase, len(plan.phases)):
        phase, trainer.evaluate = plan.phases[number], held_out[number]
        if trainer.progress < phase.until:
            first = plan.first_step(number, trainer.counters.ended)
            with Loader(
                store,
                phase.data,
                rank=world.rank,
                world_size=world.size,
                start_step=first + trainer.counters.phase_step,
                end_step=None if phase.num_steps is None else first + phase.num_steps,
            ) as steps:
                trainer.run(steps, until=phase.until)
        if phase.until < 1:
            trainer.next_phase()


def publish(out: Path, best: Path | None) -> None:
    """The newest checkpoint's model becomes the model of the run; or that of the best."""
    checkpoint = find_checkpoint(out) if best is None else verify(best)
    assert checkpoint is not None
    copy_model(checkpoint.model, out / MODEL)


# --- what a run begins with ---


def check_new(recipe: PretrainRecipe) -> None:
    """Refuses a folder in which a run has begun."""
    if recipe.out is not None and list_checkpoints(recipe.out):
        raise UserError(f"{recipe.out} holds a run; go on with it, or take another --out")


def check_folder(out: Path, start: Path | None) -> None:
    """What a run does not go on with is somebody's work, and is not written over."""
    for name, kind in {MANIFEST: "a store", CONFIG: "a model directory"}.items():
        if (out / name).exists():
            raise UserError(f"{out} is {kind}, no folder for a run; take another --out")
    model = out / MODEL
    if start is not None and start.resolve() == model.resolve():
        raise UserError(f"the run would write over {start}, from which it starts: another --out")
    if model.exists():
        check_replaceable(model)
    if list_checkpoints(out):
        return
    if model.exists():
        raise UserError(
            f"{out} holds a model, and no checkpoint of a pre-training to go on from; take another "
            "--out"
        )
    if (out / RECORD).exists() and "objective" not in read_json(out / RECORD).get("settings", {}):
        raise UserError(f"{out} holds something else than a pre-training; take another --out")


def settings_of(recipe: PretrainRecipe, config: ModelConfig, store: Store) -> dict[str, Any]:
    """What a checkpoint remembers, as JSON can hold it; the store by what is in it."""
    values = asdict(replace(recipe, model=None)) | {"model": asdict(config)}
    paths = {name: str(values[name]) for name in ("store", "out", "start") if values[name]}
    return values | paths | {"store_digest": store.manifest.digest}


def make_model(
    recipe: PretrainRecipe, store: Store, checkpoint: Checkpoint | None
) -> tuple[Bert, list[str]]:
    """The model to train, and what is to be said of it."""
    generator = torch.Generator().manual_seed(recipe.train.seed)
    if checkpoint is not None:
        model, notes = open_model(checkpoint.model, heads=recipe.heads).model, []
        notes.append(f"goes on from {checkpoint.folder}")
        if recipe.model is not None and recipe.start is None:  # some of it is not in the file
            model.config = replace(recipe.model, vocab_size=store.manifest.vocab_size)
    elif recipe.start is not None:
        model, notes = start_from(find_model(recipe.start), recipe, store, generator)
        check_fit(recipe, model.config)
    else:
        config = replace(shape_of(recipe), vocab_size=store.manifest.vocab_size)
        return Bert(config, recipe.heads, generator=generator), []
    if recipe.model is not None and recipe.start is not None:
        model = with_dropouts(model, recipe.model)
    if recipe.pair is None and model.pooler is not None:
        model.pooler.requires_grad_(False)  # kept for tasks; nothing here trains it
    for parameter in model.parameters():  # mapped from the file, which stays as it is
        parameter.data = parameter.data.clone()
    return model, notes


def shape_of(recipe: PretrainRecipe) -> ModelConfig:
    """Of a model that begins with nothing."""
    if recipe.model is None:
        raise UserError(
            "name a model to start from (--start DIR, or --start embedded), or give the recipe a "
            "[model]"
        )
    return recipe.model


def start_from(
    directory: Path, recipe: PretrainRecipe, store: Store, generator: torch.Generator
) -> tuple[Bert, list[str]]:
    """A trained model to go on with; where `grow` is set, made to fit the store and the phases."""
    if recipe.model is not None:
        check_shape(directory, recipe.model)
    if recipe.grow:
        grown = open_grown(
            directory,
            store.load_tokenizer(),
            heads=recipe.heads,
            max_positions=max(read_config(directory).max_positions, longest_of(recipe)),
            generator=generator,
        )
        model, fresh = grown.model, grown.fresh
        notes = [
            f"starts from {directory}: {grown.num_kept:,} pieces kept, {grown.num_composed:,} made "
            f"of others, {grown.num_random:,} new, {grown.num_left_out:,} left out; "
            f"{grown.num_new_positions:,} positions more"
        ]
    else:
        store.check_tokenizer(Tokenizer.load(directory))
        opened = open_model(directory, heads=recipe.heads, generator=generator)
        model, fresh, notes = opened.model, opened.fresh, [f"starts from {directory}"]
    if fresh:
        notes.append(f"{directory} lacks {', '.join(fresh)}: new, untrained")
    return model, notes


def check_shape(directory: Path, wanted: ModelConfig) -> None:
    """A [model] in the recipe must not contradict the model that is started from.

    Its dropouts are taken, its vocab_size is the store's; init_std is of what is made anew, as the
    started model has it.
    """
    found = read_config(directory)
    free = (*DROPOUTS, "vocab_size", "init_std")
    for name in (one.name for one in fields(ModelConfig) if one.name not in free):
        if getattr(found, name) != getattr(wanted, name):
            raise UserError(
                f"{directory} has {name} = {getattr(found, name)}, the recipe's [model] says "
                f"{getattr(wanted, name)}; remove it there: a started model keeps its shape"
            )


def longest_of(recipe: PretrainRecipe) -> int:
    """Tokens of the longest sequences of all phases."""
    lengths = [phase.max_length for phase in recipe.phases]
    return max(lengths, default=recipe.data.instances.max_length)


def open_log(
    recipe: PretrainRecipe,
    plan: Plan,
    model: Bert,
    world: World,
    show: Show,
    checkpoint: Checkpoint | None,
) -> Log:
    first = plan.phases[0]
    length, share = round(first.header.mean_length), first.data.masking.predicted_share
    flops = train_flops(model.config, length=length, predicted_share=share)
    peak = find_peak(world.device, recipe.train.precision)
    return Log(
        recipe.out or Path(),
        every=recipe.train.log_every,
        show=show,
        resume=checkpoint,
        is_silent=not world.is_first,
        flops_per_token=flops / length,
        peak_flops=peak and peak * world.size,
        tensorboard=recipe.train.tensorboard,
    )


# --- what is learned, and how well ---


def data_of(recipe: PretrainRecipe) -> DataConfig:
    """The data of the recipe; where no masked LM is trained, nothing is hidden or replaced."""
    if "mlm" in recipe.terms:
        return recipe.data
    if "lm" in recipe.terms:
        return replace(recipe.data, masking=replace(recipe.data.masking, unit="next"))
    whole = replace(recipe.data.masking, mask_share=0.0, random_share=0.0, keep_share=1.0)
    return replace(recipe.data, masking=whole)


def objective_of(recipe: PretrainRecipe) -> Callable[[nn.Module, Batch], dict[str, Term]]:
    """The sum of the terms' mean losses."""
    terms = recipe.terms

    def objective(model: nn.Module, batch: Batch) -> dict[str, Term]:
        # All logits at once are slow, on a CPU and on a GPU (benchmarks/train_step.py); but a
        # compiled model makes them best by itself.
        is_projected = recipe.train.compile
        outputs = model(*batch[:5], predicted=batch.predicted, is_projected=is_projected)
        found = {}
        for term, output in zip(terms, outputs, strict=True):
            labels = labels_of(batch, term)
            if term in ("mlm", "lm", "back") and not is_projected:
                bert = cast(Bert, getattr(model, "module", model))  # DDP holds it
                found[term] = linear_cross_entropy(output, *bert.output_layer(HEADS[term]), labels)
            else:
                found[term] = cross_entropy(output, labels)
        return found

    return objective


def labels_of(batch: Batch, term: str) -> Tensor:  # (M,) or (N,)
    if term == "back":
        return batch.previous
    return batch.labels if term in ("mlm", "lm") else batch.pair_labels


def held_out_of(recipe: PretrainRecipe, data: DataConfig, store: Store, world: World) -> HeldOut:
    return HeldOut(
        store,
        data,
        pair=recipe.pair,
        precision=recipe.train.precision,
        world=world,
    )
