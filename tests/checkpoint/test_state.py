"""A checkpoint is whole or not there; the newest few and the best stay; nothing half harms."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.model_dir import open_model, save_weights
from bertie.checkpoint.state import (
    Counters,
    Saving,
    find_best,
    find_checkpoint,
    list_checkpoints,
    remove_drafts,
    save_checkpoint,
)
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from tests.data.stores import PIECES, TOKENIZER
from tests.train.runs import full_disk

CONFIG = ModelConfig(vocab_size=len(PIECES), hidden_size=12, num_layers=1, num_heads=3)


@pytest.fixture(scope="module")
def model() -> Bert:
    return Bert(CONFIG, ("masked_lm",), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def saving(tmp_path: Path) -> Saving:
    TOKENIZER.save(tmp_path / "vocab")
    settings = {"optim": {"peak": 0.1}, "phases": [], "start": None}
    return Saving(
        folder=tmp_path / "run",
        settings=settings,
        write=partial(
            save_weights,
            config=CONFIG,
            heads=("masked_lm",),
            tokenizer_from=tmp_path / "vocab",
        ),
        keep=2,
        kept={"micro_tokens": 512},
    )


def weights_of(model: Bert) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save(saving: Saving, model: Bert, step: int, score: float | None = None) -> Path:
    tensors = {"a.exp_avg": torch.arange(6.0).view(2, 3).t(), "b": torch.full((5,), float(step))}
    log = {"totals": {}, "last": {}}
    return save_checkpoint(
        saving, weights_of(model), tensors, Counters(step=step), score=score, log=log
    )


def steps_of(saving: Saving) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in list_checkpoints(saving.folder)]


def test_what_was_saved_is_found(saving: Saving, model: Bert) -> None:
    assert find_checkpoint(saving.folder) is None
    counters = Counters(
        step=7,
        tokens=99,
        seconds=1.25,
        phase=1,
        phase_step=3,
        ended=(4,),
        skipped=2,
        loss_scale=512.0,
    )
    save_checkpoint(
        saving, weights_of(model), {"m": torch.ones(3)}, counters, score=-2.5, log={"x": 1}
    )
    found = find_checkpoint(saving.folder)
    assert found is not None and found.counters == counters and found.score == -2.5
    assert found.settings == saving.settings
    assert found.kept == {"micro_tokens": 512, "log": {"x": 1}}
    assert torch.equal(found.load_tensors()["m"], torch.ones(3))
    for name, weight in open_model(found.model).model.named_parameters():
        assert torch.equal(weight, dict(model.named_parameters())[name])


def test_tensors_come_back_as_they_were(saving: Saving, model: Bert) -> None:
    save(saving, model, 1)
    tensors = find_checkpoint(saving.folder).load_tensors()
    assert torch.equal(tensors["a.exp_avg"], torch.arange(6.0).view(2, 3).t())  # not contiguous


def test_a_step_saved_again_replaces_the_one_before(saving: Saving, model: Bert) -> None:
    save(saving, model, 3)
    save(saving, model, 3, score=1.0)
    assert find_checkpoint(saving.folder).score == 1.0 and steps_of(saving) == [3]
    assert len(list((saving.folder / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize(
    ("scores", "left"),
    [
        ([None, None, None, None], [3, 4]),
        ([1.0, 2.0, 0.5, 0.7], [2, 3, 4]),
        ([5.0, None, None, None], [1, 3, 4]),
        ([1.0, 1.0, None, None], [2, 3, 4]),  # of equals the newest
        ([float("nan"), 1.0, None, None], [2, 3, 4]),  # a model that diverged is not the best
        ([float("-inf"), None, None, None], [3, 4]),
        ([1.0, 2.0, 3.0, 4.0], [3, 4]),
    ],
)
def test_the_newest_two_and_the_best_stay(
    saving: Saving, model: Bert, scores: list[float | None], left: list[int]
) -> None:
    for step, score in enumerate(scores, 1):
        save(saving, model, step, score)
    assert steps_of(saving) == left


def test_only_one_may_be_kept(saving: Saving, model: Bert) -> None:
    saving = replace(saving, keep=1)
    for step, score in ((1, 2.0), (2, 1.0), (3, None)):
        save(saving, model, step, score)
    assert steps_of(saving) == [1, 3]
    assert find_best(saving.folder) == list_checkpoints(saving.folder)[0]


@pytest.mark.parametrize("name", ["step-00000002-mine", "step-best", "step-7", "step-٠٠٠٠٠٠٠٣"])
def test_what_has_another_name_is_no_checkpoint(saving: Saving, model: Bert, name: str) -> None:
    shutil.copytree(save(saving, model, 1, score=9.0), saving.folder / "checkpoints" / name)
    for step in (2, 3, 4):
        save(saving, model, step)
    assert steps_of(saving) == [1, 3, 4] and find_checkpoint(saving.folder).counters.step == 4
    assert (saving.folder / "checkpoints" / name / "state.json").is_file()


def test_steps_are_sorted_as_numbers(saving: Saving, model: Bert) -> None:
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(saving, model, step, score=1.0)
    assert steps_of(saving) == [99_999_999, 100_000_000]
    assert find_checkpoint(saving.folder).counters.step == 100_000_000
    assert find_best(saving.folder).name == "step-100000000"


def test_without_scores_there_is_no_best(saving: Saving, model: Bert) -> None:
    assert find_best(saving.folder) is None
    save(saving, model, 1)
    assert find_best(saving.folder) is None


@pytest.mark.parametrize("lost", ["state.json", "state.safetensors", "model", "all"])
def test_a_half_deleted_checkpoint_harms_nothing(saving: Saving, model: Bert, lost: str) -> None:
    for step, score in ((1, 1.0), (2, 3.0), (3, 2.0)):
        save(saving, model, step, score)
    half = list_checkpoints(saving.folder)[0]  # the best too: it may have been so
    for path in half.iterdir():
        if lost in (path.name, "all"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert find_checkpoint(saving.folder).counters.step == 3
    for step, score in ((4, 4.0), (5, 0.0)):
        save(saving, model, step, score)
    assert steps_of(saving) == [4, 5] and find_checkpoint(saving.folder).counters.step == 5


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "model/config.json"])
def test_the_newest_that_is_whole_is_found(saving: Saving, model: Bert, name: str) -> None:
    for step in (1, 2):
        save(saving, model, step)
    newest = list_checkpoints(saving.folder)[-1] / name
    newest.write_bytes(newest.read_bytes()[:-9])
    assert find_checkpoint(saving.folder).counters.step == 1
    shutil.rmtree(list_checkpoints(saving.folder)[0])
    with pytest.raises(UserError, match=r"no checkpoint of .*run is whole"):
        find_checkpoint(saving.folder)


@pytest.mark.parametrize(
    "text", ["[]", "3", "{}", '{"hashes": []}', '{"hashes": {}, "counters": 3, "score": "x"}']
)
def test_a_state_of_another_kind_is_a_damaged_one(saving: Saving, model: Bert, text: str) -> None:
    for step in (1, 2):
        save(saving, model, step)
    (list_checkpoints(saving.folder)[-1] / "state.json").write_text(text, encoding="utf-8")
    assert find_checkpoint(saving.folder).counters.step == 1
    save(saving, model, 3)  # which looks at the scores of all
    assert find_checkpoint(saving.folder).counters.step == 3


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_of_a_later_step_costs_no_other(
    saving: Saving, model: Bert, keep: int
) -> None:
    """The run goes on from step 1, and 9 stays where it is until it is written again."""
    saving = replace(saving, keep=keep)
    save(saving, model, 1)
    save(saving, model, 9, score=5.0)
    (list_checkpoints(saving.folder)[-1] / "state.safetensors").write_bytes(b"")
    save(saving, model, 1)
    for step, score in ((2, 1.0), (3, 0.0), (4, None)):
        save(saving, model, step, score)
        assert find_checkpoint(saving.folder).counters.step == step
    assert steps_of(saving) == ([2, 4, 9] if keep == 1 else [2, 3, 4, 9])
    save(saving, model, 9)
    assert find_checkpoint(saving.folder).counters.step == 9


def test_what_a_kill_left_is_removed_and_nothing_else(saving: Saving, model: Bert) -> None:
    folder = save(saving, model, 1)
    left = [
        folder.with_name(".step-00000002.draft-77"),
        folder.with_name(".step-00000001.old-77"),
        saving.folder / ".model.draft-77",
        saving.folder / ".model.old-1",
    ]
    for path in left:
        shutil.copytree(folder, path)
    (saving.folder / "notes.draft-1").mkdir()
    assert find_checkpoint(saving.folder).counters.step == 1 and steps_of(saving) == [1]
    remove_drafts(saving.folder)
    assert not any(path.exists() for path in left)
    assert find_checkpoint(saving.folder) is not None
    assert (saving.folder / "notes.draft-1").is_dir()


@pytest.mark.parametrize("num_bytes", [100, 3_000, 20_000])
def test_on_a_full_disk_the_last_one_stays_whole(
    saving: Saving, model: Bert, num_bytes: int
) -> None:
    with (
        full_disk(num_bytes),
        pytest.raises(UserError, match=r"step 1 could not .*there is none before it"),
    ):
        save(saving, model, 1)
    assert list((saving.folder / "checkpoints").iterdir()) == []
    save(saving, model, 1)
    with (
        full_disk(num_bytes),
        pytest.raises(UserError, match=r"step 2 could not be written.*step-00000001, is whole"),
    ):
        save(saving, model, 2)
    assert [path.name for path in (saving.folder / "checkpoints").iterdir()] == ["step-00000001"]
    assert find_checkpoint(saving.folder).counters.step == 1
    save(saving, model, 2)
    assert find_checkpoint(saving.folder).counters.step == 2


def test_the_state_is_for_people_to_read(saving: Saving, model: Bert) -> None:
    values = json.loads((save(saving, model, 4) / "state.json").read_text(encoding="utf-8"))
    assert values["counters"]["step"] == 4 and values["settings"]["optim"]["peak"] == 0.1
    assert {"state.safetensors", "model/model.safetensors"} <= values["hashes"].keys()
