"""The model for those who name none: every verb takes it, and says what to do where there is none.

Here it is a tiny one, put in place the way anybody can: BERTIE_MODEL.
"""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import bertie
from bertie import embedded
from bertie.checkpoint.importing import import_model
from bertie.cli import app
from bertie.cli.asking import take_model
from bertie.embedded import FOLDER, VARIABLE, find_model, has_embedded
from bertie.errors import UserError
from bertie.serve.models import load_models
from tests.infer.models import SENTENCES, make_directory
from tests.tuned import write_task

TEXT = "Paris is the [MASK] of France."
SMALL = ("--set", "train.budget=2 steps", "--set", "train.device=cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in eight bits, another one, and files."""
    folder = tmp_path_factory.mktemp("embedded")
    made = make_directory(folder / "made")
    import_model(made, folder / "shipped", storage="int8")
    make_directory(folder / "mine", lower_case=False)
    (folder / "lines.txt").write_text("\n".join(SENTENCES) + "\n", "utf-8")
    (folder / "text.txt").write_text("\n\n".join(f"{s}\n{s}" for s in SENTENCES * 9), "utf-8")
    write_task("classify", folder)
    write_task("tag", folder)
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(VARIABLE, str(folder / "shipped"))


def run(*words: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(words), input=stdin)
    if result.exception is not None:
        raise result.exception
    return result.output


# --- which model ---


def test_what_is_named_is_taken_and_else_the_embedded_one(folder: Path) -> None:
    assert find_model("mine/model") == Path("mine/model")
    assert find_model(Path("not/there")) == Path("not/there")
    assert find_model() == find_model("embedded") == folder / "shipped"


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("embedded").mkdir()
    assert find_model("embedded") == Path("embedded")


def test_without_weights_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(embedded, "FOLDER", tmp_path / "english")
    assert not has_embedded()
    for ask in (find_model, bertie.load, lambda: run("fill", TEXT), lambda: run("serve")):
        with pytest.raises(UserError, match=r"without its embedded model; name a model directory"):
            ask()


def test_what_ships_is_a_whole_model_of_forty_megabytes_at_most() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) <= 40_000_000
    for name in ("README.md", "config.json", "vocab.txt", "model.int8.safetensors"):
        assert (FOLDER / name).is_file()


def test_what_ships_knows_some_english() -> None:
    engine = bertie.load(FOLDER, show=False)
    for text, wanted in ((TEXT, "capital"), ("He was born in the [MASK] of 1907.", "summer")):
        assert wanted in [one.piece for one in engine.fill(text, top=10).masks[0]]


def test_the_wheel_takes_its_files_along() -> None:
    settings = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["bertie"]
    name = (FOLDER / "model.int8.safetensors").relative_to(FOLDER.parents[1]).as_posix()
    assert any(fnmatch(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("words", [[], ["a", "b", "c"]])
def test_too_few_and_too_many_words_are_told(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"give a file, and before that a model directory"):
        take_model(words, 1, "a file")


# --- who takes it ---


def test_load(folder: Path) -> None:
    wanted = bertie.load(folder / "shipped", show=False).fill(TEXT)
    assert bertie.load(show=False).fill(TEXT).to_json() == wanted.to_json()


def test_fill_with_it_and_with_another() -> None:
    assert run("fill", TEXT) == run("fill", "shipped", TEXT) == run("fill", "-", stdin=TEXT)
    assert run("fill", TEXT, TEXT) == run("fill", TEXT) * 2
    assert run("fill", "mine/model", TEXT) != run("fill", TEXT)
    with pytest.raises(UserError, match=r"\[MASK\]"):
        run("fill", "mine/model")


def test_embed_and_similar() -> None:
    run("embed", "lines.txt", "--out", "one.npy")
    run("embed", "shipped", "lines.txt", "--out", "two.npy")
    assert np.array_equal(np.load("one.npy"), np.load("two.npy"))
    assert run("similar", *SENTENCES[:2]) == run("similar", "shipped", *SENTENCES[:2])
    query = ("--query", "Paris", "lines.txt")
    assert run("similar", *query) == run("similar", *query[:2], "shipped", query[2])


def test_tokenize_info_and_inspect() -> None:
    assert run("tokenize", TEXT) == run("tokenize", TEXT, "--vocab", "shipped")
    assert "masked_lm" in run("info", "embedded")
    assert "2 layers of 3 heads" in run("inspect", TEXT, "--out", "page.html")


def test_features_table7_and_export() -> None:
    assert "2 layers of 24" in run(
        *("features", "set.conll", "--task", "tag", "--layers", "1,2", "--out", "rows")
    )
    told = run(
        *("table7", "--train", "set.conll", "--out", "seven", "--seeds", "1", *SMALL),
        *("--set", "head.kind=linear", "--set", "task.max_length=40"),
    )
    assert "shipped" in told
    run("export", "--to", "hf", "--out", "plain")
    assert Path("plain", "model.safetensors").is_file()


def test_import_writes_it_plain() -> None:
    run("import", "embedded", "--out", "imported")
    assert Path("imported", "model.safetensors").is_file()


def test_fine_tuning_starts_from_it() -> None:
    for name, words in (("one", ()), ("two", ("--model", "shipped"))):
        run("finetune", *words, "--train", "set.csv", "--out", name, *SMALL)
    one, two = (load_file(f"{name}/model/model.safetensors") for name in ("one", "two"))
    assert all(weight.equal(two[name]) for name, weight in one.items())


def test_pre_training_goes_on_from_it_where_that_is_said() -> None:
    run("prepare", "text.txt", "--vocab", "embedded", "--out", "store", "--workers", "1")
    sets = [
        "data.instances.max_length=20",
        "data.loader.batch_size=4",
        "data.loader.num_workers=0",
        "train.precision=fp32",
    ]
    words = [word for one in sets for word in ("--set", one)]
    start = ("--start", "embedded", "--store", "store", "--out", "adapted")
    told = run("pretrain", "domain-adapt", *start, *SMALL, *words)
    assert Path("adapted", "model", "model.safetensors").is_file(), told


def test_the_server_takes_it_by_the_name_of_its_folder() -> None:
    (served,) = load_models([str(find_model())])
    assert served.name == "shipped" and "fill" in served.about.verbs
