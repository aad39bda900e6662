"""The shipped recipes: numbers that are known, and each runs, if only at toy scale."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import find_checkpoint
from bertie.config import find_recipe, read_recipe
from bertie.data.steps import TERMS
from bertie.data.store import HELD_OUT, Store
from bertie.finetune import finetune
from bertie.learners import HeadConfig
from bertie.model.config import count_parameters, named_size
from bertie.model.feature_head import Combination
from bertie.pretrain import PretrainRecipe, pretrain
from bertie.train.budget import Budget, Phase
from bertie.train.optim import OptimConfig, rate
from bertie.tuning import FinetuneRecipe
from tests.data.stores import awkward, write_store
from tests.test_config import SHIPPED
from tests.tuned import make_model, write_task

# Made for one text; tested with it.
OF_QUICKSTART = ("quickstart", "quickstart-adapt", "quickstart-packages")
NAMES = [n for n, kind in SHIPPED.items() if kind is PretrainRecipe and n not in OF_QUICKSTART]
ON_FEATURES = ("features", "table-7")  # their runs: test_learners.py and test_table7.py
TUNING = [
    n
    for n, kind in SHIPPED.items()
    if kind is FinetuneRecipe and n not in (*OF_QUICKSTART, *ON_FEATURES)
]
VOCABULARIES = {"chinese-base": 21_128}  # the others: 30,522
# With the heads that the recipe trains. Google's own figures: 4.4, 11.3, 29.1, 41.7, 110.1 million.
PARAMETERS = {
    "tiny-cpu": 4_384_316,  # 384 positions fewer than Google's
    "mini": 11_267_900,
    "study": 11_169_596,  # likewise
    "small": 29_058_876,
    "medium": 41_668_412,
    "embedded-en": 41_668_412,
    "base": 110_106_428,
    "large": 336_226_108,
    "base-one-gpu-day": 109_514_298,  # without pooler and next sentence
    "roberta-style": 109_514_298,
    "albert-base": 11_881_148,
    "chinese-base": 102_882_442,
}


def read(name: str) -> PretrainRecipe:
    return read_recipe(PretrainRecipe, name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_number_of_parameters_is_known(name: str) -> None:
    recipe = read(name)
    assert recipe.model is not None
    config = replace(recipe.model, vocab_size=VOCABULARIES.get(name, 30_522))
    has_pooler = "next_sentence" in recipe.heads
    assert count_parameters(config, recipe.heads, has_pooler=has_pooler) == PARAMETERS[name]


def test_every_recipe_with_a_shape_is_counted() -> None:
    assert {name for name in NAMES if read(name).model is not None} == PARAMETERS.keys()


@pytest.mark.parametrize("name", ["tiny", "mini", "small", "medium", "base", "large"])
def test_a_recipe_named_like_a_size_has_it(name: str) -> None:
    model, size = read("tiny-cpu" if name == "tiny" else name).model, named_size(name)
    assert model is not None
    for part in ("num_layers", "hidden_size", "num_heads", "ffn_size"):
        assert getattr(model, part) == getattr(size, part)


@pytest.mark.parametrize("name", ["base", "large", "chinese-base"])
def test_the_papers_numbers(name: str) -> None:
    """Devlin et al. 2018, sections 3 and A.2; what they leave open is as in Google's code."""
    recipe = read(name)
    model, masking = recipe.model, recipe.data.masking
    assert model is not None
    assert (model.dropout, model.attention_dropout, model.gelu) == (0.1, 0.1, "erf")
    assert (model.max_positions, model.norm_eps, model.init_std) == (512, 1e-12, 0.02)
    assert recipe.objective == "mlm+nsp"
    assert (recipe.data.instances.kind, recipe.data.instances.short_share) == ("nsp", 0.1)
    assert masking.rate == 0.15
    assert (masking.mask_share, masking.random_share, masking.keep_share) == (0.8, 0.1, 0.1)
    assert masking.unit == ("word" if name == "chinese-base" else "token")
    assert recipe.data.loader.batch_size == 256
    assert recipe.phases == (Phase(share=0.9, max_length=128), Phase(share=0.1, max_length=512))
    assert Budget.parse(recipe.train.budget) == Budget(1_000_000, "steps")
    assert recipe.optim == OptimConfig(
        name="bert",
        peak=1e-4,
        beta1=0.9,
        beta2=0.999,
        eps=1e-6,
        decay=0.01,
        max_norm=1.0,
        warmup=0.01,
        schedule="google",
    )


