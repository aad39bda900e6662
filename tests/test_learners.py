"""Heads on features learn, are killed and go on, and answer alike wherever they are opened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from bertie.config import read_recipe
from bertie.errors import UserError
from bertie.evaluate import evaluate_file
from bertie.features import make_features
from bertie.finetune import Finetuned, finetune
from bertie.learners import HeadConfig
from bertie.tuning import FinetuneRecipe
from tests.tuned import make_model, metrics, read_result, write_classes, write_questions, write_tags

FAST = (
    "train.device=cpu",
    "train.threads=1",
    "train.budget=10 epochs",
    "tune.batch_size=5",
    "head.hidden_size=7",
    "optim.peak=0.02",
)
ALL = (
    'head.combinations=["embeddings", "second-to-last", "last", "weighted-last-4", '
    '"concat-last-4", "weighted-all"]'
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stores")
    model = make_model(folder, num_layers=4)
    files = {
        "tags": ("tag", write_tags(folder / "a.conll", count=24)),
        "more_tags": ("tag", write_tags(folder / "b.conll", count=7)),
        "texts": ("classify", write_classes(folder / "a.csv", count=20)),
    }
    for name, (task, data) in files.items():
        make_features(model, data, folder / name, task={"name": task})
    return {name: folder / name for name in files} | {"model": model}


def tune(*sets: str, show: Any = lambda line: None, **paths: Path) -> Finetuned:
    places = {"out": "out", "train": "data.train", "dev": "data.dev", "model": "model"}
    named = [f"{places[name]}='{path}'" for name, path in paths.items()]
    recipe = read_recipe(FinetuneRecipe, "features", [*FAST, *named, *sets])
    return finetune(recipe, show=show)


@pytest.mark.parametrize("kind", ["bilstm", "linear"])
def test_heads_learn_to_tag(kind: str, stores: dict[str, Path], tmp_path: Path) -> None:
    made = tune(
        f"head.kind={kind}", train=stores["tags"], dev=stores["more_tags"], out=tmp_path / "run"
    )
    assert made.results.best().scores["f1"] > 0.9
    assert made.results.task == "tag" and made.report.is_file()


@pytest.mark.parametrize("kind", ["bilstm", "linear", "mean"])
def test_heads_learn_to_classify(kind: str, stores: dict[str, Path], tmp_path: Path) -> None:
    sets = (f"head.kind={kind}", "train.budget=30 epochs")
    made = tune(*sets, train=stores["texts"], dev=stores["texts"], out=tmp_path / "run")
    assert made.results.best().scores["accuracy"] > 0.8  # [CLS] of a random model


def test_a_run_for_each_combination_and_seed(stores: dict[str, Path], tmp_path: Path) -> None:
    made = tune(
        *(ALL, "tune.seeds=2", "train.budget=1 epochs"),
        *(f"data.test=['{stores['more_tags']}']", "head.kind=linear"),
        train=stores["tags"],
        dev=stores["more_tags"],
        out=tmp_path / "run",
    )
    found = [(run.settings["combination"], run.seed) for run in made.results.runs]
    assert len(set(found)) == len(found) == 12
    for run in (tmp_path / "run" / "runs").iterdir():  # every head stays, and is what it says
        scores = evaluate_file(run / "model", stores["more_tags"])[1].scores
        assert scores == pytest.approx(read_result(run)["scores"])
    (scores,) = made.results.tests.values()
    assert scores == pytest.approx(made.results.best().scores)
    assert (tmp_path / "run" / "predictions" / "more_tags.jsonl").is_file()


def test_the_weights_of_a_sum_move(stores: dict[str, Path], tmp_path: Path) -> None:
    made = tune(
        'head.combinations=["weighted-all"]',
        train=stores["tags"],
        dev=stores["more_tags"],
        out=tmp_path / "run",
    )
    weights = load_file(made.model / "head.safetensors")
    assert weights["mix.logits"].shape == (4,) and weights["mix.logits"].abs().max() > 1e-2
    assert weights["mix.scale"] != 1


class Died(Exception):
    pass


def test_killed_and_gone_on_is_the_same(stores: dict[str, Path], tmp_path: Path) -> None:
    paths = {"train": stores["tags"], "dev": stores["more_tags"]}
    sets = ("train.save_every=7", "train.log_every=1")

    def die(line: Any) -> None:
        if line.get("step") == 24:
            raise Died

    tune(*sets, **paths, out=tmp_path / "whole")
    with pytest.raises(Died):
        tune(*sets, **paths, out=tmp_path / "broken", show=die)
    tune(*sets, **paths, out=tmp_path / "broken")
    one, two = (load_file(tmp_path / n / "model" / "head.safetensors") for n in ("whole", "broken"))
    assert one.keys() == two.keys() and all((one[name] == two[name]).all() for name in one)
    (first,), (second,) = ((tmp_path / n / "runs").iterdir() for n in ("whole", "broken"))
    assert metrics(first) == metrics(second) and read_result(first) == read_result(second)


def test_other_features_are_refused(stores: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    made = tune("train.budget=1 epochs", train=stores["tags"], dev=stores["more_tags"], out=out)
    other = make_model(tmp_path / "other", num_layers=4, max_positions=40)
    data = write_tags(tmp_path / "a.conll")
    stranger = tmp_path / "stranger"
    make_features(other, data, stranger, task={"name": "tag", "max_length": 48 - 8})
    few = tmp_path / "few"
    make_features(stores["model"], data, few, task={"name": "tag"}, layers="0,-1")
    wide = tmp_path / "wide"
    make_features(stores["model"], data, wide, task={"name": "tag", "context": "document"})
    for store, message in (
        (few, "few lacks layer 1, which .*model reads"),
        (wide, "with task.context=document"),
        (tmp_path, "no feature store at"),
        (stranger, "max_length=40|of another model"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate_file(made.model, store)
    with pytest.raises(UserError, match="few lacks layer 1, which concat-last-4 reads"):
        tune(train=few, out=tmp_path / "b")


def test_what_a_head_has_no_use_for_is_named(stores: dict[str, Path], tmp_path: Path) -> None:
    out, train = tmp_path / "run", stores["tags"]
    for sets, paths, message in (
        ((), {"model": stores["model"]}, "trains nothing of the model"),
        (("task.max_length=20",), {}, "only task.metric can be changed"),
        (("task.name=span",), {}, "is of the task tag"),
        (("head.kind=mean",), {}, "not each word; take linear"),
    ):
        with pytest.raises(UserError, match=message):
            tune(*sets, train=train, out=out, **paths)
    data = write_questions(tmp_path / "q.json")
    with pytest.raises(UserError, match=r"q\.json is not a feature store"):
        tune(train=data, out=out)
    recipe = read_recipe(
        FinetuneRecipe,
        None,
        [f"model='{stores['model']}'", f"data.train='{train}'", f"out='{out}'"],
    )
    with pytest.raises(
        UserError, match="is a feature store; train a head on it: bertie finetune f"
    ):
        finetune(recipe)


@pytest.mark.parametrize(
    "values", [{"hidden_size": 0}, {"num_layers": 0}, {"combinations": ()}, {"dropout": 1.0}]
)
def test_settings_of_a_head_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="head"):
        HeadConfig(**values)


def test_the_settings_decide_whether_a_run_goes_on(stores: dict[str, Path], tmp_path: Path) -> None:
    paths = {"train": stores["tags"], "dev": stores["more_tags"], "out": tmp_path / "run"}
    tune("train.budget=1 epochs", **paths)
    with pytest.raises(UserError, match=r"head\.hidden_size = 7, the recipe says 8"):
        tune("train.budget=1 epochs", "head.hidden_size=8", **paths)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["head"]["kind"] == "bilstm"
    assert np.isfinite(record["settings"]["optim"]["peak"])
