"""A warm start: what was learned is there at the first step, whatever is added to it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.model_dir import open_model
from bertie.config import read_recipe
from bertie.data.store import Store, StoreWriter, open_store
from bertie.errors import UserError
from bertie.pretrain import PretrainRecipe, make_model, pretrain
from bertie.text.tokenizer import Tokenizer
from tests.data.stores import PIECES, TOKENIZER, awkward, write_store
from tests.tuned import weights

TINY = (
    "data.instances.max_length=24",
    "data.loader.batch_size=6",
    "data.loader.micro_tokens=160",
    "train.budget=8 steps",
    "train.save_every=3",
    "train.log_every=1",
    "train.device=cpu",
)
SHAPE = ("num_layers=1", "hidden_size=12", "num_heads=3", "max_positions=30")
DROPOUTS = ("model.dropout=0.3", "model.attention_dropout=0.0", "model.classifier_dropout=0.2")
ALONE = ("objective=mlm", "data.instances.kind=full")


def run(store: Store, out: Path, *sets: str, start: Path | None = None, notes=None) -> Path:  # type: ignore[no-untyped-def]
    first = [f"start={start}"] if start else [f"model.{size}" for size in SHAPE]
    recipe = read_recipe(PretrainRecipe, None, [*TINY, *first, *sets])
    shown = [] if notes is None else notes
    return pretrain(replace(recipe, store=store.folder, out=out), show=shown.append).model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("start") / "store", awkward(huge=300))


@pytest.fixture(scope="module")
def start(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(store, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def grown_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Of a tokenizer with three pieces more, and in another order."""
    folder = tmp_path_factory.mktemp("grown") / "store"
    tokenizer = Tokenizer([*PIECES[:10], *reversed(PIECES[10:]), "w1w2", "new", "##new"])
    lengths = torch.arange(600).numpy() % 9 + 1
    ids = torch.arange(int(lengths.sum())).numpy() % (len(tokenizer.pieces) - 10) + 10
    with StoreWriter(folder, tokenizer) as writer:
        writer.add(ids, ids > 0, lengths, torch.full((60,), 10).numpy())
        writer.finish(settings={}, sources={}, statistics={})
    return open_store(folder)


def test_it_begins_with_the_weights_of_the_start(store: Store, start: Path, tmp_path: Path) -> None:
    model = run(store, tmp_path, "optim.peak=1e-12", start=start)
    for name, weight in weights(start).items():
        torch.testing.assert_close(weights(model)[name], weight, rtol=0, atol=1e-9)


def test_another_vocabulary_is_refused_or_grown_into(
    start: Path, grown_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="made with another tokenizer"):
        run(grown_store, tmp_path, start=start)
    notes: list[dict[str, str]] = []
    longer = ("grow=true", "data.instances.max_length=50", "optim.peak=1e-12")
    model = run(grown_store, tmp_path, *longer, start=start, notes=notes)
    new, old = open_model(model).model, open_model(start).model
    assert (new.config.vocab_size, new.config.max_positions) == (len(PIECES) + 3, 50)
    assert "pieces kept" in notes[0]["note"]
    tokenizer = grown_store.load_tokenizer()
    for piece in ("[MASK]", "w0", "##w29"):
        torch.testing.assert_close(
            new.embeddings.token.weight[tokenizer.id(piece)],
            old.embeddings.token.weight[TOKENIZER.id(piece)],
            rtol=0,
            atol=1e-9,
        )


def test_more_positions_come_only_if_asked_for(store: Store, start: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than the 30 positions"):
        run(store, tmp_path, "data.instances.max_length=50", start=start)


def test_what_the_start_lacks_is_new_and_said(store: Store, tmp_path: Path) -> None:
    alone = run(store, tmp_path / "alone", *ALONE)
    notes: list[dict[str, str]] = []
    model = run(store, tmp_path / "both", start=alone, notes=notes)
    assert "lacks pooler, next_sentence: new" in notes[1]["note"]
    assert open_model(model).model.heads == ("masked_lm", "next_sentence")


def test_a_pooler_that_is_not_trained_stays_as_it_was(
    store: Store, start: Path, tmp_path: Path
) -> None:
    model = run(store, tmp_path, *ALONE, start=start)
    after, before = open_model(model).model, open_model(start).model
    assert after.heads == ("masked_lm",)
    assert after.pooler is not None
    assert before.pooler is not None
    torch.testing.assert_close(after.pooler.dense.weight, before.pooler.dense.weight)


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ALONE,
        ("grow=true", "data.instances.max_length=50"),
        (*(f"model.{size}" for size in SHAPE), *DROPOUTS),
    ],
)
def test_a_started_run_that_was_stopped_is_one_that_was_not(
    store: Store, start: Path, tmp_path: Path, sets: tuple[str, ...]
) -> None:
    whole = run(store, tmp_path / "whole", *sets, start=start)

    class Stop(list):  # type: ignore[type-arg]
        def append(self, line: dict[str, int]) -> None:
            if line.get("step") == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(store, tmp_path / "stopped", *sets, start=start, notes=Stop())
    again = run(store, tmp_path / "stopped", *sets, start=start)
    for name, weight in weights(whole).items():
        assert torch.equal(weights(again)[name], weight), name


