"""One run of fine-tuning: goes on as if never stopped, tunes what it should, ends when told."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie import learners, tuning
from bertie.checkpoint.model_dir import open_model
from bertie.checkpoint.state import find_checkpoint
from bertie.evaluate import open_task
from bertie.finetune import plan_runs
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.steps import predict
from bertie.text.tokenizer import Tokenizer
from bertie.train.loop import Trainer
from bertie.tuning import in_steps
from tests.train.runs import Died
from tests.tuned import (
    EACH_EPOCH,
    FAST,
    NAMES,
    PLACES,
    TASKS,
    check_same_tuning,
    make_model,
    metrics,
    only_run,
    recipe,
    tune,
    weights,
    write_classes,
    write_csv,
    write_questions,
    write_task,
)

SHORT = (
    "train.budget=4 epochs",
    "train.log_every=1",
    "train.save_every=2",
    "train.evaluate_every=5",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "a.csv")


# --- stopped and going on ---


def dies_at(step: int) -> Any:
    def show(line: Mapping[str, Any]) -> None:
        if line.get("step") == step and "held_out" not in line:
            raise Died

    return show


@pytest.mark.parametrize("task", TASKS)
def test_killed_and_started_again_is_never_stopped(task: str, model: Path, tmp_path: Path) -> None:
    data = write_task(task, tmp_path)
    paths = {"model": model, "train": data, "dev": data}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    made = tune(task, *SHORT, "tune.seeds=2", **paths, out=whole)
    last = metrics(only_seed(whole, 0))[-1]["step"]
    for step in (1, 3, last):  # before the first checkpoint, between two, and right at the end
        with pytest.raises(Died):
            tune(task, *SHORT, "tune.seeds=2", **paths, out=broken, show=dies_at(step))
    assert find_checkpoint(only_run(broken)).counters.step < last
    again = tune(task, *SHORT, "tune.seeds=2", **paths, out=broken)
    check_same_tuning(whole, broken)
    assert [run.scores for run in again.results.runs] == [r.scores for r in made.results.runs]


def only_seed(out: Path, seed: int) -> Path:
    (run,) = (out / "runs").glob(f"*-seed-{seed}")
    return run


@pytest.mark.parametrize("place", ["find_best", "write_json"])
def test_killed_while_it_finishes_is_never_stopped(
    place: str, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"model": model, "train": data, "dev": data}
    tune("classify", *SHORT, **paths, out=tmp_path / "whole")

    def die(*arguments: object, **named: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(tuning, place, die)
        with pytest.raises(Died):
            tune("classify", *SHORT, **paths, out=tmp_path / "broken")
    tune("classify", *SHORT, **paths, out=tmp_path / "broken")
    check_same_tuning(tmp_path / "whole", tmp_path / "broken")


LONG = (*FAST, "train.budget=30 epochs", "train.save_every=3")


@pytest.fixture(scope="module")
def long_run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("long")
    data = write_classes(folder / "a.csv")
    paths = {"model": model, "train": data, "dev": data, "out": folder / "whole"}
    tune("classify", *LONG, **paths)
    return paths


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_goes_on_with_the_same_command(
    kind: signal.Signals, long_run: dict[str, Path], tmp_path: Path
) -> None:
    paths = long_run | {"out": tmp_path / "out"}
    command = [sys.executable, "-m", "bertie", "finetune"]
    command += [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    process = subprocess.Popen(
        [*command, *(part for one in LONG for part in ("--set", one))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    wait_for_checkpoint(paths["out"])
    process.send_signal(kind)
    _, said = process.communicate(timeout=60)
    if kind == signal.SIGTERM:
        assert process.returncode == 128 + kind, said
        assert said.splitlines()[-1].startswith("bertie: stopped by SIGTERM; saved in ")
    assert not (paths["out"] / "model").exists()
    tune("classify", *LONG, **paths)
    check_same_tuning(paths["out"], long_run["out"])


def wait_for_checkpoint(out: Path) -> None:
    for _ in range(6000):
        if list(out.glob("runs/*/checkpoints/step-*/state.json")):
            return
        time.sleep(0.01)
    raise AssertionError("the run did not come so far")


def test_a_run_goes_on_in_the_micro_batches_it_began_with(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As dropout is drawn for each of them; the free memory may be another."""
    paths = {"model": model, "train": data, "dev": data, "out": tmp_path / "out"}
    monkeypatch.setattr(learners, "find_micro_tokens", lambda *arguments, **named: 24)
    with pytest.raises(Died):
        tune("classify", *SHORT, **paths, show=dies_at(6))
    monkeypatch.setattr(learners, "find_micro_tokens", lambda *arguments, **named: 4800)
    counts, launch = [], Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        counts.append(len(step.micro_batches))
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    tune("classify", *SHORT, **paths)
    assert max(counts) > 1


