"""The quickstart runs offline on this machine's own documentation."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie import embedded, quickstart
from bertie.checkpoint.importing import import_model
from bertie.checkpoint.model_dir import open_model
from bertie.config import read_recipe
from bertie.errors import UserError
from bertie.model.bert import Bert
from bertie.pretrain import PretrainRecipe, evaluate_start, pretrain
from bertie.quickstart import Scale, clear, run_quickstart
from bertie.text.tokenizer import Tokenizer
from tests.infer.models import make_directory

SMALL = ("model.hidden_size=16", "model.num_layers=1")
TOY = Scale(
    num_pieces=1_000,
    num_packages=3,
    num_each=10,
    held_out_percent=30,
    pretrain=(*SMALL, "train.budget=3 steps", "train.threads=1"),
    adapt=("data.instances.max_length=24", "train.budget=3 steps", "train.threads=1"),
    finetune=("train.budget=1 epochs", "train.threads=1"),
    finetune_adapted=("train.budget=1 epochs", "train.threads=1"),
)
VERBS = ["vocab", "tokenize", "prepare", "pretrain", "fill", "finetune", "serve"]
PACKAGES = ("email", "json", "http", "logging")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder, and what was said, of a second run, without a model that ships.

    A second run starts afresh.
    """
    out = tmp_path_factory.mktemp("toy") / "quickstart"
    with pytest.MonkeyPatch.context() as patch:
        take_few_sources(patch)
        patch.delenv(embedded.VARIABLE, raising=False)
        patch.setattr(embedded, "FOLDER", out / "nothing")
        patch.setattr(quickstart, "has_fast_bf16", lambda: False)
        for _ in range(2):
            lines = list(run_quickstart(out, TOY))
    return out, lines


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The same with a model that ships, so to say."""
    folder = tmp_path_factory.mktemp("shipped")
    import_model(make_directory(folder), folder / "shipped", storage="int8")
    with pytest.MonkeyPatch.context() as patch:
        take_few_sources(patch)
        patch.setenv(embedded.VARIABLE, str(folder / "shipped"))
        patch.setattr(quickstart, "has_fast_bf16", lambda: True)
        return folder, list(run_quickstart(folder / "quickstart", TOY))


def take_few_sources(patch: pytest.MonkeyPatch) -> None:
    sources = [(p, path) for p, path in quickstart.find_sources() if p in PACKAGES]
    patch.setattr(quickstart, "find_sources", lambda: sources)


def test_the_quickstart_goes_the_whole_way(toy: tuple[Path, list[str]]) -> None:
    out, lines = toy
    said = [line.split()[2] for line in lines if line.startswith("$ bertie")]
    assert list(dict.fromkeys(said)) == VERBS
    assert len(Tokenizer.load(out / "vocab").pieces) == TOY.num_pieces
    assert open_model(out / "run" / "model").model.heads == ("masked_lm", "next_sentence")
    assert open_model(out / "finetuned" / "model").model.heads == ("sequence",)
    assert sum(line.strip().startswith(("before:", "after:")) for line in lines) == 10


def test_what_learns_does_so_in_bf16_where_the_processor_has_it(
    toy: tuple[Path, list[str]], shipped: tuple[Path, list[str]]
) -> None:
    for lines, is_fast in ((toy[1], False), (shipped[1], True)):
        verbs = "$ bertie pretrain quickstart", "$ bertie finetune quickstart"
        learning = [line for line in lines if line.startswith(verbs)]
        assert len(learning) >= 4
        assert all(("train.precision=bf16" in line) == is_fast for line in learning)
    records = shipped[0].glob("quickstart/*/run.json")
    trained = [json.loads(path.read_text("utf-8"))["settings"]["train"] for path in records]
    assert len(trained) == 6 and {one["precision"] for one in trained} == {"bf16"}


def test_what_it_says_is_what_was_measured(toy: tuple[Path, list[str]]) -> None:
    _, lines = toy
    rows = {
        name: float(re.search(rf"{name} +([0-9.]+) ", "\n".join(lines))[1])
        for name in ("guessing by frequency", "before training", "after training")
    }
    gap = rows["guessing by frequency"] - rows["after training"]
    side = "below" if gap > 0 else "above"
    assert any(f"{abs(gap):.2f} nats {side} guessing" in line for line in lines)
    assert sum(bool(re.search(r"(weights|random) +[0-9.]+%$", line)) for line in lines) == 3


def test_the_model_before_training_is_the_one_that_training_began_with(
    toy: tuple[Path, list[str]],
) -> None:
    found = open_model(toy[0] / "untrained" / "model").model
    recipe = read_recipe(PretrainRecipe, "quickstart", TOY.pretrain)
    begun = Bert(found.config, recipe.heads, generator=torch.Generator().manual_seed(0))
    for name, weight in found.named_parameters():
        torch.testing.assert_close(weight, begun.get_parameter(name), rtol=0, atol=0)


def test_the_model_that_ships_comes_first(shipped: tuple[Path, list[str]]) -> None:
    folder, lines = shipped
    out = folder / "quickstart"
    said = [line.split()[2] for line in lines if line.startswith("$ bertie")]
    verbs = ["fill", "prepare", "pretrain", "vocab", "tokenize", "finetune", "serve"]
    assert list(dict.fromkeys(said)) == verbs
    assert sum("--start embedded" in line for line in lines) == 1
    assert sum("--vocab embedded" in line for line in lines) == 1
    assert open_model(out / "adapted" / "model").model.heads == ("masked_lm", "next_sentence")
    assert open_model(out / "adapted_finetuned" / "model").model.heads == ("sequence",)
    assert sum(line.strip().startswith(("before:", "after:")) for line in lines) == 20
    assert sum(bool(re.search(r"(weights|random|ships) +[0-9.]+%$", line)) for line in lines) == 4


def test_its_perplexity_is_that_of_held_out_text(shipped: tuple[Path, list[str]]) -> None:
    folder, lines = shipped
    found = {
        name: float(re.search(rf"{name} +([0-9.]+) +[0-9.]+%", "\n".join(lines))[1])
        for name in ("as it ships", "after that minute")
    }
    out = folder / "quickstart"
    last = json.loads((out / "adapted" / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    after = math.exp(last["held_out"]["mask_loss"])
    assert found["after that minute"] == pytest.approx(after, abs=0.06)
    assert found["as it ships"] != found["after that minute"]


def test_nothing_is_trained_by_looking(shipped: tuple[Path, list[str]]) -> None:
    """What a run begins with is what it ends with where the rate is next to nothing."""
    folder, _ = shipped
    sets = [*TOY.adapt, "optim.peak=1e-12", f"start='{folder / 'shipped'}'"]
    recipe = read_recipe(PretrainRecipe, "quickstart-adapt", sets)
    store = folder / "quickstart" / "adapt_store"
    recipe = replace(recipe, store=store, out=folder / "still")
    assert evaluate_start(recipe) == pytest.approx(pretrain(recipe).held_out, abs=1e-5)


def read_rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_nothing_of_the_test_is_trained_on(toy: tuple[Path, list[str]]) -> None:
    folder, _ = toy
    tested = read_rows(folder / "test.jsonl")
    taught = read_rows(folder / "train.jsonl")
    assert tested and taught
    assert not {row["text"] for row in tested} & {row["text"] for row in taught}
    assert {row["label"] for row in tested} <= {row["label"] for row in taught}


def test_a_folder_with_work_of_others_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "vocab" / "model.bin"
    mine.parent.mkdir()
    mine.write_text("x")
    with pytest.raises(UserError, match="holds vocab/model"):
        list(run_quickstart(tmp_path))
    assert mine.exists()


def test_what_an_interrupted_step_left_is_ours_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    quickstart.begin(out, "run", "store")
    for name in ("run/checkpoints/a", "store.draft/part", "store/epoch"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    mine = out / "runs.txt"  # begins alike
    mine.write_text("x")
    with pytest.raises(UserError, match=r"holds runs\.txt"):
        clear(out)
    mine.unlink()
    clear(out)
    assert not list(out.iterdir())


def test_a_note_that_is_damaged_is_told_and_nothing_removed(tmp_path: Path) -> None:
    for text in ("", "[]", '{"files": 1, "coming": []}', '{"files": []}'):
        (tmp_path / "quickstart.json").write_text(text)
        with pytest.raises(UserError, match=r"quickstart\.json is damaged, .* remove"):
            clear(tmp_path)
        assert (tmp_path / "quickstart.json").read_text() == text


def test_a_note_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill, or a full disk, leaves the old one."""
    quickstart.begin(tmp_path, "run")
    before = (tmp_path / "quickstart.json").read_text()

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        quickstart.begin(tmp_path, "store")
    assert (tmp_path / "quickstart.json").read_text() == before
    clear(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["where one stands", "a link"])
def test_the_folder_itself_stays(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    monkeypatch.chdir(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    out = Path() if how == "where one stands" else tmp_path / "link"
    quickstart.begin(out, "run", "store")
    (out / "run").mkdir()
    (out / "run" / "model").touch()
    (out / "store").symlink_to(tmp_path)
    clear(out)
    assert not list((tmp_path / "real").iterdir())
    assert (tmp_path / "link").is_symlink() and tmp_path.exists()


def test_links_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path.parent)
    with pytest.raises(UserError, match="holds a, which is not of a quickstart"):
        clear(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; choose another --out"):
        clear(tmp_path / "file")
