"""Which runs studies need: what is shared, what is kept on the way, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.ablate import run_one, run_studies, silence
from bertie.data.store import Store
from bertie.errors import UserError
from bertie.study_plan import describe_cost, find_starts, is_pretrained, join, settle
from tests.toy_study import found_in, prepare, run_study, write_toy_data, write_toy_study


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_study(tmp_path_factory.mktemp("study"))


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


def test_costs_of_each_unit_are_told_apart(
    file: Path, store: Store, data: Path, tmp_path: Path
) -> None:
    asked = [
        prepare(file, store, data, tmp_path, f"pretrain.train.budget={budget}", tasks=("good",))
        for budget in ("0.02 minutes", "4k tokens")
    ]
    told = list(describe_cost(join([one.plan for one in asked])))
    assert told[1] == "  0.04 minutes, one after the other"
    assert told[2].startswith("  8,000 tokens, about ")