# --- what is tuned ---


def test_every_parameter_is_tuned(model: Path, data: Path, tmp_path: Path) -> None:
    made = tune("classify", *SHORT, model=model, train=data, dev=data, out=tmp_path / "out")
    before, after = weights(model), weights(made.model)
    same = {name for name in before.keys() & after.keys() if torch.equal(before[name], after[name])}
    assert not same


@pytest.mark.parametrize("freeze", [1, 2])
def test_frozen_layers_stay_bit_for_bit(
    freeze: int, model: Path, data: Path, tmp_path: Path
) -> None:
    sets = (*SHORT, f"tune.freeze={freeze}")
    made = tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    before, after = weights(model), weights(made.model)
    frozen = ("bert.embeddings", *(f"bert.encoder.layer.{n}." for n in range(freeze)))
    for name in before.keys() & after.keys():
        assert torch.equal(before[name], after[name]) == name.startswith(frozen), name


def test_lower_layers_learn_less_if_so_wished(model: Path, data: Path, tmp_path: Path) -> None:
    """The first step of Adam is as large as the rate, whatever the gradient."""
    sets = ("train.budget=2 steps", "optim.layer_decay=0.1", "optim.decay=0", "optim.warmup=0")
    made = tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    before, after = weights(model), weights(made.model)
    moved = [
        float((before[name] - after[name]).abs().max())
        for name in (
            "bert.embeddings.position_embeddings.weight",
            "bert.encoder.layer.0.output.dense.weight",
            "bert.encoder.layer.1.output.dense.weight",
            "bert.pooler.dense.weight",
        )
    ]
    for lower, upper in pairwise(moved):
        assert upper / lower == pytest.approx(10, rel=0.2)


def test_class_weights_move_the_answer_to_the_rare_class(model: Path, tmp_path: Path) -> None:
    rows = [("the cat", "often")] * 9 + [("the cat", "rare")]  # nothing to tell them apart by
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    shares = {}
    for name, value in {"none": "none", "balanced": "balanced", "given": "{rare=81}"}.items():
        out = tmp_path / name
        sets = ("train.budget=20 epochs", f"task.class_weights={value}", "tune.batch_size=10")
        tune("classify", *sets, model=model, train=data, dev=data, out=out)
        line = (out / "predictions" / "dev.jsonl").read_text(encoding="utf-8").splitlines()[0]
        shares[name] = json.loads(line)["scores"][1]
        task = open_task(out / "model")
        assert isinstance(task, Classify)
        if name == "balanced":
            assert task.class_weights == {"often": 10 / 18, "rare": 5.0}
    assert shares["none"] < 0.25 < shares["balanced"] < 0.75 < shares["given"]


# --- when it ends ---


def test_patience_ends_a_run_and_the_best_stays(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.1, 0.5, 0.3, 0.5, 0.9])

    class Scores(tuning.DevScores):
        def __call__(self, model: Any) -> Any:
            figures, _ = super().__call__(model)
            score = next(values)
            return figures | {"accuracy": score}, score

    monkeypatch.setattr(tuning, "DevScores", Scores)
    out, sets = tmp_path / "out", ("train.budget=9 epochs", EACH_EPOCH, "train.patience=2")
    paths = {"model": model, "train": data, "dev": data, "out": out}
    finish = tuning.finish_run
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "finish_run", lambda *arguments: die())
        with pytest.raises(Died):
            tune("classify", *sets, **paths)
    trained = metrics(only_run(out))
    assert finish is tuning.finish_run
    made = tune("classify", *sets, **paths)  # it was over, and so it does not go on
    assert metrics(only_run(out)) == trained
    assert made.results.runs[0].curve == (0.1, 0.5, 0.3, 0.5)  # 0.9 is never seen


def die() -> None:
    raise Died


def test_an_epoch_is_evaluated_at_its_end_and_so_is_the_last_step(
    model: Path, data: Path, tmp_path: Path
) -> None:
    sets = ("train.budget=2.5 epochs", EACH_EPOCH)  # 12 examples: 3 steps an epoch
    tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    lines = metrics(only_run(tmp_path / "out"))
    assert [line["step"] for line in lines if "held_out" in line] == [3, 6, 8]