def test_the_papers_rate_warms_up_over_10_000_steps_and_then_falls_from_step_0() -> None:
    optim = read("base").optim
    found = [rate(step / 1_000_000, optim) for step in (0, 5_000, 10_000, 500_000, 1_000_000)]
    assert found == pytest.approx([0.0, 0.5e-4, 0.99e-4, 0.5e-4, 0.0])


def test_robertas_numbers() -> None:
    recipe = read("roberta-style")
    assert recipe.objective == "mlm"
    assert (recipe.data.instances.kind, recipe.data.instances.across_documents) == ("full", True)
    assert (recipe.data.instances.max_length, recipe.data.loader.batch_size) == (512, 8192)
    assert recipe.data.masking.static_copies is None  # drawn anew in each epoch
    optim = recipe.optim
    assert (optim.peak, optim.beta1, optim.beta2, optim.eps) == (6e-4, 0.9, 0.98, 1e-6)
    assert optim.warmup * Budget.parse(recipe.train.budget).amount == pytest.approx(24_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_is_the_command(name: str) -> None:
    first = find_recipe(name).read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert f": bertie pretrain {name} " in first
    assert "--store STORE --out RUN" in first
    assert ("--start MODEL" in first) == (read(name).model is None)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_is_explained_after_it(name: str) -> None:
    for line in find_recipe(name).read_text(encoding="utf-8").splitlines():
        setting, _, comment = line.partition("# ")
        assert comment or "=" not in setting, f"{line!r} has no comment"
        assert len(line) <= 100, line


@pytest.mark.parametrize("name", NAMES)
def test_no_recipe_asks_for_longer_sequences_than_its_model_takes(name: str) -> None:
    recipe = read(name)
    lengths = [phase.max_length for phase in recipe.phases] or [recipe.data.instances.max_length]
    assert recipe.model is None or max(lengths) <= recipe.model.max_positions
    assert not recipe.phases or sum(phase.share for phase in recipe.phases) == pytest.approx(1)


# --- each runs ---


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("recipes") / "store"
    store = write_store(folder, awkward(huge=300))
    write_store(folder / HELD_OUT, [[5, 9, 3, 7], [4, 4, 4], [30, 2, 8, 1], [1]] * 4, seed=1)
    return store


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Path:
    """A model to go on from, as the recipe `base` would leave it."""
    out = tmp_path_factory.mktemp("start")
    toy = read_recipe(PretrainRecipe, "base", shrink("base"))
    return pretrain(replace(toy, store=store.folder, out=out)).model


SHAPE = ("num_layers=1", "hidden_size=12", "num_heads=3", "max_positions=40")


def shrink(name: str) -> list[str]:
    """Assignments that make a recipe small and leave its way: phases, masks, optimizer, ..."""
    recipe = read(name)
    phases = [
        f"{{share={phase.share}, max_length={24 if phase.max_length == 128 else 40}"
        f"{', batch_size=3' if phase.batch_size else ''}}}"
        for phase in recipe.phases
    ]
    return [
        *(f"model.{size}" for size in SHAPE if recipe.model is not None),
        *([f"phases=[{', '.join(phases)}]"] if phases else []),
        "data.instances.max_length=24",
        "data.loader.batch_size=6",
        "data.loader.micro_tokens=160",  # so that some steps have several micro-batches
        "data.loader.num_workers=0",
        # Compiling takes minutes; the batches have the fixed shape they would have.
        f"data.loader.fill={str(recipe.train.compile).lower()}",
        "train.compile=false",
        "train.budget=6 steps",
        "train.device=cpu",
        "train.log_every=1",
        "train.evaluate_every=3",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_through_all_its_phases(
    name: str, store: Store, start: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(PretrainRecipe, name, shrink(name))
    made = pretrain(
        replace(
            recipe,
            store=store.folder,
            out=tmp_path,
            start=start if recipe.model is None else None,
        )
    )
    assert made.counters.step == 6
    assert made.counters.skipped == 0
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.counters.phase == max(0, len(recipe.phases) - 1)
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    trained = [line for line in lines if "rate" in line]
    assert [line["step"] for line in trained] == list(range(1, 7))
    assert all(0 < line["mlm_loss"] < 10 for line in trained)
    assert all(("nsp_loss" in line) == ("nsp" in recipe.terms) for line in trained)
    assert max(line["rate"] for line in trained) <= recipe.optim.peak
    assert {"mask_loss", "kept_loss"} <= made.held_out.keys()
    assert open_model(made.model).model.heads == recipe.heads


def test_every_objective_of_a_recipe_fits_its_instances() -> None:
    for name in NAMES:
        recipe = read(name)
        assert (recipe.pair is None) == (recipe.data.instances.kind not in TERMS)


def test_a_toy_is_what_the_recipe_says_but_for_its_size() -> None:
    for name in NAMES:
        full, toy = read(name), read_recipe(PretrainRecipe, name, shrink(name))
        assert (toy.objective, toy.optim, toy.data.masking) == (
            full.objective,
            full.optim,
            full.data.masking,
        )
        assert toy.train.precision == full.train.precision
        assert [phase.share for phase in toy.phases] == [phase.share for phase in full.phases]


# --- fine-tuning ---

# Devlin et al. 2018, sections 4 and A.3: batch, peak, budget, length.
PAPER = {
    "classify": (32, 3e-5, "3 epochs", 128),
    "tag": (32, 5e-5, "3 epochs", 128),
    "tag-document": (32, 5e-5, "3 epochs", 512),
    "squad": (32, 5e-5, "3 epochs", 384),
    "choice": (16, 2e-5, "3 epochs", 128),
}


@pytest.mark.parametrize("name", TUNING)
def test_the_papers_numbers_of_fine_tuning(name: str) -> None:
    recipe = read_recipe(FinetuneRecipe, name)
    found = (recipe.tune.batch_size, recipe.optim.peak, recipe.train.budget)
    assert (*found, recipe.task["max_length"]) == PAPER[name]
    assert (recipe.optim.warmup, recipe.optim.schedule) == (0.1, "linear")
    assert (recipe.optim.beta2, recipe.optim.eps, recipe.optim.max_norm) == (0.999, 1e-6, 1.0)
    # Off by default: what the paper has not.
    assert (recipe.tune.freeze, recipe.train.patience, recipe.optim.layer_decay) == (0, 0, 1.0)
    assert recipe.task.get("class_weights", "none") == "none" and not recipe.task.get("truncate")


def test_what_a_task_is_without_a_recipe_is_the_recipe() -> None:
    plain, recipe = FinetuneRecipe(), read_recipe(FinetuneRecipe, "classify")
    assert recipe.task == plain.task | {"max_length": 128}
    assert (recipe.data, recipe.tune, recipe.optim, recipe.train) == (
        plain.data,
        plain.tune,
        plain.optim,
        plain.train,
    )


@pytest.mark.parametrize("name", TUNING)
def test_the_first_line_of_a_tuning_recipe_is_its_command(name: str) -> None:
    first = find_recipe(name).read_text(encoding="utf-8").splitlines()[0]
    assert f": bertie finetune {name} --model MODEL --train FILE " in first
    assert first.endswith("--out RUN")


@pytest.mark.parametrize("name", TUNING)
def test_a_tuning_recipe_runs(name: str, tmp_path: Path) -> None:
    sets = shrink_tuning(name)
    recipe = read_recipe(FinetuneRecipe, name, sets)
    data = write_task(str(recipe.task["name"]), tmp_path)
    files = replace(recipe.data, train=data, dev=data)
    model = make_model(tmp_path / "model")
    made = finetune(replace(recipe, model=model, out=tmp_path / "run", data=files))
    (run,) = made.results.runs
    assert run.settings["budget"] == recipe.train.budget and len(run.curve) == 3
    assert run.scores.keys() >= {made.results.metric}


def test_the_papers_numbers_of_features() -> None:
    """Section 5.3: two layers, five restarts, six combinations; 768 is for who has the time."""
    recipe = read_recipe(FinetuneRecipe, "table-7")
    assert recipe.head is not None and recipe.head.combinations == get_args(Combination)
    assert (recipe.head.kind, recipe.head.num_layers, recipe.tune.seeds) == ("bilstm", 2, 5)
    usual = read_recipe(FinetuneRecipe, "features")
    best = HeadConfig()
    assert usual.head == best and usual.optim == recipe.optim
    assert replace(recipe.head, combinations=best.combinations) == best
    commands = [find_recipe(name).read_text("utf-8").splitlines()[0] for name in ON_FEATURES]
    assert "bertie finetune features --train STORE --dev STORE --out RUN" in commands[0]
    assert "bertie table7 MODEL --train FILE --dev FILE --test FILE --out" in commands[1]


def shrink_tuning(name: str) -> list[str]:
    """Assignments that leave all but the size; three epochs of some steps."""
    question = ["task.max_question=16"] if name == "squad" else []
    return ["task.max_length=40", *question, "tune.batch_size=6", "train.device=cpu"]
