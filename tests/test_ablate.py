"""A study of toy runs, end to end: killed and resumed, several at once, none done twice."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.ablate import longest_first, run_one, run_studies, write_report
from bertie.cli import main
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.report.study import read_best
from bertie.study import Pretraining, Tuning
from bertie.study_plan import (
    describe_cost,
    is_tuned,
)
from bertie.train.log import Show
from tests.toy_study import (
    SETS,
    STUDY,
    found_in,
    prepare,
    run_study,
    write_toy_data,
    write_toy_study,
)
from tests.train.runs import Died


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_study(tmp_path_factory.mktemp("study"))


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


def test_a_models_longest_fine_tuning_begins_first(file: Path, store: Store, data: Path) -> None:
    """Bytes times epochs; heads on features have a budget of their own."""
    out = file.parent / "order"
    for epochs, task, place in ((900, "good", 0), (900, "frozen names", 0), (0.001, "good", -1)):
        where = "frozen" if "frozen" in task else f"own_tasks.{task}.finetune"
        planned = prepare(file, store, data, out, f'{where}.train.budget="{epochs} epochs"')
        runs = [run for run in planned.plan.tunings if run.row == "full"]
        ordered = longest_first(runs)
        assert ordered[place].task == task
        assert sorted(map(id, ordered)) == sorted(map(id, runs))


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
    with pytest.raises(UserError, match="minutes of runs at the same time are not equal budgets"):
        run_study(prepared, at_once=2)
    assert not (tmp_path / "out").exists()


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
    other = tmp_path / "runs.toml"
    other.write_text(STUDY, encoding="utf-8")
    for names, told in (
        ((file, "table9"), "no study table9"),
        ((file, file), "have one name"),
        ((other,), "a study is called runs"),
    ):
        words = ["ablate", *names, "--corpus", "nowhere", "--data", "nowhere", "--out", tmp_path]
        words += [word for one in SETS for word in ("--set", one)]
        monkeypatch.setattr("sys.argv", ["bertie", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert told in capsys.readouterr().err