def test_a_run_without_any_score_keeps_its_last_model(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classify, "score", lambda *arguments: {"accuracy": math.nan})
    sets = ("train.budget=2 epochs", EACH_EPOCH, "train.patience=5")
    made = tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    assert made.results.is_stuck(made.results.best())
    assert open_model(made.model).model.heads == ("sequence",)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["summary"]["best"] is None


def test_budgets_in_epochs_become_steps() -> None:
    assert in_steps("3 epochs", 7).amount == 21
    assert in_steps("0.01 epochs", 7).amount == 1
    assert in_steps("5 minutes", 7).unit == "minutes"


def test_seeds_differ_in_order_output_layer_and_dropout(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, launch = [], Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        weight = self.model.sequence.classifier.weight.detach().clone()
        begun.append((step.micro_batches[0].ids, weight, torch.tensor(self._seed_of(step.number))))
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    sets = ("train.budget=1 step", "tune.seeds=2")
    tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    for one, two in zip(*begun, strict=True):
        assert not torch.equal(one, two)


def test_runs_have_names_of_their_own() -> None:
    names = [spec.name for spec in plan_runs(recipe("tag", "tune.grid=paper", "tune.seeds=2"))]
    assert len(set(names)) == 36
    assert names[0] == "peak-5e-05-batch-16-2-epochs-seed-0"


@pytest.mark.parametrize("kind", ["labels", "answers"])
def test_the_model_has_the_thresholds_that_suit_dev_best(
    kind: str, model: Path, tmp_path: Path
) -> None:
    if kind == "labels":
        rows = [(f"{name} in {place}", f"{name},{place}") for name in NAMES for place in PLACES]
        data = write_csv(tmp_path / "a.csv", ("text", "labels"), rows)
        sets = ("task.kind=multi-label", "train.budget=6 epochs")
    else:
        data = write_questions(tmp_path / "a.json", unanswerable=True)
        sets = ("train.budget=6 epochs",)
    task_name = "classify" if kind == "labels" else "span"
    made = tune(task_name, *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    task = open_task(made.model)
    assert isinstance(task, Classify | Span)
    examples = task.read(data).examples
    instances = task.encode(examples, Tokenizer.load(made.model))
    outputs = predict(open_model(made.model).model, instances)
    plain = (
        replace(task, thresholds={}) if isinstance(task, Classify) else replace(task, threshold=0)
    )
    assert plain.tune(examples, instances, outputs) == task != plain
    found = task.score(examples, task.decode(examples, instances, outputs))
    assert found == made.results.best().scores


# --- odd sizes ---


@pytest.mark.parametrize("count", [2, 100])
def test_any_number_of_labels(count: int, model: Path, tmp_path: Path) -> None:
    rows = [("the " * (n % 9 + 1), f"label {n}") for n in range(count)]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    sets = ("train.budget=1 epoch",)
    made = tune("classify", *sets, model=model, train=data, dev=data, out=tmp_path / "out")
    assert open_model(made.model).model.num_labels == count
    assert len(made.results.confusion) == count


def test_one_training_example_is_enough(model: Path, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "t.csv", ("text", "label"), [("the cat is good", "good")])
    dev = write_classes(tmp_path / "d.csv")
    sets = ("train.budget=10 epochs", 'task.labels=["good", "bad"]')
    made = tune("classify", *sets, model=model, train=train, dev=dev, out=tmp_path / "out")
    assert made.results.num_train == 1
    assert made.results.best().scores["accuracy"] == made.results.majority


def test_a_number_is_learned(model: Path, tmp_path: Path) -> None:
    rows = [(f"the cat{' is' * (n % 4)}", 10.5 + n % 4) for n in range(16)]
    data = write_csv(tmp_path / "a.csv", ("text", "score"), rows)
    made = tune("classify", model=model, train=data, dev=data, out=tmp_path / "out")
    assert made.results.metric == "pearson" and made.results.best().scores["pearson"] > 0.9
    pairs = np.array(made.results.gold_and_predicted)
    assert abs(pairs[:, 0] - pairs[:, 1]).mean() < 0.5 and made.results.majority is None
    task = json.loads((made.model / "config.json").read_text())
    assert task["problem_type"] == "regression"


def test_a_model_without_a_pooler_gets_one_and_says_so(tmp_path: Path, data: Path) -> None:
    bare = make_model(tmp_path / "bare", heads=("masked_lm",))
    lines: list[Mapping[str, Any]] = []
    sets = ("train.budget=1 step",)
    paths = {"model": bare, "train": data, "dev": data, "out": tmp_path / "out"}
    tune("classify", *sets, **paths, show=lines.append)
    assert {"note": f"{bare} lacks a pooler: new, untrained"} in lines
