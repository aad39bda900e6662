"""Settings: every key is known or refused, every value of its type, errors that name the place."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.config import find_recipe, read_recipe
from bertie.errors import UserError
from bertie.pretrain import PretrainRecipe
from bertie.tuning import FinetuneRecipe
from bertie.vocab import VocabRecipe


@dataclass(frozen=True, kw_only=True)
class Model:
    hidden_size: int = 768
    dropout: float = 0.1
    act: Literal["erf", "tanh"] = "erf"


@dataclass(frozen=True, kw_only=True)
class Run:
    model: Model = field(default_factory=Model)
    name: str = "run"
    out: Path | None = None
    lengths: tuple[int, ...] = (128,)
    weights: dict[str, float] = field(default_factory=dict)
    is_fast: bool = False


def test_defaults_then_recipe_then_sets(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('name = "a"\nlengths = [128, 512]\n[model]\nhidden_size = 64\ndropout = 0\n')
    run = read_recipe(Run, path, ["model.hidden_size=32", "out=x/y", "model.act=tanh"])
    assert run == Run(
        name="a",
        lengths=(128, 512),
        out=Path("x/y"),
        model=Model(hidden_size=32, dropout=0.0, act="tanh"),
    )
    assert isinstance(run.model.dropout, float)


WRONG = {
    "model.hiden_size=1": "did you mean model.hidden_size",
    "nothing=1": "there are: model, name",
    "model.hidden_size=1.5": "model.hidden_size takes a whole number; found 1.5",
    "model.hidden_size=true": "whole number",
    "model.act=relu": "one of erf, tanh; found 'relu'",
    "is_fast=yes": "true or false",
    "lengths=[1, 'a']": r"lengths\[1\] takes a whole number",
    "lengths=5": "a list",
    "model=5": "a table of settings",
    "weights.a=b": "weights.a takes a number",
    "name.x=1": "there are|takes text|no part",
    "name": "name=value",
    "=1": "name=value",
    "a..b=1": "name=value",
    "é.x=1": "quotes around names",
    "x\ny=1": "name=value",
    "out=5": "a path or none",
}


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ('weights."meta.lang"', ["meta.lang"]),
        ("weights.'a=b'", ["a=b"]),
        ('weights . "é \\" x" ', ['é " x']),
        ("weights.0-_a", ["0-_a"]),
    ],
)
def test_a_key_is_one_of_toml(key: str, names: list[str]) -> None:
    assert list(read_recipe(Run, None, [f"{key}=1"]).weights) == names


@pytest.mark.parametrize("assignment", WRONG)
def test_what_is_wrong_is_named(assignment: str) -> None:
    with pytest.raises(UserError, match=WRONG[assignment]):
        read_recipe(Run, None, [assignment])


def test_text_may_look_like_a_whole_number() -> None:
    assert read_recipe(Run, None, ["name=2020"]).name == "2020"
    for value in ("1.5", "true", "[1]"):
        with pytest.raises(UserError, match="name takes text; found"):
            read_recipe(Run, None, [f"name={value}"])


def test_a_part_of_a_plain_value_is_refused() -> None:
    with pytest.raises(UserError, match="name is a value, it has no part x"):
        read_recipe(Run, None, ["name=a", "name.x=1"])


@dataclass(frozen=True, kw_only=True)
class Tuned:
    model: Model = field(default_factory=lambda: Model(hidden_size=9, act="tanh"))
    plain: Model = field(default_factory=Model)
    task: dict[str, Any] = field(default_factory=lambda: {"name": "classify"})


def test_a_table_lies_on_top_of_the_defaults_that_its_field_has() -> None:
    tuned = read_recipe(Tuned, None, ["model.dropout=0.5", "plain.dropout=0.5", "task.size=3"])
    assert tuned.model == Model(hidden_size=9, act="tanh", dropout=0.5)
    assert tuned.plain == Model(dropout=0.5)
    assert tuned.task == {"name": "classify", "size": 3}
    assert read_recipe(Tuned, None, ["task.name=tag", "model.act=erf"]) == Tuned(
        task={"name": "tag"}, model=Model(hidden_size=9)
    )
    with pytest.raises(UserError, match="did you mean"):
        read_recipe(Tuned, None, ["model.hiden_size=1"])


def test_none_takes_a_setting_back() -> None:
    assert read_recipe(Run, None, ["out=x", "out=none"]).out is None


@given(st.text(max_size=30))
def test_any_assignment_is_taken_or_refused_in_words(assignment: str) -> None:
    try:
        assert isinstance(read_recipe(Run, None, [assignment]), Run)
    except UserError as error:
        assert str(error)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("a = = b")
    with pytest.raises(UserError, match=r"broken.toml is not valid TOML: .*line 1"):
        read_recipe(Run, path)


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(UserError, match="tiny-cpu, vocab-cased, vocab-chinese, vocab-english"):
        find_recipe("vocab-klingon")


SHIPPED = {
    "vocab-english": VocabRecipe,
    "vocab-cased": VocabRecipe,
    "vocab-chinese": VocabRecipe,
    "quickstart": PretrainRecipe,
    "quickstart-adapt": PretrainRecipe,
    "quickstart-packages": FinetuneRecipe,
    "tiny-cpu": PretrainRecipe,
    "mini": PretrainRecipe,
    "study": PretrainRecipe,
    "small": PretrainRecipe,
    "medium": PretrainRecipe,
    "base": PretrainRecipe,
    "large": PretrainRecipe,
    "base-one-gpu-day": PretrainRecipe,
    "chinese-base": PretrainRecipe,
    "domain-adapt": PretrainRecipe,
    "embedded-en": PretrainRecipe,
    "roberta-style": PretrainRecipe,
    "albert-base": PretrainRecipe,
    "classify": FinetuneRecipe,
    "tag": FinetuneRecipe,
    "tag-document": FinetuneRecipe,
    "squad": FinetuneRecipe,
    "choice": FinetuneRecipe,
    "features": FinetuneRecipe,
    "table-7": FinetuneRecipe,
}


def test_every_shipped_recipe_is_listed_here() -> None:
    folder = find_recipe("tiny-cpu").parent
    assert {path.stem for path in folder.glob("*.toml")} == SHIPPED.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_valid(name: str) -> None:
    assert isinstance(read_recipe(SHIPPED[name], name), SHIPPED[name])
