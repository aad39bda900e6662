"""Models and their names."""

from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.serve.models import load_models, name_directories
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
