"""Relatives of BERT, from text to task: each trains, is stopped and goes on, and is fine-tuned."""

from pathlib import Path

import pytest
import torch

import bertie
from bertie.checkpoint.model_dir import open_model
from bertie.data.loader import Loader
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.pretrain import data_of, objective_of
from tests.train.runs import (
    STILL,
    Died,
    check_same_weights,
    metrics,
    recipe,
    run,
    run_until,
)
from tests.tuned import check_same_tuning, make_model, tune, write_task

LEFT = ("objective=lm", "model.attention=left")
RELATIVES = {
    "left-to-right": LEFT,
    "like GPT": (*LEFT, "data.instances.kind=full", "data.instances.framed=false"),
    "like ELMo": ("objective=lm+back", "model.layer=lstm"),
    "like RoBERTa": (
        "objective=mlm",
        "data.instances.kind=full",
        "data.instances.across_documents=true",
    ),
    "ALBERT": (
        "objective=mlm+sop",
        "data.instances.kind=sop",
        "model.embedding_size=8",
        "model.share_layers=true",
    ),
    "waves": ("model.positions=sinusoidal",),
    "product": ("model.combine=product",),
    "static masks": ("data.masking.static_copies=1",),
    "whole words": ("data.masking.unit=word",),
    "single sentences": ("data.instances.kind=sentences",),
}
SWITCHES = {
    "left": {"attention": "left"},
    "lstm": {"layer": "lstm"},
    "albert": {"embedding_size": 10, "share_layers": True},
    "waves": {"positions": "sinusoidal", "combine": "product"},
}


@pytest.mark.parametrize("name", RELATIVES)
def test_a_relative_that_was_stopped_was_never_stopped(
    name: str, store: Store, tmp_path: Path
) -> None:
    settings = recipe(*RELATIVES[name], "train.budget=12 steps")
    run(store, tmp_path / "whole", settings)
    run_until(store, tmp_path / "stopped", settings, 8)
    run(store, tmp_path / "stopped", settings)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "stopped")
    check_same_weights(tmp_path / "whole", tmp_path / "stopped")
    assert (tmp_path / "whole" / "report.html").is_file()


@pytest.mark.parametrize("name", ["left-to-right", "like ELMo", "ALBERT", "waves", "product"])
def test_a_relative_is_trained_in_half_precision(name: str, store: Store, tmp_path: Path) -> None:
    more = ("train.precision=bf16", "train.budget=6 steps")
    made = run(store, tmp_path, recipe(*RELATIVES[name], *more))
    plain = run(store, tmp_path / "plain", recipe(*RELATIVES[name], more[1]))
    for figure, value in plain.held_out.items():
        assert made.held_out[figure] == pytest.approx(value, rel=0.05, abs=0.05)


@pytest.mark.parametrize("name", ["left-to-right", "like GPT", "like ELMo"])
def test_a_language_model_learns(name: str, store: Store, tmp_path: Path) -> None:
    """The next word of this text follows from the one before, and the other way round."""
    more = ("model.hidden_size=24", "optim.peak=0.005", "train.budget=150 steps")
    made = run(store, tmp_path, recipe(*RELATIVES[name], *more, *STILL, "train.save_every=150"))
    losses = [loss for figure, loss in made.held_out.items() if figure.endswith("_loss")]
    assert len(losses) == (2 if name == "like ELMo" else 1)
    assert max(losses) < made.unigram - 1


@pytest.mark.parametrize("fill", ["false", "true"])
@pytest.mark.parametrize("name", ["left-to-right", "like GPT", "like ELMo"])
def test_a_language_model_predicts_every_token_but_the_first(
    name: str, fill: str, store: Store
) -> None:
    settings = recipe(*RELATIVES[name], f"data.loader.fill={fill}")
    with Loader(store, data_of(settings)) as loader:
        step = loader.step(0)
    num_predicted = 0
    for batch in step.micro_batches:
        is_real = batch.labels != -100
        rows = batch.predicted[is_real]
        assert torch.equal(batch.labels[is_real], batch.ids[rows + 1])
        assert torch.equal(batch.previous[is_real], batch.ids[rows])
        assert (batch.previous[~is_real] == -100).all()
        assert (batch.positions[rows + 1] == batch.positions[rows] + 1).all()
        num_predicted += len(rows)
    num_sequences = settings.data.loader.batch_size
    assert num_predicted == step.num_tokens - num_sequences == step.num_targets["lm"]
    assert step.num_targets["back"] == step.num_targets["lm"]


