"""A whole fine-tuning: each task by the command line, many runs, the best kept, none done twice."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from bertie.checkpoint.json_files import read_json
from bertie.cli import main
from bertie.data.locks import held
from bertie.errors import UserError
from bertie.evaluate import evaluate_file
from bertie.finetune import HARMLESS, finetune
from bertie.train.loop import Trainer
from bertie.train.record import flatten, is_one_of
from bertie.tuning import FinetuneRecipe
from tests.tuned import (
    EACH_EPOCH,
    FAST,
    TASKS,
    check_same_tuning,
    check_same_weights,
    make_model,
    metrics,
    only_run,
    recipe,
    tune,
    weights,
    write_classes,
    write_csv,
    write_task,
)

TWO_STEPS = ("train.budget=2 steps",)


class Said(NamedTuple):
    code: int | str | None
    out: str
    err: str


@pytest.fixture
def bertie(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The command line, in this process."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["bertie", *map(str, arguments)])
        try:
            main()
            code: int | str | None = 0
        except SystemExit as end:
            code = end.code or 0
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the steps that were taken."""
    seen, launch = [], Trainer.launch

    def note(self: Trainer, step: Any) -> None:
        seen.append(step.number)
        launch(self, step)

    monkeypatch.setattr(Trainer, "launch", note)
    return seen


# --- every task ---


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learned_reported_and_evaluated_the_same(
    task: str, model: Path, tmp_path: Path, bertie: Callable[..., Said]
) -> None:
    data, out = write_task(task, tmp_path), tmp_path / "out"
    sets = [part for one in FAST for part in ("--set", one)]
    files = ("--train", data, "--dev", data, "--test", data, "--out", out)
    said = bertie("finetune", "--model", model, "--task", task, *files, *sets)
    assert said.code == 0, said.err
    assert f"{out / 'model'}; {out / 'report.html'}" in said.out
    assert "inputs of up to 48 pieces: the model has no more positions" in said.err
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    scores = report["runs"][0]["scores"]
    assert scores[report["metric"]] == 1  # learned by heart
    assert report["tests"] == {str(data): scores}
    assert report["command"].startswith(f"bertie finetune --model {model} --task {task} --train")
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["command"][1:6] == ["finetune", "--model", str(model), "--task", task]

    said = bertie("evaluate", out / "model", "--data", data, "--out", tmp_path / "answers")
    assert said.code == 0 and "1.0000" in said.out
    _, evaluated, _ = evaluate_file(out / "model", data)
    assert evaluated.scores == scores
    answers = (tmp_path / "answers" / f"{data.stem}.jsonl").read_bytes()
    assert answers == (out / "predictions" / "dev.jsonl").read_bytes()
    assert answers == (out / "predictions" / f"{data.stem}.jsonl").read_bytes()
    names = {"model", "predictions", "report.html", "report.json", "run.json", "runs"}
    assert {path.name for path in out.iterdir()} == names
    assert {path.name for path in only_run(out).iterdir()} == {
        "metrics.jsonl",
        "model",
        "result.json",
    }


def test_a_recipe_may_say_everything(
    model: Path, tmp_path: Path, bertie: Callable[..., Said]
) -> None:
    data = write_classes(tmp_path / "a.csv")
    file = tmp_path / "mine.toml"
    file.write_text(
        f"model = '{model}'\nout = '{tmp_path / 'out'}'\n[task]\nmax_length = 20\n"
        f"[data]\ntrain = '{data}'\n[train]\nbudget = '1 step'\n",
        encoding="utf-8",
    )
    assert bertie("finetune", file).code == 0
    settings = read_json(tmp_path / "out" / "run.json")["settings"]
    assert (settings["task"]["name"], settings["task"]["max_length"]) == ("classify", 20)
    assert settings["optim"]["peak"] == 3e-5  # the rest of its tables are the defaults
    assert settings["train"]["save_every"] == 0


def test_a_folder_with_quotes_in_its_name_is_a_folder(
    model: Path, tmp_path: Path, bertie: Callable[..., Said]
) -> None:
    folder = tmp_path / "it's 5"
    folder.mkdir()
    data = write_classes(folder / 'a "b".csv')
    said = bertie(
        *("finetune", "--model", model, "--train", data, "--test", data, "--out", folder / "o"),
        *("--set", "train.budget=1 step"),
    )
    assert said.code == 0, said.err


