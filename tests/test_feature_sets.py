"""Stores as data: the same examples, labels and held-out ones as the files they were made of."""

from pathlib import Path

import numpy as np
import pytest

from bertie.data.features import FeatureRows, open_features
from bertie.datasets import DataFiles, read_sets
from bertie.errors import UserError
from bertie.feature_sets import open_alike, read_feature_sets
from bertie.features import make_features
from tests.tuned import make_model, write_classes, write_csv, write_tags

TASK = {"name": "tag"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def write_store(source: Path, data: Path, **task: object) -> Path:
    out = data.with_suffix("")
    make_features(source, data, out, task=TASK | task)
    return out


def test_held_out_examples_are_those_of_the_file(source: Path, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "a.conll", count=30)
    store = write_store(source, data)
    of_file = read_sets(TASK, DataFiles(train=data, dev_share=0.3), source)
    files = DataFiles(train=store, dev_share=0.3)
    of_store = read_feature_sets(files, open_alike(files))
    assert of_store.task == of_file.task
    assert of_store.train.examples == of_file.train.examples
    assert of_store.dev.examples == of_file.dev.examples
    for found, expected in (
        (of_store.train_instances, of_file.train_instances),
        (of_store.dev_instances, of_file.dev_instances),
    ):
        assert found.labels.tolist() == [n for n in expected.labels.tolist() if n >= 0]
        assert found.weights.tolist() == expected.weights.tolist()
    rows = np.concatenate([of_store.train_instances.ids, of_store.dev_instances.ids])
    assert sorted(rows.tolist()) == list(range(open_features(store).manifest.num_tokens))


def test_rows_of_dev_and_test_follow_those_of_train(source: Path, tmp_path: Path) -> None:
    names = {"a": 6, "b": 4, "c": 3}
    stores = [
        write_store(source, write_tags(tmp_path / f"{name}.conll", count=count))
        for name, count in names.items()
    ]
    files = DataFiles(train=stores[0], dev=stores[1], test=(stores[2],))
    rows = open_alike(files)
    sets = read_feature_sets(files, rows)
    assert sets.train_instances.ids.tolist() == list(range(42))
    assert sets.dev_instances.ids.tolist() == list(range(42, 70))
    assert sets.test_instances[0].ids.tolist() == list(range(70, 91))
    dev = open_features(stores[1])
    np.testing.assert_array_equal(rows.take(np.array([43]), (1,))[0, 0], dev.layers[1][1])


def test_windows_of_a_text_stay_together(source: Path, tmp_path: Path) -> None:
    long = " ".join(["the cat in paris is good ."] * 4)
    rows = [("a cat", "x"), (long, "y"), ("the dog", "x"), ("a dog", "y")]
    data = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
    store = write_store(source, data, name="classify", max_length=12)
    files = DataFiles(train=store, dev=store)
    sets = read_feature_sets(files, open_alike(files))
    assert np.diff(sets.train_instances.draws).tolist() == [1, 5, 1, 1]
    assert sets.train_instances.labels.tolist() == [0, *[1] * 5, 0, 1]
    assert sets.train_instances.weights.tolist() == pytest.approx([1, *[0.2] * 5, 1, 1])


def test_a_store_of_texts_settles_as_the_file_does(source: Path, tmp_path: Path) -> None:
    """What there is to learn is decided by the training data, and by nothing else."""
    rows = {
        "classes": [("a cat", "x"), ("the dog", "y"), ("a dog", "y")],
        "numbers": [("a cat", 0.5), ("the dog", 1), ("a dog", 1.5)],
    }
    for name, own in rows.items():
        data = write_csv(tmp_path / f"{name}.csv", ("text", "label"), own)
        task = {"name": "classify"}
        if name == "classes":
            task["class_weights"] = "balanced"
        of_file = read_sets(task, DataFiles(train=data, dev=data), source)
        store = write_store(source, data, **task)
        files = DataFiles(train=store, dev=store)
        of_store = read_feature_sets(files, open_alike(files))
        assert of_store.task == of_file.task
        assert of_store.train_instances.weights.tolist() == of_file.train_instances.weights.tolist()


def test_dev_and_test_may_have_a_single_class(source: Path, tmp_path: Path) -> None:
    both = [("a cat", "x"), ("the dog", "y")]
    data = [
        write_csv(tmp_path / f"{name}.csv", ("text", "label"), rows)
        for name, rows in (("a", both), ("b", both[1:]), ("c", both[:1]))
    ]
    train, dev, test = (write_store(source, path, name="classify") for path in data)
    files = DataFiles(train=train, dev=dev, test=(test,))
    sets = read_feature_sets(files, open_alike(files))
    assert sets.task.labels == ("x", "y")
    assert sets.dev_instances.labels.tolist() == [1]
    assert sets.test_instances[0].labels.tolist() == [0]
    with pytest.raises(UserError, match="b has one label only, 'y'; there must be two"):
        read_feature_sets(DataFiles(train=dev), open_alike(DataFiles(train=dev)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": "0,1"}, "is of another layers than"),
        ({"task": {"name": "tag", "context": "document"}}, "with task.context=document"),
        ({"task": {"name": "tag", "max_length": 20}}, "with task.max_length=20"),
    ],
)
def test_stores_that_differ_are_refused(
    change: dict[str, object], message: str, source: Path, tmp_path: Path
) -> None:
    data = write_tags(tmp_path / "a.conll")
    make_features(source, data, tmp_path / "a", task=TASK)
    make_features(source, data, tmp_path / "b", **{"task": TASK} | change)
    with pytest.raises(UserError, match=message):
        open_alike(DataFiles(train=tmp_path / "a", dev=tmp_path / "b"))


def test_stores_of_two_models_or_tasks_are_refused(source: Path, tmp_path: Path) -> None:
    data, texts = write_tags(tmp_path / "a.conll"), write_classes(tmp_path / "c.csv")
    other = make_model(tmp_path / "other", dropout=0.0, heads=("masked_lm",), num_layers=1)
    make_features(source, data, tmp_path / "a", task=TASK)
    make_features(other, data, tmp_path / "b", task=TASK)
    make_features(source, texts, tmp_path / "c", task={"name": "classify"})
    with pytest.raises(UserError, match=r"is of another model than .*model"):
        open_alike(DataFiles(train=tmp_path / "a", dev=tmp_path / "b"))
    with pytest.raises(UserError, match=r"another task than .*: classify, not tag"):
        open_alike(DataFiles(train=tmp_path / "a", test=(tmp_path / "c",)))
    with pytest.raises(UserError, match=r"a\.conll is not a feature store; make one"):
        open_alike(DataFiles(train=data))


def test_a_label_that_training_lacks_is_named_with_its_place(source: Path, tmp_path: Path) -> None:
    write_store(source, write_tags(tmp_path / "a.conll"))
    (tmp_path / "b.conll").write_text("ann X B-PER\n\nrome X B-CITY\n")
    write_store(source, tmp_path / "b.conll")
    files = DataFiles(train=tmp_path / "a", dev=tmp_path / "b")
    with pytest.raises(UserError, match=r"b\.conll, line 3.*'B-CITY' does not occur in training"):
        read_feature_sets(files, open_alike(files))


def test_what_to_learn_and_choose_by_needs_labels(source: Path, tmp_path: Path) -> None:
    (tmp_path / "u.conll").write_text("ann\nsleeps\n\nrome\n")
    bare = write_store(source, tmp_path / "u.conll")
    full = write_store(source, write_tags(tmp_path / "a.conll"))
    for files, message in (
        (DataFiles(train=bare), "has no labels to learn"),
        (DataFiles(train=full, dev=bare), "has no labels to choose by"),
    ):
        with pytest.raises(UserError, match=message):
            read_feature_sets(files, open_alike(files))
    files = DataFiles(train=full, test=(bare,))
    sets = read_feature_sets(files, open_alike(files))
    assert not sets.tests[0].is_labelled and sets.test_instances[0].weights.tolist() == [0, 0]


def test_the_metric_can_be_another(source: Path, tmp_path: Path) -> None:
    store = write_store(source, write_tags(tmp_path / "a.conll"))
    files = DataFiles(train=store)
    rows = FeatureRows([open_features(store)])
    assert read_feature_sets(files, rows, "recall").task.metric == "recall"
    with pytest.raises(UserError, match=r"no score task\.metric = 'bleu'"):
        read_feature_sets(files, rows, "bleu")
