"""The stored rows are the model's hidden states, whatever they were read beside."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.model_dir import open_model
from bertie.data.features import FeatureStore
from bertie.errors import UserError
from bertie.features import make_features
from bertie.infer import features
from bertie.infer.features import choose_layers
from bertie.model.bert import Bert, pack
from bertie.text.tokenizer import Tokenizer
from tests.tuned import make_model, write_csv, write_tags

CLOSE = {"rtol": 1e-3, "atol": 1e-3}  # float16 has 11 bits


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), num_layers=3)


@pytest.fixture(scope="module")
def model(source: Path) -> Bert:
    return open_model(source).model


def states_of(model: Bert, ids: list[int]) -> list[np.ndarray]:
    with torch.inference_mode():
        return [rows.numpy() for rows in model.states(*pack([torch.tensor(ids)]))]


def check_rows(store: FeatureStore, example: int, expected: list[np.ndarray]) -> None:
    for layer, table in store.layers.items():
        np.testing.assert_allclose(table[store.rows_of(example)], expected[layer], **CLOSE)


def test_rows_of_texts_are_hidden_states(source: Path, model: Bert, tmp_path: Path) -> None:
    texts = ["the cat sleeps .", "a", "bob runs in oslo . ann is good ?"]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), [(t, len(t) % 2) for t in texts])
    store = make_features(source, data, tmp_path / "store", task={"name": "classify"})
    tokenizer = Tokenizer.load(source)
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text).ids.tolist()  # with [CLS] and [SEP]
        assert store.index.ids[store.rows_of(number)].tolist() == ids
        check_rows(store, number, states_of(model, ids))
    assert store.manifest.layers == (0, 1, 2, 3) and store.index.words is None


def test_long_texts_are_kept_whole_in_windows(source: Path, model: Bert, tmp_path: Path) -> None:
    text = " ".join(["the cat in paris is good ."] * 4)  # 28 pieces
    rows = [("a", "x"), (text, "y"), ("the", "x")]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    task = {"name": "classify", "max_length": 12, "stride": 10}
    store = make_features(source, data, tmp_path / "store", task=task)
    first, last = store.index.examples[1:3]
    bounds = store.index.inputs[first : last + 1]
    assert last - first == 3 and store.manifest.notes
    pieces = Tokenizer.load(source).ids(text).tolist()
    found = [store.index.ids[low + 1 : high - 1].tolist() for low, high in pairwise(bounds)]
    assert found == [pieces[:10], pieces[10:20], pieces[20:]]
    for low, high in pairwise(bounds):
        expected = states_of(model, store.index.ids[low:high].tolist())
        np.testing.assert_allclose(store.layers[3][low:high], expected[3], **CLOSE)


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_rows_of_sentences_are_the_pieces_of_their_words(
    context: str, source: Path, model: Bert, tmp_path: Path
) -> None:
    """With documents, the neighbours are read, and not kept."""
    data = write_tags(tmp_path / "a.conll", count=7)
    task = {"name": "tag", "context": context, "max_length": 24}
    store = make_features(source, data, tmp_path / "store", task=task)
    tokenizer = Tokenizer.load(source)
    sentences = [example["words"] for example in store.read_examples()]
    cls, sep = tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
    for number, words in enumerate(sentences):
        ids = tokenizer.ids(" ".join(words)).tolist()
        assert store.index.ids[store.rows_of(number)].tolist() == ids
        assert store.index.words is not None
        assert store.index.words[store.rows_of(number)].tolist() == list(range(len(words)))
    alone = states_of(model, [cls, *store.index.ids[store.rows_of(2)].tolist(), sep])
    if context == "sentence":
        check_rows(store, 2, [rows[1:-1] for rows in alone])
    else:  # 22 pieces around the third of five sentences of seven: one of them of the fifth
        around = store.index.ids[store.rows_of(1).start : store.rows_of(3).stop + 1].tolist()
        whole = states_of(model, [cls, *around, sep])
        check_rows(store, 2, [rows[8:15] for rows in whole])


def test_long_sentences_are_stitched_of_windows(source: Path, tmp_path: Path) -> None:
    """Each word once, in order; with more pieces than one; a window's word in its window."""
    words = ["the", "cats", "zzz", "dogs", "in", "paris", "films", "."] * 4  # cats: cat ##s
    lines = [f"{word} O" for word in words]
    (tmp_path / "a.conll").write_text("\n".join([*lines, "", "bob B-PER", ""]))
    task = {"name": "tag", "max_length": 13}
    store = make_features(source, tmp_path / "a.conll", tmp_path / "store", task=task)
    tokenizer = Tokenizer.load(source)
    own = store.rows_of(0)
    assert store.index.ids[own].tolist() == tokenizer.ids(" ".join(words)).tolist()
    assert store.index.words is not None
    assert [w for w in store.index.words[own].tolist() if w >= 0] == list(range(len(words)))
    assert store.rows_of(1).stop == store.manifest.num_tokens == own.stop + 1
    assert store.manifest.notes == ("a.conll: 1 sentences in windows",)


def test_batches_change_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tags(tmp_path / "a.conll", count=9)
    stores = []
    for name, max_tokens in (("a", 8_192), ("b", 11), ("c", 1)):
        monkeypatch.setattr(features, "BATCH_TOKENS", max_tokens)
        stores.append(make_features(source, data, tmp_path / name, task={"name": "tag"}))
    for layer in range(4):
        for store in stores[1:]:
            np.testing.assert_allclose(store.layers[layer], stores[0].layers[layer], **CLOSE)


def test_only_the_layers_that_are_asked_for_are_computed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    states = Bert.states
    monkeypatch.setattr(
        Bert,
        "states",
        lambda *a, num_layers, kept: (
            asked.append(num_layers) or states(*a, num_layers=1, kept=kept)
        ),
    )
    data = write_tags(tmp_path / "a.conll")
    store = make_features(source, data, tmp_path / "s", task={"name": "tag"}, layers="0,1")
    assert asked == [1] and tuple(store.layers) == (0, 1)


def test_layers_are_counted_from_either_end() -> None:
    assert choose_layers("0,-2,-1", 12) == (0, 11, 12)
    assert choose_layers("-1,3, 3", 3) == (3,)
    assert choose_layers("all", 1) == (0, 1)


@given(st.text(max_size=12))
def test_no_text_breaks_the_choice_of_layers(text: str) -> None:
    try:
        assert all(0 <= layer <= 3 for layer in choose_layers(text, 3))
    except UserError as error:
        assert "layer" in str(error)


@pytest.mark.parametrize("layers", ["4", "-5", "", "1,,2", "last"])
def test_layers_that_are_not_there_are_refused(layers: str) -> None:
    with pytest.raises(UserError, match=r"no layer|layers are"):
        choose_layers(layers, 3)
