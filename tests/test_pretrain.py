"""A whole run: ends where the budget says, goes on as if never stopped, says what it does."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bertie import plan as planning
from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import find_best, find_checkpoint, list_checkpoints, step_of
from bertie.cli import app
from bertie.data.loader import Loader
from bertie.data.locks import held
from bertie.data.store import HELD_OUT, Store, open_store
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.pretrain import (
    HARMLESS,
    PretrainRecipe,
    check_new,
    objective_of,
    pretrain,
)
from bertie.train.distributed import World
from bertie.train.evaluate import evaluate_pretraining
from bertie.train.loop import Trainer
from bertie.train.optim import rate
from bertie.train.record import find_common_checkpoint, flatten
from tests.data.stores import FIRST, TOKENIZER, write_store
from tests.kernels.closeness import check_close
from tests.train.runs import (
    TINY,
    check_same_weights,
    full_disk,
    metrics,
    recipe,
    run,
    run_until,
    write_counting,
    write_text_store,
)

MASK = TOKENIZER.id("[MASK]")
PHASES = (
    "phases=[{share = 0.6, max_length = 16}, {share = 0.4, max_length = 32, batch_size = 5}]",
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The steps that were taken."""
    seen, launch = [], Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        seen.append(step)
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    return seen


def check_same_run(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    check_same_weights(one, other)


# --- phases ---


def test_each_phase_has_its_length_and_batch(
    store: Store, tmp_path: Path, taken: list[Any]
) -> None:
    made = run(store, tmp_path, recipe(*PHASES))
    longest = [max(int(b.bounds.diff().max()) for b in step.micro_batches) for step in taken]
    sizes = [sum(len(b.pair_labels) for b in step.micro_batches) for step in taken]
    assert max(longest[:12]) <= 16 < min(longest[12:]) and max(longest[12:]) <= 32
    assert sizes == [12] * 12 + [5] * 8
    assert [step.number for step in taken] == [*range(12), *range(8)]
    assert (made.counters.phase, made.counters.phase_step, made.counters.step) == (1, 8, 20)


@pytest.mark.parametrize(
    "sets",
    [
        ("train.budget=1 epoch",),
        ("train.budget=1 epoch", "data.masking.static_copies=1"),
        ("train.budget=9k tokens",),
    ],
)
def test_phases_of_one_length_are_one_walk(
    store: Store, tmp_path: Path, taken: list[Any], sets: tuple[str, ...]
) -> None:
    """Stopped or not."""
    split = "phases=[{share = 0.5, max_length = 32}, {share = 0.5, max_length = 32}]"
    run(store, tmp_path / "alone", recipe(*sets))
    alone = taken.copy()
    taken.clear()
    made = run(store, tmp_path / "two", recipe(*sets, split))
    assert abs(len(taken) - len(alone)) <= 1  # each phase has whole steps
    for one, other in zip(taken, alone, strict=False):
        assert one.number == other.number
        assert torch.equal(one.micro_batches[0].ids, other.micro_batches[0].ids)
    half = made.counters.ended[0]
    assert made.counters.phase == 1 and 0 < half < len(taken) - 3
    for step in (half, half + 2):
        run_until(store, tmp_path / "stopped", recipe(*sets, split, "train.save_every=1"), step)
    run(store, tmp_path / "stopped", recipe(*sets, split))
    check_same_run(tmp_path / "stopped", tmp_path / "two")


@pytest.fixture(scope="module")
def never_stopped(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("never") / "run"
    run(store, out, recipe(*PHASES))
    return out


@pytest.mark.parametrize(
    ("died_at", "saved"), [(4, None), (5, 4), (12, 8), (13, 12), (16, 12), (19, 16), (20, 16)]
)
def test_stopped_anywhere_in_phases_is_never_stopped(
    store: Store, tmp_path: Path, never_stopped: Path, died_at: int, saved: int | None
) -> None:
    """12 is where the second phase begins; 8 and 16 lie within."""
    settings = recipe(*PHASES, "train.save_every=4")
    run_until(store, tmp_path, settings, died_at)
    found = find_checkpoint(tmp_path)
    assert (None if found is None else found.counters.step) == saved
    run(store, tmp_path, settings)
    check_same_run(tmp_path, never_stopped)


def test_the_end_of_a_phase_is_saved_though_not_due(store: Store, tmp_path: Path) -> None:
    run_until(store, tmp_path, recipe(*PHASES, "train.save_every=100"), 15)
    assert find_checkpoint(tmp_path).counters.step == 12


# --- budgets ---


def test_tokens_end_a_run_and_it_resumes_bit_for_bit(store: Store, tmp_path: Path) -> None:
    settings = recipe("train.budget=5k tokens", *PHASES)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    made = run(store, whole, settings)
    lines = [line for line in metrics(whole) if "rate" in line]
    assert lines[-1]["tokens"] >= 5000 > lines[-2]["tokens"]
    assert made.counters.tokens == lines[-1]["tokens"]
    before = [0, *(line["tokens"] for line in lines)]  # a rate is that of the tokens before it
    for line, tokens in zip(lines, before, strict=False):
        assert line["rate"] == pytest.approx(rate(tokens / 5000, settings.optim))
    for step in (4, len(lines) - 1):
        run_until(store, stopped, settings, step)
    run(store, stopped, settings)
    check_same_run(stopped, whole)


def test_an_epoch_is_every_instance_once(store: Store, tmp_path: Path, taken: list[Any]) -> None:
    with Loader(store, recipe().data) as loader:
        num_instances = loader.header().num_instances
    made = run(store, tmp_path, recipe("train.budget=1 epoch", "data.loader.batch_size=7"))
    assert made.counters.step == round(num_instances / 7)
    assert {step.epoch for step in taken[:-1]} == {0}


def test_steps_end_a_run(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe("train.budget=3 steps"))
    assert made.counters.step == 3 and metrics(tmp_path)[-2]["progress"] == 1


# --- objectives ---


@pytest.mark.parametrize(
    ("objective", "kind", "terms", "heads"),
    [
        ("mlm+nsp", "nsp", {"mlm", "nsp"}, ("masked_lm", "next_sentence")),
        ("mlm+nsp", "sentences", {"mlm", "nsp"}, ("masked_lm", "next_sentence")),
        ("mlm+sop", "sop", {"mlm", "sop"}, ("masked_lm", "next_sentence")),
        ("mlm", "nsp", {"mlm"}, ("masked_lm",)),
        ("mlm", "full", {"mlm"}, ("masked_lm",)),
        ("nsp", "nsp", {"nsp"}, ("next_sentence",)),
    ],
)
def test_an_objective_trains_its_terms_and_builds_its_heads(
    store: Store, tmp_path: Path, objective: str, kind: str, terms: set[str], heads: tuple[str, ...]
) -> None:
    settings = recipe(f"objective={objective}", f"data.instances.kind={kind}")
    run_until(store, tmp_path, settings, 8)
    made = run(store, tmp_path, settings)  # and goes on with the same heads
    assert open_model(made.model).model.heads == heads
    line = metrics(tmp_path)[0]
    assert {name.removesuffix("_loss") for name in line if name.endswith("_loss")} == terms
    kinds = {name.rpartition("_")[0] for name in made.held_out}
    masked = {"mask", "random", "kept", "mlm"} if "mlm" in terms else set()
    assert kinds == masked | (terms - {"mlm"})
    headline = "mask_loss" if "mlm" in terms else f"{objective}_loss"
    assert find_checkpoint(tmp_path).score == -made.held_out[headline]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_losses_are_the_same_with_and_without_all_logits(store: Store, device: str) -> None:
    """Only a compiled model makes them all; losses and gradients are equal."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    place = torch.device(device)
    settings = replace(recipe(), store=store.folder)
    with Loader(store, settings.data) as loader:
        batch = loader.step(0).micro_batches[0].to(place)
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    config = replace(settings.model, vocab_size=store.manifest.vocab_size, **still)
    model = Bert(config, settings.heads, generator=torch.Generator().manual_seed(0)).to(place)
    found = []
    for is_compiled in (False, True):
        train = replace(settings.train, compile=is_compiled)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            terms = objective_of(replace(settings, train=train))(model, batch)
        sum(term.total for term in terms.values()).backward()
        losses = [term.total.detach() for term in terms.values()]
        found.append([*losses, *(p.grad.clone() for p in model.parameters())])
        model.zero_grad()
    if device == "cpu":
        torch.testing.assert_close(*found)
    else:
        check_close(*found, torch.bfloat16)


def test_without_a_masked_lm_nothing_is_masked(
    store: Store, tmp_path: Path, taken: list[Any]
) -> None:
    run(store, tmp_path, recipe("objective=nsp", "train.budget=3 steps"))
    for batch in (batch for step in taken for batch in step.micro_batches):
        assert torch.equal(batch.ids[batch.predicted], batch.labels)
        assert not (batch.ids == MASK).any()


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (("data.instances.kind=full",), r"mlm\+nsp needs .*kind = nsp or sentences; found full"),
        (("data.instances.kind=sop",), "found sop"),
        (("objective=mlm+sop",), r"kind = sop; found nsp"),
        (("objective=nsp", "data.instances.kind=full"), "found full"),
        (("objective=lm",), "objective"),
        (("grow=true",), "grow goes with start"),
    ],
)
def test_objectives_that_do_not_fit_are_refused(sets: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        recipe(*sets)


def test_a_run_needs_text_and_a_place() -> None:
    with pytest.raises(UserError, match="--store STORE --out RUN"):
        pretrain(recipe())


# --- held-out text ---


def test_held_out_figures_are_those_of_the_held_out_store(store: Store, tmp_path: Path) -> None:
    settings = recipe("train.evaluate_every=8", "data.loader.batch_size=6")
    made = run(store, tmp_path, settings)
    lines = [line for line in metrics(tmp_path) if "held_out" in line]
    assert [line["step"] for line in lines] == [8, 16, 20]
    assert lines[-1]["held_out"] == made.held_out
    masking = replace(settings.data.masking, static_copies=1)
    with Loader(
        open_store(store.folder / HELD_OUT), replace(settings.data, masking=masking)
    ) as all_:
        number = all_.header().num_instances // 6
        batches = [batch for n in range(number) for batch in all_.step(n).micro_batches]
    assert sum(len(batch.pair_labels) for batch in batches) >= 0.8 * all_.header().num_instances
    model = open_model(made.model).model
    figures = evaluate_pretraining(model, batches, mask_id=MASK, pair="nsp", world=World())
    assert figures == pytest.approx(made.held_out, rel=1e-6)


def test_the_best_by_held_out_text_stays(store: Store, tmp_path: Path) -> None:
    run(store, tmp_path, recipe("train.evaluate_every=2", "train.keep=1", "optim.peak=0.5"))
    scores = {
        line["step"]: -line["held_out"]["mask_loss"]
        for line in metrics(tmp_path)
        if "held_out" in line
    }
    best = max(scores, key=lambda step: scores[step])
    assert best != 20  # such a rate spoils it
    assert find_best(tmp_path).name == f"step-{best:08}"
    assert [p.name for p in list_checkpoints(tmp_path)] == [f"step-{best:08}", "step-00000020"]


def test_with_patience_the_best_is_the_model(store: Store, tmp_path: Path) -> None:
    often = ("train.evaluate_every=2", "optim.peak=0.5")
    made = run(store, tmp_path, recipe(*often, "train.patience=2"))
    best = find_best(tmp_path)
    assert step_of(best) < made.counters.step
    check_same_weights(tmp_path, best)
    figures = {n["step"]: n["held_out"] for n in metrics(tmp_path) if "held_out" in n}
    assert made.held_out == figures[step_of(best)] != figures[made.counters.step]
    again = run(store, tmp_path, recipe(*often, "train.patience=2"))
    assert again.held_out == made.held_out
    check_same_weights(tmp_path, best)


def test_nothing_held_out_nothing_said(tmp_path: Path) -> None:
    store = write_text_store(tmp_path / "store", num_held_out=0)
    made = run(store, tmp_path / "run", recipe("train.patience=1"))
    assert made.held_out == {} and find_checkpoint(tmp_path / "run").score is None
    assert all("held_out" not in line for line in metrics(tmp_path / "run"))


@pytest.mark.parametrize(("objective", "kind"), [("mlm+nsp", "nsp"), ("mlm", "full")])
def test_a_single_held_out_document_is_no_obstacle(
    tmp_path: Path, objective: str, kind: str
) -> None:
    store = write_text_store(tmp_path / "store", num_held_out=1)
    settings = recipe(
        "train.budget=2 steps", f"objective={objective}", f"data.instances.kind={kind}"
    )
    made = run(store, tmp_path / "run", settings)
    assert bool(made.held_out) is (objective == "mlm")


# --- going on ---


@pytest.fixture(scope="module")
def finished(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(store, out, recipe("train.budget=4 steps"))
    return out


def test_a_finished_run_stays_as_it_is(store: Store, tmp_path: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    first = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    for _ in range(2):
        made = run(store, tmp_path / "run", recipe("train.budget=4 steps"))
        assert made.held_out == pytest.approx(first["held_out"]) and made.counters.step == 4
        check_same_run(tmp_path / "run", finished)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("optim.peak=0.1", "optim.peak = 0.002, the recipe says 0.1"),
        ("train.seed=5", "train.seed = 0, the recipe says 5"),
        ("train.budget=9 steps", "train.budget = 4 steps, the recipe says 9 steps"),
        ("train.precision=bf16", "train.precision"),
        ("data.loader.batch_size=6", "data.loader.batch_size"),
        ("data.loader.seed=1", "data.loader.seed"),
        ("data.masking.rate=0.3", "data.masking.rate"),
        ("model.num_layers=1", "model.num_layers"),
        ("model.dropout=0.2", "model.dropout"),
        ("objective=mlm", "objective"),
        ("phases=[{share = 1, max_length = 16}]", "phases.0"),
    ],
)
def test_a_setting_that_contradicts_is_refused_by_name(
    store: Store, finished: Path, setting: str, name: str
) -> None:
    with pytest.raises(UserError, match=f"was trained with {name}"):
        run(store, finished, recipe("train.budget=4 steps", setting))


def test_other_text_is_refused(tmp_path: Path, finished: Path) -> None:
    other = write_counting(tmp_path / "other", range(30))
    with pytest.raises(UserError, match="was trained with store_digest"):
        run(other, finished, recipe("train.budget=4 steps"))


def test_what_changes_nothing_may_be_changed(store: Store, tmp_path: Path) -> None:
    changed = (
        "data.loader.micro_tokens=1000",
        "data.loader.prefetch=3",
        "train.recompute=true",
        "train.device=cpu",
        "train.log_every=2",
        "train.evaluate_every=4",
        "train.save_every=3",
        "train.keep=3",
        "train.tensorboard=true",
    )
    run_until(store, tmp_path / "run", recipe(), 8)
    shutil.copytree(store.folder, tmp_path / "elsewhere")
    made = run(open_store(tmp_path / "elsewhere"), tmp_path / "run", recipe(*changed))
    assert made.counters.step == 20
    assert (tmp_path / "run" / "tensorboard").is_dir()


def test_every_harmless_setting_is_a_setting() -> None:
    assert flatten(asdict(PretrainRecipe())).keys() >= HARMLESS


def test_a_run_that_begins_anew_refuses_the_folder_of_another(
    store: Store, tmp_path: Path, finished: Path
) -> None:
    with pytest.raises(UserError, match="holds a run; go on with it, or take another --out"):
        check_new(replace(recipe(), out=finished))
    check_new(replace(recipe(), out=tmp_path))
    check_new(recipe())


def test_no_resume_refuses_on_the_command_line(store: Store, finished: Path) -> None:
    recipe_file = finished.parent / "empty.toml"
    recipe_file.write_text("", encoding="utf-8")
    where = ["--store", str(store.folder), "--out", str(finished)]
    done = CliRunner().invoke(app, ["pretrain", str(recipe_file), *where, "--no-resume"])
    assert isinstance(done.exception, UserError) and "holds a run" in str(done.exception)


# --- what is somebody's work ---


def test_a_model_without_its_run_is_not_written_over(
    store: Store, tmp_path: Path, finished: Path
) -> None:
    """As in the folder of a fine-tuning, or where checkpoints were removed."""
    shutil.copytree(finished / "model", tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with pytest.raises(UserError, match="holds a model, and no checkpoint of a pre-training"):
        run(store, tmp_path, recipe("train.budget=1 steps"))
    with pytest.raises(UserError, match=r"would write over .*model, from which it starts"):
        start = replace(recipe("train.budget=1 steps"), model=None, start=tmp_path / "model")
        run(store, tmp_path, start)
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_record_of_something_else_is_not_written_over(store: Store, tmp_path: Path) -> None:
    record, settings = tmp_path / "run.json", recipe("train.budget=1 steps")
    record.write_text('{"settings": {"tune": {}}}', encoding="utf-8")
    with pytest.raises(UserError, match="something else than a pre-training"):
        run(store, tmp_path, settings)
    record.write_text('{"settings": {"objective": "mlm"}}', encoding="utf-8")  # died at once
    assert run(store, tmp_path, settings).counters.step == 1


@pytest.mark.parametrize(
    ("file", "kind"), [("manifest.json", "a store"), ("config.json", "a model directory")]
)
def test_a_store_or_a_model_is_no_folder_for_a_run(
    store: Store, tmp_path: Path, file: str, kind: str
) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UserError, match=f"is {kind}, no folder for a run"):
        run(store, tmp_path, recipe("train.budget=1 steps"))
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_what_somebody_put_beside_the_model_stays(
    store: Store, tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    notes = tmp_path / "run" / "model" / "NOTES.md"
    notes.touch()
    with pytest.raises(UserError, match=r"holds NOTES\.md"):
        run(store, tmp_path / "run", recipe("train.budget=4 steps"))
    assert notes.exists()


@pytest.mark.parametrize(
    "sets",
    [
        ("model.classifier_dropout=0.3", "model.init_std=0.06", "model.gelu=tanh"),
        ("model.norm_eps=1e-5", "model.num_segments=3", "model.attention_dropout=0.0"),
    ],
)
def test_a_model_of_any_settings_goes_on(
    store: Store, tmp_path: Path, sets: tuple[str, ...]
) -> None:
    settings = recipe("train.budget=8 steps", *sets)
    run(store, tmp_path / "whole", settings)
    run_until(store, tmp_path / "stopped", settings, 7)
    run(store, tmp_path / "stopped", settings)
    check_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_ranks_must_see_the_same_folder(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_common_checkpoint(finished, World()).counters.step == 4
    monkeypatch.setattr(World, "least", lambda self, value: min(value, 0))  # another sees nothing
    with pytest.raises(UserError, match=r"rank 0 sees step 4 .* must see the same folder"):
        find_common_checkpoint(finished, World())
    assert find_common_checkpoint(tmp_path, World()) is None


def test_micro_batches_that_were_found_are_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[Any]
) -> None:
    settings = recipe("data.loader.micro_tokens=0")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 0)
    run(store, whole, settings)
    assert find_checkpoint(whole).kept["micro_tokens"] == 64
    assert {len(step.micro_batches) > 3 for step in taken} == {True}
    run_until(store, stopped, settings, 8)
    monkeypatch.setattr(planning, "find_free_bytes", lambda device: 1 << 40)  # much has come free
    run(store, stopped, settings)
    check_same_run(stopped, whole)


def test_a_full_disk_ends_a_run_that_then_goes_on(store: Store, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(store, whole, recipe())

    def show(line: Mapping[str, Any]) -> None:
        if line.get("step") == 12:
            limit.__enter__()

    limit = full_disk(20_000)
    try:
        with pytest.raises(UserError, match=r"step 15 could not be .*step-00000010, is whole"):
            run(store, stopped, recipe(), show=show)
    finally:
        limit.__exit__(None, None, None)
    assert find_checkpoint(stopped).counters.step == 10
    run(store, stopped, recipe())
    check_same_run(stopped, whole)


@pytest.mark.parametrize("objective", ["nsp", "mlm+nsp"])
def test_frequencies_are_told_of_those_who_predict_tokens(
    store: Store, tmp_path: Path, objective: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text("", encoding="utf-8")
    sets = [*TINY, f"objective={objective}", "train.budget=1 steps"]
    words = ["pretrain", str(file), "--store", str(store.folder), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*words, *(w for one in sets for w in ("--set", one))])
    assert done.exit_code == 0 and "held-out text: " in done.output
    assert ("guessing by frequency: " in done.stdout) is (objective != "nsp")
    assert ("guessing by frequency loses" in done.stderr) is (objective != "nsp")


def test_what_a_kill_left_is_cleared_away(store: Store, tmp_path: Path) -> None:
    run_until(store, tmp_path, recipe(), 8)
    newest = list_checkpoints(tmp_path)[-1]
    left = [newest.with_name(".step-00000010.draft-1"), tmp_path / ".model.draft-1"]
    for path in left:
        shutil.copytree(newest, path)
    run(store, tmp_path, recipe())
    assert not any(path.exists() for path in left)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_run_that_another_process_is_at_is_left_alone(store: Store, tmp_path: Path) -> None:
    run_until(store, tmp_path, recipe(), 8)
    newest = list_checkpoints(tmp_path)[-1]
    half_written = newest.with_name(".step-00000010.draft-1")
    shutil.copytree(newest, half_written)
    before = metrics(tmp_path)
    with held(tmp_path), pytest.raises(UserError, match="another process is at work in"):
        run(store, tmp_path, recipe())
    assert half_written.exists() and metrics(tmp_path) == before
    run(store, tmp_path, recipe())  # it is free again


# --- what one sees ---


def test_before_the_start_it_says_what_it_will_do(store: Store, tmp_path: Path) -> None:
    notes: list[str] = []

    def note(line: Mapping[str, Any]) -> None:
        if "note" in line:
            notes.append(line["note"])

    made = run(store, tmp_path, recipe(*PHASES), show=note)
    said = "\n".join(notes)
    count = sum(p.numel() for p in open_model(made.model).model.parameters())
    assert f"{count:,} parameters" in said and f"{store.manifest.num_tokens:,} tokens" in said
    assert "12 instances" in said and "up to 400 tokens; length 16, then 32" in said
    tokens = made.counters.tokens  # about as many as were promised
    promised = re.search(r"^20 steps, ([\d,]+) tokens, [\d.]+ epochs$", said, re.MULTILINE)
    assert int(promised[1].replace(",", "")) == pytest.approx(tokens, rel=0.05)
    assert "GB of memory" in said
    assert f"loses {made.unigram:.2f} nats" in said
    notes.clear()
    run(store, tmp_path, recipe(*PHASES), show=note)
    assert notes[0].startswith("goes on from") and "100.0% are done" in notes


def test_a_run_that_is_to_learn_pairs_and_has_none_says_so(tmp_path: Path) -> None:
    alone = write_store(tmp_path / "alone", [[5]] * 30, ids=np.arange(150) % 20 + FIRST)
    sop = ("objective=mlm+sop", "data.instances.kind=sop", "train.budget=2 steps")
    notes: list[Any] = []
    run(alone, tmp_path / "out", recipe(*sop), show=notes.append)
    said = [line["note"] for line in notes if "note" in line]
    assert any("warning: 0 of 30 instances are pairs" in line for line in said)
    notes.clear()
    run(alone, tmp_path / "mlm", recipe("objective=mlm", *sop[1:]), show=notes.append)
    assert notes and not any("warning" in line.get("note", "") for line in notes)


def test_budgets_are_said_as_they_were_asked_for(store: Store, tmp_path: Path) -> None:
    for number, (budget, said) in enumerate(
        {"0.001 minutes": "0.001 minutes", "1.5k tokens": "1,500 tokens"}.items()
    ):
        notes: list[Any] = []
        run(store, tmp_path / str(number), recipe(f"train.budget={budget}"), show=notes.append)
        assert {"note": said} in notes


def test_a_run_says_what_it_was(store: Store, tmp_path: Path) -> None:
    made = run(store, tmp_path, recipe("train.budget=2 steps"))
    values = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert values["settings"]["train"]["budget"] == "2 steps" and values["processes"] == 1
    assert values["settings"]["store_digest"] == store.manifest.digest
    assert values["unigram_entropy"] == made.unigram
    assert values["versions"]["torch"] == torch.__version__ and values["gpu"] is None