# --- many runs ---


PEAKS = ("5e-05", "3e-05", "2e-05")


def test_the_papers_grid_is_18_runs_and_the_best_on_dev_is_kept(
    model: Path, tmp_path: Path
) -> None:
    train = write_csv(tmp_path / "t.csv", ("text", "label"), [("good", "g"), ("bad", "b")])
    dev = write_classes(tmp_path / "d.csv", 6)
    dev.write_text(dev.read_text().replace(",good", ",g").replace(",bad", ",b"))
    out = tmp_path / "out"
    shown: list[Mapping[str, Any]] = []
    paths = {"model": model, "train": train, "dev": dev, "out": out}
    sets = ("tune.grid=paper", EACH_EPOCH, "train.log_every=1")
    made = tune("classify", *sets, **paths, show=shown.append)
    unused = [line["note"] for line in shown if "is not used" in str(line.get("note"))]
    assert [note.split()[2] for note in unused] == ["tune.batch_size", "optim.peak", "train.budget"]
    results = made.results
    assert len(results.runs) == 18
    assert {run.settings["batch_size"] for run in results.runs} == {16, 32}
    assert {run.settings["peak"] for run in results.runs} == {5e-5, 3e-5, 2e-5}
    assert {run.settings["budget"] for run in results.runs} == {f"{n} epochs" for n in (2, 3, 4)}
    assert [len(run.curve) for run in results.runs] == [2, 3, 4] * 6
    best = max(run.scores["accuracy"] for run in results.runs)
    assert results.best().scores["accuracy"] == best
    assert evaluate_file(made.model, dev)[1].scores == results.best().scores
    for size, epochs in itertools.product((16, 32), (2, 3, 4)):  # each learns at its own rate
        folders = [out / f"runs/peak-{p}-batch-{size}-{epochs}-epochs-seed-0" for p in PEAKS]
        rates = [np.array([x["rate"] for x in metrics(f) if "rate" in x]) for f in folders]
        shares = [own / float(peak) for own, peak in zip(rates, PEAKS, strict=True)]
        assert 0.5 < shares[0].max() <= 1
        np.testing.assert_allclose(shares[1:], shares[:1] * 2)
    kept = [path for path in (out / "runs").iterdir() if (path / "model").exists()]
    assert len(kept) == 1  # the others would fill the disk
    check_same_weights(kept[0] / "model", made.model)


def test_seeds_are_runs_of_their_own_and_more_can_be_added(
    model: Path, tmp_path: Path, taken: list[int]
) -> None:
    data, out = write_classes(tmp_path / "a.csv"), tmp_path / "out"
    paths = {"model": model, "train": data, "dev": data, "out": out}
    two = tune("classify", *TWO_STEPS, "tune.seeds=2", **paths)
    assert taken == [0, 1] * 2
    assert [run.seed for run in two.results.runs] == [0, 1]
    assert two.results.runs[0] != two.results.runs[1]
    three = tune("classify", *TWO_STEPS, "tune.seeds=3", **paths)
    assert taken == [0, 1] * 3
    assert three.results.runs[:2] == two.results.runs
    alone = tmp_path / "alone"
    tune("classify", *TWO_STEPS, "train.seed=2", **paths | {"out": alone})
    name = only_run(alone).name
    assert metrics(alone / "runs" / name) == metrics(out / "runs" / name)


def test_a_model_that_was_dropped_is_not_reported_as_if_it_were_there(
    model: Path, tmp_path: Path
) -> None:
    data, out = write_classes(tmp_path / "a.csv"), tmp_path / "out"
    paths = {"model": model, "train": data, "dev": data, "out": out}
    made = tune("classify", *TWO_STEPS, "tune.seeds=2", **paths)
    first, second = made.results.runs
    if made.results.best() is first:
        first, second = second, first
        sets = ("train.seed=1",)
    else:
        sets = ()
    record = out / "run.json"
    record.write_text(record.read_text().replace('"seed": 0', f'"seed": {first.seed}'))
    with pytest.raises(UserError, match="removed when another run was better; to train it again"):
        tune("classify", *TWO_STEPS, *sets, **paths)