@pytest.mark.parametrize("name", ["left-to-right", "like ELMo"])
def test_split_batches_lose_what_whole_ones_do(name: str, store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe(*RELATIVES[name], "train.budget=2 steps"))
    model = open_model(made.model).model.double()
    losses = []
    for micro_tokens in (64, 100_000):
        settings = recipe(*RELATIVES[name], f"data.loader.micro_tokens={micro_tokens}")
        objective = objective_of(settings)
        with Loader(store, data_of(settings)) as loader:
            parts = [objective(model, batch) for batch in loader.step(0).micro_batches]
        losses.append({term: sum(p[term].total for p in parts).item() for term in parts[0]})
    assert set(losses[0]) == set(settings.terms)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_texts_without_a_frame_are_the_text_alone(store: Store) -> None:
    settings = recipe(*RELATIVES["like GPT"])
    with Loader(store, data_of(settings)) as loader:
        batches = loader.step(0).micro_batches
        assert loader.header().num_tokens == store.manifest.num_tokens
    specials = [loader.steps.assembler.cls_id, loader.steps.assembler.sep_id]
    for batch in batches:
        assert not torch.isin(batch.ids, torch.tensor(specials)).any()
        assert not batch.segments.any()
        assert batch.bounds.diff().max() <= settings.data.instances.max_length


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("objective=lm",), r'the objective lm: .* goes with model.attention = "left"'),
        (("objective=lm", "model.layer=lstm"), r"take lm\+back with an LSTM"),
        (("objective=lm+back", "model.attention=left"), r'goes with model.layer = "lstm"'),
        ((*LEFT, "model.bilstm_layers=1"), r"the objective lm: .* the LSTM on top"),
        (
            ("objective=lm+back", "model.layer=lstm", "model.bilstm_layers=1"),
            r"the objective lm\+back: .* the LSTM on top",
        ),
        (("data.masking.unit=next",), r"unit = next hides nothing, so mlm\+nsp has nothing"),
        (("model.layer=lstm", "train.compile=true"), "train.compile is for Transformers"),
        (("data.instances.framed=false",), 'framed = false goes with kind = "full"'),
        (
            (
                "data.instances.kind=full",
                "data.instances.framed=false",
                "data.instances.across_documents=true",
            ),
            "need a .SEP. between them",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe(*sets)


def test_what_no_model_directory_can_hold_is_refused_before_the_first_step(
    store: Store, tmp_path: Path
) -> None:
    albert = ("model.embedding_size=8", "model.share_layers=true", "objective=nsp")
    with pytest.raises(UserError, match=r"no class of albert with next_sentence alone"):
        run(store, tmp_path, recipe(*albert))
    assert not list(tmp_path.iterdir())


def test_a_started_model_keeps_its_switches(store: Store, tmp_path: Path) -> None:
    first = run(store, tmp_path / "one", recipe(*LEFT, "train.budget=2 steps"))
    start = f"start='{first.model}'"
    with pytest.raises(UserError, match=r"has attention = left, the recipe's \[model\] says both"):
        run(store, tmp_path / "two", recipe(start, "train.budget=2 steps"))
    made = run(store, tmp_path / "two", recipe(*LEFT, start, "train.budget=2 steps"))
    assert open_model(made.model).model.config.attention == "left"


def test_a_language_model_fills_no_masks(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe(*LEFT, "train.budget=2 steps"))
    engine = bertie.load(made.model)
    with pytest.raises(UserError, match="cannot fill masks: it has no masked LM head"):
        engine.fill("[MASK]")


# --- fine-tuning ---


@pytest.mark.parametrize("bilstm_layers", [0, 1])
@pytest.mark.parametrize("task", ["classify", "span"])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_variant_is_fine_tuned(name: str, task: str, bilstm_layers: int, tmp_path: Path) -> None:
    model = make_model(tmp_path, dropout=0.0, heads=("masked_lm",), **SWITCHES[name])
    data = write_task(task, tmp_path)
    peak = 0.02 if name == "lstm" else 0.01
    sets = (f"tune.bilstm_layers={bilstm_layers}", f"optim.peak={peak}")
    made = tune(task, *sets, model=model, out=tmp_path / "run", train=data, dev=data)
    scores = made.results.best().scores
    assert scores["accuracy" if task == "classify" else "f1"] > 0.85
    found = open_model(made.model)
    assert found.model.config.bilstm_layers == bilstm_layers
    assert found.fresh == ()


def test_a_fine_tuning_with_an_lstm_on_top_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    model = make_model(tmp_path, heads=("masked_lm",), attention="left")
    data = write_task("classify", tmp_path)

    def stop(line: dict[str, object]) -> None:
        if line.get("step") == 9:
            raise Died

    sets = ("tune.bilstm_layers=2", "train.budget=5 epochs", "train.evaluate_every=0")
    paths = {"model": model, "train": data, "dev": data}
    tune("classify", *sets, out=tmp_path / "whole", **paths)
    with pytest.raises(Died):
        tune("classify", *sets, out=tmp_path / "stopped", show=stop, **paths)
    tune("classify", *sets, out=tmp_path / "stopped", **paths)
    check_same_tuning(tmp_path / "whole", tmp_path / "stopped")


def test_shared_layers_are_frozen_all_or_none(tmp_path: Path) -> None:
    model = make_model(tmp_path, share_layers=True)
    data = write_task("classify", tmp_path)
    with pytest.raises(UserError, match=r"2 layers of .* are one and the same"):
        tune("classify", "tune.freeze=1", model=model, out=tmp_path / "run", train=data, dev=data)