def test_without_a_start_there_must_be_a_model(store: Store, tmp_path: Path) -> None:
    """As in the recipe domain-adapt: nobody means a new BASE."""
    recipe = read_recipe(PretrainRecipe, "domain-adapt", ["data.loader.num_workers=0"])
    with pytest.raises(UserError, match=r"name a model to start from \(--start DIR"):
        pretrain(replace(recipe, store=store.folder, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_shape_in_the_recipe_must_be_that_of_the_start(
    store: Store, start: Path, tmp_path: Path
) -> None:
    same = [f"model.{size}" for size in SHAPE]
    assert run(store, tmp_path / "again", *same, start=start).is_dir()
    with pytest.raises(UserError, match=r"has hidden_size = 12, the recipe's \[model\] says 24"):
        run(store, tmp_path / "wider", *same, "model.hidden_size=24", start=start)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("gelu", "tanh", "erf"),
        ("norm_eps", "1e-05", "1e-12"),
        ("num_segments", "3", "2"),
        ("attention", "left", "both"),
    ],
)
def test_all_that_a_started_model_computes_is_its_own(
    store: Store, start: Path, tmp_path: Path, name: str, value: str, found: str
) -> None:
    sets = [*(f"model.{size}" for size in SHAPE), f"model.{name}={value}"]
    with pytest.raises(UserError, match=f"has {name} = {found}, the recipe's .* says {value}"):
        run(store, tmp_path, *sets, start=start)


def test_what_does_not_matter_to_a_started_model_may_differ(
    store: Store, start: Path, tmp_path: Path
) -> None:
    sets = [*(f"model.{size}" for size in SHAPE), "model.vocab_size=7", "model.init_std=0.5"]
    assert run(store, tmp_path, *sets, start=start).is_dir()


@pytest.mark.parametrize("is_started", [False, True])
def test_pairs_need_two_segments(store: Store, tmp_path: Path, is_started: bool) -> None:
    one = ("model.num_segments=1",)
    start = run(store, tmp_path / "one", *ALONE, *one) if is_started else None
    with pytest.raises(UserError, match="is of pairs, and the model knows one segment"):
        run(store, tmp_path / "run", *(() if is_started else one), start=start)


def test_a_started_lstm_is_not_compiled(store: Store, tmp_path: Path) -> None:
    lstm = run(store, tmp_path / "lstm", *ALONE, "model.layer=lstm", "objective=lm+back")
    with pytest.raises(UserError, match=r"train\.compile is for Transformers"):
        run(store, tmp_path / "run", *ALONE, "objective=lm+back", "train.compile=true", start=lstm)
    with pytest.raises(UserError, match="trains one half of an LSTM"):
        run(store, tmp_path / "run", *ALONE, "objective=lm", start=lstm)


@pytest.mark.parametrize("grow", ["false", "true"])
def test_dropouts_of_the_recipe_are_those_of_the_started_model(
    store: Store, start: Path, grow: str
) -> None:
    sets = [f"model.{size}" for size in SHAPE]
    sets += [f"start={start}", f"grow={grow}"]
    recipe = read_recipe(PretrainRecipe, None, [*TINY, *sets, *DROPOUTS])
    model, _ = make_model(recipe, store, None)
    config = model.config
    assert (config.dropout, config.attention_dropout, config.classifier_dropout) == (0.3, 0.0, 0.2)
    (layer,) = model.layers
    assert (layer.dropout, layer.attention.dropout) == (0.3, 0.0)
    for name, weight in open_model(start).model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
