"""A study of toy runs, end to end: killed and resumed, several at once, none done twice."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.ablate import run_one, run_studies, silence, write_report
from bertie.cli import main
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.report.study import read_best
from bertie.study import Pretraining, Scale, Tuning, read_study
from bertie.study_plan import (
    PlannedStudy,
    describe_cost,
    find_starts,
    is_pretrained,
    is_tuned,
    join,
    plan_study,
    settle,
)
from bertie.train.log import Show
from tests.train.runs import TINY, write_text_store
from tests.tuned import write_classes, write_questions, write_tags

STUDY = """
title = "A toy"
asks = "Does it run?"
paper = "nobody's"
recipe = "tiny-cpu"
tasks = ["good", "names", "where", "frozen names"]
frozen = { head = { combinations = ["last"], hidden_size = 4 }, train = { budget = "2 epochs" } }

[pretrain.train]
budget = "4k tokens"

[rows.full]
title = "MLM + NSP"
paper = { good = 91.5 }

[rows.left]
title = "left to right"
pretrain.objective = "lm"
pretrain.model.attention = "left"

[rows.top]
title = "left to right + LSTM"
pretrain.objective = "lm"
pretrain.model.attention = "left"
finetune.tune.bilstm_layers = 1

[own_tasks.good]
recipe = "classify"
train = "good.csv"
dev = "good.csv"
metric = "accuracy"
finetune.task.max_length = 32
finetune.train.budget = "2 epochs"

[own_tasks.names]
recipe = "tag"
train = "names.conll"
dev = "names.conll"
metric = "f1"
finetune.task.max_length = 32
finetune.train.budget = "2 epochs"

[own_tasks."frozen names"]
recipe = "tag"
train = "names.conll"
dev = "names.conll"
metric = "f1"
frozen = true
finetune.task.max_length = 32

[own_tasks.where]
recipe = "squad"
train = "where.json"
dev = "where.json"
metric = "f1"
finetune.task = { max_length = 40, stride = 10, max_question = 8 }
finetune.train.budget = "1 epochs"
"""
SETS = [f"pretrain.{one}" for one in TINY if "budget" not in one]


class Died(BaseException):
    """What no part of a run may catch."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_text_store(tmp_path_factory.mktemp("ablate") / "store")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_classes(folder / "good.csv")
    write_tags(folder / "names.conll")
    write_questions(folder / "where.json")
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "toy.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def prepare(
    file: Path, store: Store, data: Path, out: Path, *sets: str, **more: Any
) -> PlannedStudy:
    study = read_study(file, [*SETS, *sets])
    scale = Scale(corpus=store.folder, data=data, out=out, device="cpu", **more)
    return PlannedStudy(study, scale, plan_study(study, scale), out / file.stem)


def run_study(asked: PlannedStudy, **more: Any) -> Path:
    (report,) = run_studies([asked], **more)
    return report


def found_in(report: Path) -> dict[str, Any]:
    """The report as JSON, without what the clock says."""
    values: dict[str, Any] = json.loads(report.with_suffix(".json").read_text(encoding="utf-8"))
    for loss in values["losses"]:
        del loss["seconds"]
    return values


