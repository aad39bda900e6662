"""Models and their names."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import UserError
from bertie.infer.engine import Engine
from bertie.serve.models import load_models, name_directories
from bertie.serve.openai import describe
from bertie.serve.refusals import Refused


def test_a_directory_called_model_goes_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "a=b").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    named = name_directories(["model", "other/sst2", "x=other/model", "../zh.v2/"])
    assert list(named) == ["run", "sst2", "x", "zh.v2"]
    assert named["x"] == Path("other/model")
    assert list(name_directories([".", "x=."])) == ["run", "x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/model", "b/a"], "would both be called a; name one of them: other=b/a"),
        (["a b"], "'a b' cannot be a part of an address; name the model: sentiment=a b"),
        (["=x"], "'' cannot be"),
        (["../中/model"], "'中' cannot be"),
    ],
)
def test_names_must_be_fit_for_an_address_and_differ(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        name_directories(arguments)
    assert message in str(refused.value)


def test_encoders_are_shared_as_soon_as_two_are_equal(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one more than are kept, and no need for all at once."""
    load, loaded = Engine.load, list[Engine]()

    def watch(place: Path, **options: Any) -> Engine:
        assert len({id(engine.model.layers) for engine in loaded}) <= 1
        loaded.append(load(place, **options))
        return loaded[-1]

    monkeypatch.setattr(Engine, "load", watch)
    load_models([f"{name}={models['mood']}" for name in "abc"])
    assert len(loaded) == 3


def test_models_are_told_without_looking_at_the_disk(
    models: dict[str, Path], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(models["mood"], tmp_path / "mood"))
    (served,) = load_models([str(copy)])
    shutil.rmtree(copy)
    assert describe(served)["created"] == served.created > 1e9


def test_what_a_model_cannot_do_another_may(models: dict[str, Path]) -> None:
    opened = load_models([f"{name}={models[name]}" for name in ("mood", "names")])
    assert [one.name for one in opened] == ["mood", "names"]
    assert opened.get_for("names", "tag").about.labels[0] == "O"
    for name, verb, message in (
        ("mood", "tag", "mood cannot tag, only classify, embed, similarity, attention; names can"),
        ("mood", "fill", "; no model here can"),
        ("x", "fill", "no model 'x'; there are: mood, names"),
    ):
        with pytest.raises(Refused) as refused:
            opened.get_for(name, verb)
        assert refused.value.status == 404 and message in refused.value.message