def test_runs_at_the_majority_are_flagged(model: Path, tmp_path: Path) -> None:
    rows = [("the cat", "a"), ("the dog", "a"), ("the sea", "a"), ("the film", "b")]
    data, out = write_csv(tmp_path / "a.csv", ("text", "label"), rows), tmp_path / "out"
    sets = ("optim.peak=1e-9", "train.budget=1 step", "tune.seeds=3")
    results = tune("classify", *sets, model=model, train=data, dev=data, out=out).results
    assert results.majority == 0.75
    stuck = [run for run in results.runs if results.is_stuck(run)]
    assert stuck and all(run.scores["accuracy"] <= 0.75 for run in stuck)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"{len(stuck)} of 3 runs did no better than always the same answer" in page


@pytest.fixture
def broken_seeds(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Seeds whose gradients are no numbers."""
    seeds, clip = set[int](), Trainer.clip

    def broken(self: Trainer) -> Any:
        return clip(self) * (torch.nan if self.config.seed in seeds else 1)

    monkeypatch.setattr(Trainer, "clip", broken)
    return seeds


def test_a_run_that_breaks_down_is_flagged_and_the_others_go_on(
    model: Path, tmp_path: Path, broken_seeds: set[int], taken: list[int]
) -> None:
    data, out = write_classes(tmp_path / "a.csv"), tmp_path / "out"
    paths = {"model": model, "train": data, "dev": data, "out": out}
    broken_seeds.add(0)
    shown: list[Mapping[str, Any]] = []
    sets = ("train.budget=8 steps", "tune.seeds=2")
    made = tune("classify", *sets, **paths, show=shown.append)
    assert taken == [*range(5), *range(8)]
    assert [bool(run.scores) for run in made.results.runs] == [False, True]
    assert made.results.best().seed == 1 and made.model.is_dir()
    assert any("seed-0 broke down" in str(line.get("note")) for line in shown)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "1 of 2 runs broke down, the score is not a number (seed 0)" in page
    again = tune("classify", *sets, **paths)  # it would only end the same
    assert len(taken) == 13 and again.results.runs == made.results.runs


def test_when_all_runs_break_down_the_error_says_what_fine_tuning_has(
    model: Path, tmp_path: Path, broken_seeds: set[int], bertie: Callable[..., Said]
) -> None:
    data = write_classes(tmp_path / "a.csv")
    broken_seeds |= {0, 1}
    said = bertie(
        *("finetune", "--model", model, "--train", data, "--dev", data, "--out", tmp_path / "out"),
        *("--seeds", "2", "--set", "train.budget=8 steps", "--set", "train.device=cpu"),
    )
    assert said.code == 2 and "all 2 runs broke down" in said.err
    assert "Lower optim.peak" in said.err and "--start" not in said.err


# --- going on, and not going on ---


def test_what_is_finished_is_not_run_again(model: Path, tmp_path: Path, taken: list[int]) -> None:
    data, out = write_classes(tmp_path / "a.csv"), tmp_path / "out"
    paths = {"model": model, "train": data, "dev": data, "out": out}
    first = tune("classify", *TWO_STEPS, **paths)
    before = weights(first.model)
    again = tune("classify", *TWO_STEPS, **paths)
    assert taken == [0, 1]
    assert again.results.runs == first.results.runs
    assert all((weights(again.model)[name] == weight).all() for name, weight in before.items())


@pytest.mark.parametrize(
    "changed",
    [
        ("optim.peak=1e-4", "optim.peak = 0.005, the recipe says 0.0001"),
        ("tune.freeze=1", "tune.freeze = 0"),
        ("tune.grid=paper", "tune.grid = none"),
        ("train.seed=4", "train.seed = 0"),
        ("train.patience=1", "train.patience = 0"),
        ("train.budget=3 steps", "train.budget = 2 steps"),
        ("task.max_length=20", "task.max_length = 48, the recipe says 20"),
        ("optim.layer_decay=0.9", "optim.layer_decay = 1.0"),
    ],
)
def test_a_changed_setting_is_refused_by_name(
    finished: dict[str, Path], changed: tuple[str, str]
) -> None:
    setting, message = changed
    with pytest.raises(UserError, match=message):
        tune("classify", *TWO_STEPS, setting, **finished)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("finished")
    data = write_classes(folder / "a.csv")
    paths = {"model": model, "train": data, "dev": data, "out": folder / "out"}
    tune("classify", *TWO_STEPS, **paths)
    return paths


def test_other_data_and_another_model_are_refused_though_the_names_are_the_same(
    finished: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    other = write_classes(tmp_path / "a.csv", 10)
    with pytest.raises(UserError, match="train_sha256"):
        tune("classify", *TWO_STEPS, **finished | {"train": other})
    with pytest.raises(UserError, match="dev_sha256"):
        tune("classify", *TWO_STEPS, **finished | {"dev": other})
    grown = make_model(tmp_path / "grown", max_positions=49)
    with pytest.raises(UserError, match=r"model_sha256|task.max_length"):
        tune("classify", *TWO_STEPS, **finished | {"model": grown})


def test_another_tokenizer_and_other_settings_of_a_model_are_refused(
    finished: dict[str, Path], tmp_path: Path
) -> None:
    for name, old, new in (
        ("tokenizer_config.json", '"do_lower_case": true', '"do_lower_case": false'),
        ("config.json", '"gelu"', '"gelu_new"'),
    ):
        changed = tmp_path / name / "model"
        shutil.copytree(finished["model"], changed)
        text = (changed / name).read_text(encoding="utf-8")
        assert old in text
        (changed / name).write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(UserError, match=f"model_sha256.{name}"):
            tune("classify", *TWO_STEPS, **finished | {"model": changed})


def test_a_model_and_data_that_only_moved_are_the_same(
    finished: dict[str, Path], tmp_path: Path, taken: list[int]
) -> None:
    shutil.copytree(finished["model"], tmp_path / "model")
    shutil.copyfile(finished["train"], tmp_path / "b.csv")
    moved = {"model": tmp_path / "model", "train": tmp_path / "b.csv"}
    tune("classify", *TWO_STEPS, "train.log_every=7", **finished | moved)
    assert taken == []


def test_harmless_settings_are_settings() -> None:
    known = flatten(asdict(FinetuneRecipe()))
    assert {name for name in known if is_one_of(name, HARMLESS)} >= HARMLESS - {"data.test"}


def test_the_folder_of_a_pre_training_is_not_written_over(model: Path, tmp_path: Path) -> None:
    data, out = write_classes(tmp_path / "a.csv"), tmp_path / "out"
    shutil.copytree(model, out / "model")
    with pytest.raises(UserError, match="holds something else than a fine-tuning"):
        tune("classify", *TWO_STEPS, model=out / "model", train=data, dev=data, out=out)
    check_same_weights(model, out / "model")
    (out / "run.json").write_text('{"settings": {"store": "s"}}', encoding="utf-8")
    with pytest.raises(UserError, match="holds something else than a fine-tuning"):
        tune("classify", *TWO_STEPS, model=model, train=data, dev=data, out=out)


def test_what_a_kill_left_is_cleared_away(finished: dict[str, Path], model: Path) -> None:
    out = finished["out"]
    run = only_run(out)
    (out / ".model.draft-99").mkdir()
    (out / ".report.html.draft-99").write_text("half", encoding="utf-8")
    (run / "checkpoints" / "step-00000002").mkdir(parents=True)
    tune("classify", *TWO_STEPS, **finished)
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert not (run / "checkpoints").exists()


def test_a_folder_that_another_process_is_at_is_left_alone(finished: dict[str, Path]) -> None:
    out = finished["out"]
    (out / ".model.draft-99").mkdir()
    with held(out), pytest.raises(UserError, match="another process is at work in"):
        tune("classify", *TWO_STEPS, **finished)
    assert (out / ".model.draft-99").exists()
    tune("classify", *TWO_STEPS, **finished)  # it is free again


# --- what is missing or wrong ---


def test_a_fine_tuning_needs_data_and_a_place() -> None:
    with pytest.raises(UserError, match="--train FILE --out DIR"):
        finetune(recipe("classify"))


def test_compiling_is_refused(model: Path) -> None:
    with pytest.raises(UserError, match="wants batches of one shape"):
        recipe("classify", "train.compile=true")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "klassify"], "no task 'klassify'; there are: classify, tag, span, choice"),
        (["--set", "task.lenght=5"], "no setting task.lenght"),
        (["--set", "task.max_length=49"], "more than the 48 positions of"),
        (["--set", "tune.freeze=3"], "tune.freeze is 3, the model has 2 layers"),
        (["--set", "task.metric=bleu"], "there are: accuracy, macro_f1, matthews, f1"),
        (["--set", "tune.seeds=0"], "tune.seeds is at least 1; found 0"),
        (["--train", "nowhere.csv"], "no file nowhere.csv"),
        (["--model", "nowhere"], "no file nowhere/config.json"),
        (["--set", "data.dev_share=1"], "data.dev_share is between 0 and 1"),
        (["--set", "task.columns.text=a"], "no role 'text' of a column; there are: first"),
        (["--set", "task.columns.first=a"], "has no column 'a' for first; there are: text, label"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    arguments: list[str], message: str, model: Path, tmp_path: Path, bertie: Callable[..., Said]
) -> None:
    given = {
        "--model": model,
        "--train": write_classes(tmp_path / "a.csv"),
        "--out": tmp_path / "o",
    }
    given |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    said = bertie("finetune", *(part for pair in given.items() for part in pair))
    assert said.code == 2
    last = said.err.splitlines()[-1]
    assert last.startswith("bertie: ") and message in last
    assert "Traceback" not in said.err and not said.out
    assert not (tmp_path / "o" / "model").exists()


def test_a_mended_mistake_goes_on_in_the_same_folder(
    model: Path, tmp_path: Path, bertie: Callable[..., Said]
) -> None:
    data, test = write_classes(tmp_path / "a.csv"), tmp_path / "test.csv"
    test.write_text("text,label\nthe cat,good\n,good\n", encoding="utf-8")
    command = ["finetune", "--model", model, "--train", data, "--test", test]
    command += ["--out", tmp_path / "o", "--set", "train.budget=1 step"]
    said = bertie(*command)
    assert said.code == 2 and f"{test}, line 3: empty text in the column 'text'" in said.err
    said = bertie(*command, "--skip-bad", "--set", "tune.freeze=9")
    assert said.code == 2 and "tune.freeze is 9, the model has 2 layers" in said.err
    said = bertie(*command, "--skip-bad")
    assert said.code == 0, said.err
    assert f"test 1: left out 1: empty text in the column 'text' ({test}, line 3)" in said.err
    assert "left out 1: empty text" in (tmp_path / "o" / "report.html").read_text(encoding="utf-8")


# --- one task after the other ---


def test_a_fine_tuned_model_starts_the_next_task_with_a_fresh_output_layer(
    model: Path, tmp_path: Path
) -> None:
    data = write_classes(tmp_path / "a.csv")
    first = tune("classify", model=model, train=data, dev=data, out=tmp_path / "first")
    still = ("train.budget=1 step", "optim.peak=1e-12")
    again = tune("classify", *still, model=first.model, train=data, dev=data, out=tmp_path / "b")
    before, after = weights(first.model), weights(again.model)
    head = {name for name in before if name.startswith("classifier")}
    assert head == {"classifier.weight", "classifier.bias"}
    for name, weight in before.items():  # as many labels as before, and yet another layer
        assert (abs(weight - after[name]).max() > 1e-3) == (name in head), name
    tags = write_task("tag", tmp_path)
    made = tune("tag", *still, model=first.model, train=tags, dev=tags, out=tmp_path / "c")
    pooler = "bert.pooler.dense.weight"  # though tags have no use for it
    assert (weights(made.model)[pooler] == before[pooler]).all()


@pytest.mark.multi
@pytest.mark.parametrize("task", ["classify", "span"])
def test_two_processes_are_one(task: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", dropout=0.0)
    data = write_task(task, tmp_path)
    sets = (*FAST, "train.budget=8 steps", "train.log_every=1", "tune.seeds=2")
    tune(task, *sets, model=model, train=data, dev=data, out=tmp_path / "1")
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *many, "-m", "bertie", "finetune", "--task", task]
    command += ["--model", model, "--train", data, "--dev", data, "--out", tmp_path / "2"]
    command += [part for one in sets for part in ("--set", one)]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for run in (tmp_path / "1" / "runs").iterdir():
        other = tmp_path / "2" / "runs" / run.name
        for one, two in zip(metrics(run), metrics(other), strict=True):
            assert one.keys() == two.keys() and one.get("held_out") == two.get("held_out")
            for name in {"task_loss", "norm"} & one.keys():
                assert one[name] == pytest.approx(two[name], rel=1e-5)
            assert one["tokens"] == two["tokens"]


def test_the_same_command_gives_the_same_model(model: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "a.csv")
    for name in ("one", "two"):
        tune("classify", *TWO_STEPS, model=model, train=data, out=tmp_path / name)
    check_same_tuning(tmp_path / "one", tmp_path / "two")