def files_below(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(file: Path, store: Store, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study of two seeds that was never stopped."""
    out = tmp_path_factory.mktemp("whole")
    return run_study(prepare(file, store, data, out, seeds=2), command=["bertie"])


def test_the_report_says_what_the_runs_have_logged(
    whole: Path, file: Path, store: Store, data: Path
) -> None:
    out = whole.parents[1]
    study, _, plan, _ = prepare(file, store, data, out, seeds=2)
    values = found_in(whole)
    assert len(values["scores"]) == 3 * 2 * 4
    assert len(values["losses"]) == 3 * 2
    for run in plan.tunings:
        (score,) = [
            one["value"]
            for one in values["scores"]
            if (one["row"], one["task"], one["seed"]) == (run.row, run.task, run.seed)
        ]
        results = sorted(run.folder.glob("runs/*/result.json"))
        told = [json.loads(path.read_text(encoding="utf-8"))["scores"] for path in results]
        assert score == pytest.approx(max(one[run.metric] for one in told))
    for loss in values["losses"]:
        assert loss["kind"] == ("mask" if loss["row"] == "full" else "lm")
        assert loss["tokens"] >= 4000
    assert len({run.folder for run in plan.pretrainings}) == 4  # of 6: two share theirs
    text = whole.with_suffix(".md").read_text(encoding="utf-8")
    assert "| MLM + NSP: the paper, another budget | – | (91.5) | – | – | – |" in text
    assert re.search(r"\| left to right \| [+-][0-9.]+ ± [0-9.]+ \|", text)
    page = whole.read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "never left the unigram plateau" in page
    for title in (row.title for row in study.rows.values()):
        assert title.replace("&", "&amp;") in page


def test_nothing_is_done_twice(whole: Path, file: Path, store: Store, data: Path) -> None:
    out = whole.parents[1]
    before, report = files_below(out / "runs"), whole.read_bytes()
    prepared = prepare(file, store, data, out, seeds=2)
    assert list(describe_cost(prepared.plan)) == [
        "pre-training: 0 runs to do, 4 done",
        "fine-tuning: 0 runs to do, 22 done",  # of 24: frozen, the LSTM on top is not there
    ]
    assert run_study(prepared, command=["bertie"]) == whole
    assert files_below(out / "runs") == before
    assert whole.read_bytes() == report


def test_a_study_that_was_killed_anywhere_gives_the_same_table(
    whole: Path, file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    notes: list[str] = []

    def dies_at(place: int) -> Any:
        seen = 0

        def show(line: dict[str, Any]) -> None:
            nonlocal seen
            seen += 1
            notes.append(str(line.get("note", "")))
            if seen == place:
                raise Died

        return show

    prepared = prepare(file, store, data, tmp_path, seeds=2)
    for place in (13, 40, 90, 60, 33):
        with pytest.raises(Died):
            run_study(prepared, command=["bertie"], show=dies_at(place))
        assert not (tmp_path / "toy").exists()
    assert any(is_tuned(run) for run in prepared.plan.tunings)  # some of both kinds were done
    report = run_study(prepared, command=["bertie"])
    assert found_in(report) == found_in(whole)
    assert any("goes on from" in note for note in notes)


def test_several_at_once_give_the_same_table(
    whole: Path, file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    prepared = prepare(file, store, data, tmp_path, seeds=1, tasks=("good",))
    report = run_study(prepared, at_once=2)
    alone = found_in(whole)["scores"]
    for score in found_in(report)["scores"]:
        assert score in alone


@pytest.mark.parametrize("at_once", [1, 2])
def test_studies_share_runs_and_each_has_its_report(
    at_once: int, file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(STUDY.replace("A toy", "Another"), encoding="utf-8")
    asked = [
        prepare(one, store, data, tmp_path, tasks=tasks, seeds=2)
        for one, tasks in ((file, ("good",)), (other, ("good", "names")))
    ]
    first, second = run_studies(asked, at_once=at_once)
    assert (first.parent.name, second.parent.name) == ("toy", "other")
    runs = sorted(path.name.partition("-")[0] for path in (tmp_path / "runs").iterdir())
    assert runs == ["finetune"] * 3 * 2 * 2 + ["pretrain"] * 2 * 2
    shared = found_in(first)["scores"]
    assert [one for one in found_in(second)["scores"] if one["task"] == "good"] == shared
    told: list[str] = []
    assert run_studies(asked, show=lambda line: told.append(str(line))) == [first, second]
    assert told == []


def test_points_on_the_way_are_fine_tuned_from_their_checkpoints(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    more = ("points=[0.3, 0.7, 1.0]", "pretrain.train.keep=100", "pretrain.train.save_every=2")
    prepared = prepare(file, store, data, tmp_path, *more, tasks=("good",))
    report = run_study(prepared)
    assert {one["point"] for one in found_in(report)["scores"]} == {0.3, 0.7, 1.0}
    source = prepared.plan.pretrainings[0]
    starts = find_starts(source)
    models = [starts[point].model for point in source.points]
    assert models[0].parent.name < models[1].parent.name
    assert models[2] == source.folder / "model"
    assert "share of 4k tokens" in report.read_text(encoding="utf-8")
    told = {
        one["point"]: one["progress"] for one in found_in(report)["scores"] if one["row"] == "full"
    }
    assert told == {point: start.progress for point, start in starts.items()}
    assert all(point <= progress < point + 0.3 for point, progress in told.items())
    with pytest.raises(UserError, match="kept no checkpoint from 30% to 31% of its budget"):
        find_starts(replace(source, points=(0.3, 0.31)))
    assert is_pretrained(source)
    assert not is_pretrained(replace(source, points=(0.3, 0.31, 1.0)))
    for folder in (source.folder / "checkpoints").iterdir():
        folder.rename(tmp_path / folder.name)
    assert not is_pretrained(source)
    assert is_pretrained(replace(source, points=(1.0,)))
    with pytest.raises(UserError, match="kept no checkpoint from 30% to 70% of its budget"):
        find_starts(source)


KEEPS = ("points=[0.5, 1.0]", "pretrain.train.keep=100", "pretrain.train.save_every=2")


def test_a_run_of_two_studies_keeps_the_models_that_one_of_them_asks_for(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    plain = prepare(file, store, data, tmp_path, tasks=("good",))
    kept = prepare(file, store, data, tmp_path, *KEEPS, tasks=("good",))
    assert kept.plan.pretrainings[0].folder == plain.plan.pretrainings[0].folder
    for runs in ([plain, kept], [kept, plain]):
        first = join([one.plan for one in runs]).to_pretrain[0]
        assert first.points == (0.5, 1.0)
        assert first.recipe.train.keep >= 100
    run_studies([plain, kept._replace(folder=tmp_path / "kept")])
    source = kept.plan.pretrainings[0]
    assert is_pretrained(source)
    assert settle(source) == source


def test_a_run_that_is_done_and_kept_nothing_is_run_again_elsewhere(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    plain = prepare(file, store, data, tmp_path, "pretrain.train.keep=1", tasks=("good",))
    run_study(plain)
    kept = prepare(file, store, data, tmp_path, *KEEPS, tasks=("good",))
    (source, *_), (before, *_) = kept.plan.pretrainings, plain.plan.pretrainings
    assert source.folder.name == f"{before.folder.name}-kept"
    assert source.recipe.out == source.folder
    run_study(kept._replace(folder=tmp_path / "kept"))
    again = prepare(file, store, data, tmp_path, *KEEPS, tasks=("good",))
    assert again.plan.to_pretrain == again.plan.to_tune == []


def test_models_on_the_way_need_not_end_with_the_last(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    """And as many points are not as many checkpoints: what both ask for is kept."""
    plain = prepare(file, store, data, tmp_path, "pretrain.train.keep=1", tasks=("good",))
    sets = ("points=[0.5]", *KEEPS[1:])
    half = prepare(file, store, data, tmp_path, *sets, tasks=("good",))
    for runs in ([plain, half], [half, plain]):
        train = join([one.plan for one in runs]).to_pretrain[0].recipe.train
        assert train.keep > 100 and train.save_every <= 2
    run_study(plain)
    source = half.plan.pretrainings[0]
    assert is_pretrained(replace(source, points=(1.0,)))
    assert not is_pretrained(source)


def test_a_run_that_goes_on_keeps_what_it_was_to_keep(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    kept = prepare(file, store, data, tmp_path, *KEEPS, tasks=("good",))
    source = kept.plan.pretrainings[0]
    stopped = replace(source.recipe.train, budget="2k tokens")
    run_one(replace(source, recipe=replace(source.recipe, train=stopped)), silence, ())
    for path in (source.folder / "model", source.folder / "report.html"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    plain = prepare(file, store, data, tmp_path, "pretrain.train.keep=1", tasks=("good",))
    train = plain.plan.pretrainings[0].recipe.train
    assert train.keep > 100 and train.save_every <= 2


def test_what_would_keep_too_little_again_is_told_at_once(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    sets = ("points=[0.5, 0.51, 1.0]", *KEEPS[1:])
    with pytest.raises(UserError, match="failed"):
        run_study(prepare(file, store, data, tmp_path, *sets, tasks=("good",)))
    with pytest.raises(UserError, match="kept no checkpoint from 50% to 51% of its budget"):
        prepare(file, store, data, tmp_path, *sets, tasks=("good",))


def test_what_two_studies_share_fails_under_the_name_of_each(
    file: Path,
    store: Store,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(STUDY.replace("[rows.left]", "[rows.ahead]"), encoding="utf-8")
    runs = [prepare(one, store, data, tmp_path, tasks=("good",)) for one in (file, other)]
    monkeypatch.setattr("bertie.ablate.run_one", fails_for_left)
    with pytest.raises(UserError, match="1 runs failed"):
        run_studies(runs)
    for one, name in zip(runs, ("left", "ahead"), strict=True):
        made = json.loads((one.folder / "report.json").read_text(encoding="utf-8"))
        assert list(made["failed"]) == [f"{name}, seed 0"]
        assert not [told for told in made["missing"] if told.startswith(name)]
    told = (runs[0].plan.pretrainings[1].folder / "failure.txt").read_text(encoding="utf-8")
    assert "Traceback" in told and "Tried to allocate 2 GiB" in told


def fails_for_left(run: Pretraining | Tuning, show: Show, command: Sequence[str]) -> None:
    if isinstance(run, Pretraining) and run.row in ("left", "ahead"):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
    run_one(run, show, command)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_fails_is_told_and_the_others_are_run(
    at_once: int,
    file: Path,
    store: Store,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(file, store, data, tmp_path, tasks=("good",))
    monkeypatch.setattr("bertie.ablate.run_one", fails_for_left)
    with pytest.raises(UserError, match=r"1 runs failed; .*report.html") as told:
        run_study(prepared, at_once=at_once)
    reason = "left, seed 0: OutOfMemoryError: CUDA out of memory."
    assert reason in str(told.value)
    values = found_in(tmp_path / "toy" / "report.html")
    assert {one["row"] for one in values["scores"]} == {"full"}  # the others start from left's
    assert {one["row"] for one in values["losses"]} == {"full"}
    text = (tmp_path / "toy" / "report.md").read_text(encoding="utf-8")
    assert "left, seed 0: failed, so it is not in the table: OutOfMemoryError" in text


def test_other_data_under_the_same_names_are_other_runs(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    out = tmp_path / "out"
    whole = [prepare(file, store, folder, out, tasks=("good",)) for folder in (data, copy)]
    assert whole[0].plan.tunings[0].folder == whole[1].plan.tunings[0].folder
    with (copy / "good.csv").open("a", encoding="utf-8") as written:
        written.write("one more,yes\n")
    other = prepare(file, store, copy, out, tasks=("good",))
    assert other.plan.pretrainings[0].folder == whole[0].plan.pretrainings[0].folder
    assert other.plan.tunings[0].folder != whole[0].plan.tunings[0].folder


def test_a_score_whose_files_are_spoiled_is_told_as_missing(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    prepared = prepare(file, store, data, tmp_path, tasks=("good",), seeds=2)
    run_study(prepared)
    (prepared.plan.tunings[0].folder / "start.json").write_text("{}", encoding="utf-8")
    made = found_in(write_report(prepared, (), {}))
    assert made["missing"] == ["full, seed 0, good"]
    text = (tmp_path / "toy" / "report.md").read_text(encoding="utf-8")
    assert "(1 of 2 seeds)" in text


def test_minutes_at_the_same_time_are_no_equal_budgets(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    prepared = prepare(file, store, data, tmp_path / "out", budget="0.01 minutes")
    with pytest.raises(UserError, match="minutes of runs at the same time are no equal budgets"):
        run_study(prepared, at_once=2)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_told_before_anything_runs(
    file: Path, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"the task good reads .*good.csv, which is not there"):
        prepare(file, store, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_longer_than_the_model_is_told_before_anything_runs(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"good: task.max_length 50 is more than the 40 positions"):
        prepare(file, store, data, tmp_path, "own_tasks.good.finetune.task.max_length=50")


def test_runs_that_never_happened_are_not_in_the_report(tmp_path: Path) -> None:
    assert read_best(tmp_path, "f1") is None


def test_the_command_line_says_the_cost_and_the_report(
    file: Path,
    store: Store,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["ablate", file, "--corpus", store.folder, "--data", data, "--out", tmp_path]
    words += ["--on", "cpu", "--tasks", "good", "--budget", "2k tokens"]
    words += [word for one in SETS for word in ("--set", one)]
    monkeypatch.setattr("sys.argv", ["bertie", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "pre-training: 2 runs to do, 0 done" in said
    assert re.search(r"4,000 tokens, about [0-9.e+]+ operations", said)
    assert "fine-tuning: 3 runs to do, 0 done" in said
    assert said.rstrip().endswith(str(tmp_path / "toy" / "report.html").replace("\n", ""))
    page = (tmp_path / "toy" / "report.html").read_bytes()
    monkeypatch.setattr("sys.argv", ["bertie", *map(str, words), "--only-report"])
    with pytest.raises(SystemExit):
        main()
    assert "fine-tuning: 0 runs to do, 3 done" in capsys.readouterr().out
    assert (tmp_path / "toy" / "report.html").read_bytes() == page
    assert "--budget '2k tokens'" in (tmp_path / "toy" / "report.html").read_text().replace(
        "&#x27;", "'"
    )


def test_wrong_names_of_studies_are_told_before_anything_else(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for names, told in (((file, "table9"), "no study table9"), ((file, file), "have one name")):
        words = ["ablate", *names, "--corpus", "nowhere", "--data", "nowhere", "--out", tmp_path]
        words += [word for one in SETS for word in ("--set", one)]
        monkeypatch.setattr("sys.argv", ["bertie", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert told in capsys.readouterr().err
