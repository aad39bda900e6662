"""Classification: whatever the text and the kind of label, what goes in as gold comes out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.config import assign, build
from bertie.errors import UserError
from bertie.tasks.classify import Classify, TextExample, TextPrediction
from bertie.tasks.instances import Instances
from bertie.tasks.steps import TaskLoader, predict
from bertie.tasks.task import Dataset
from tests.tasks.toys import TEXTS, TOKENIZER, of_sequences, tiny_model

HUNDRED = tuple(f"label {n}" for n in range(100))


def example(first: str, second: str | None = None, label: object = None) -> TextExample:
    return TextExample(place="here", id="0", first=first, second=second, label=label)  # type: ignore[arg-type]


def gold_outputs(task: Classify, instances: Instances) -> list[np.ndarray]:
    """What a model that knows the labels would say."""
    if task.kind == "classes":
        rows = 9.0 * (np.arange(task.num_labels) == instances.labels[:, None])
    elif task.kind == "multi-label":
        rows = 9.0 * (2 * instances.labels - 1)
    else:
        rows = instances.labels[:, None]
    return of_sequences(instances, rows)


@pytest.mark.parametrize("labels", [("0", "1"), HUNDRED], ids=["two", "hundred"])
@given(data=st.data(), texts=st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=4))
@settings(max_examples=20)
def test_gold_classes_come_back(
    labels: tuple[str, ...], data: st.DataObject, texts: list[tuple[str, str | None]]
) -> None:
    task = Classify(kind="classes", labels=labels, max_length=16, stride=5)
    gold = data.draw(st.lists(st.sampled_from(labels), min_size=len(texts), max_size=len(texts)))
    examples = [example(*pair, label) for pair, label in zip(texts, gold, strict=True)]
    instances = task.encode(examples, TOKENIZER)
    predictions = task.decode(examples, instances, gold_outputs(task, instances))
    assert [prediction.label for prediction in predictions] == gold
    assert task.score(examples, predictions)["accuracy"] == 1
    assert np.diff(instances.bounds).max() <= 16
    assert all(abs(prediction.scores.sum() - 1) < 1e-6 for prediction in predictions)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    data=st.data(),
    scale=st.sampled_from([1e-3, 1.0, 1e5]),
)
@settings(max_examples=20)
def test_gold_numbers_and_sets_come_back(
    texts: list[str], data: st.DataObject, scale: float
) -> None:
    sets = st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(lambda x: tuple(sorted(x)))
    for kind, values in (
        ("regression", st.floats(-5, 5).map(scale.__mul__)),
        ("multi-label", sets),
    ):
        gold = data.draw(st.lists(values, min_size=len(texts), max_size=len(texts)))
        examples = [example(text, None, label) for text, label in zip(texts, gold, strict=True)]
        task = Classify(
            kind=kind, labels=("a", "b", "c"), max_length=16, center=scale, spread=scale
        )  # type: ignore[arg-type]
        instances = task.encode(examples, TOKENIZER)
        found = task.decode(examples, instances, gold_outputs(task, instances))
        if kind == "regression":
            assert [p.label for p in found] == pytest.approx(gold, abs=1e-5 * scale)
        else:
            assert [p.label for p in found] == gold


def test_a_number_stays_within_its_limits() -> None:
    task = Classify(kind="regression", max_length=16, limits=(0.0, 5.0), center=3.0, spread=2.0)
    examples = [example("a"), example("b"), example("the " * 40)]
    instances = task.encode(examples, TOKENIZER)
    outputs = [np.array([value]) for value in (-9.0, 0.5, *[9.0] * len(instances.inputs_of(2)))]
    assert [one.label for one in task.decode(examples, instances, outputs)] == [0, 4, 5]


def test_a_text_that_fits_has_one_window_and_long_ones_lose_nothing() -> None:
    words = [f"{letter}{digit}" for letter in "abcde" for digit in range(10)]
    for first, second in (
        (words[:5], None),
        (words, None),
        (words[:30], words[30:34]),
        (words[:3], words[3:40]),
        (words[:25], words[25:]),
    ):
        pair = " ".join(first), None if second is None else " ".join(second)
        task = Classify(kind="classes", labels=("0", "1"), max_length=20)
        instances = task.encode([example(*pair, "1")], TOKENIZER)
        whole = TOKENIZER.encode(*pair)
        if len(whole.ids) <= 20:
            assert instances.ids.tolist() == whole.ids.tolist()
            assert instances.take(np.array([0])).segments.tolist() == whole.segments.tolist()
        assert set(whole.ids.tolist()) <= set(instances.ids.tolist())
        seen = [TOKENIZER.decode(part) for part in np.split(instances.ids, instances.bounds[1:-1])]
        assert all(word in " ".join(seen) for word in (*first, *(second or ())))


def test_windows_of_two_long_texts_go_side_by_side() -> None:
    """The fewer windows of the shorter one are spread over those of the longer one."""
    words = [f"{letter}{digit}" for letter in "abcde" for digit in range(10)]
    task = Classify(kind="classes", labels=("0", "1"), max_length=23, stride=5)
    instances = task.encode([example(" ".join(words), " ".join(words[:17]), "1")], TOKENIZER)
    inputs = [instances.input(number) for number in instances.inputs_of(0)]
    sides = [[one.ids[: one.second].tolist() for one in inputs]]
    sides.append([one.ids[one.second :].tolist() for one in inputs])
    times = [[len(list(same)) for _, same in groupby(side)] for side in sides]
    assert len(times[0]) == len(inputs) > len(times[1]) > 2
    assert max(times[1]) - min(times[1]) <= 1


def test_cutting_off_is_asked_for_and_counted() -> None:
    task = Classify(kind="classes", labels=("0", "1"), max_length=10, truncate=True)
    instances = task.encode([example("a " * 20, None, "1"), example("a b", None, "0")], TOKENIZER)
    assert np.diff(instances.bounds).tolist() == [10, 4]
    assert instances.counts == {"texts cut off": 1, "pieces cut off": 12}


def test_the_mean_of_the_windows_logits_decides() -> None:
    task = Classify(kind="classes", labels=("0", "1"), max_length=10)
    examples = [example("a " * 20), example("b")]
    instances = task.encode(examples, TOKENIZER)
    count = len(instances.inputs_of(0))
    assert count > 1
    outputs = [np.array([float(n), 2.0]) for n in range(count)] + [np.array([3.0, -1.0])]
    first, second = task.decode(examples, instances, outputs)
    mean = sum(range(count)) / count
    assert first.scores[0] == pytest.approx(1 / (1 + np.exp(2 - mean)))
    assert second.label == "0"


@pytest.mark.parametrize("weights", ["none", "balanced", {"b": 7.0}], ids=str)
def test_windows_share_the_weight_of_their_example(weights: object) -> None:
    """The loss of a step is the weighted mean over examples of the mean over their windows."""
    examples = [example("a " * n, None, label) for n, label in ((3, "a"), (40, "b"), (2, "a"))]
    task = Classify(kind="classes", labels=("a", "b"), max_length=12, class_weights=weights)  # type: ignore[arg-type]
    task = task.settle(Dataset(path=Path("x"), format="", examples=examples))
    instances = task.encode(examples, TOKENIZER)
    model = tiny_model("sequence")
    outputs = predict(model, instances)
    losses = []
    for number, label in enumerate((0, 1, 0)):
        logits = torch.tensor(np.stack([outputs[n] for n in instances.inputs_of(number)]))
        losses.append(-logits.log_softmax(-1)[:, label].mean())
    shares = torch.tensor(
        {"none": [1.0, 1, 1], "balanced": [0.75, 1.5, 0.75]}.get(str(weights), [1.0, 7, 1])
    )
    expected = (torch.stack(losses) * shares).sum() / shares.sum()
    for micro_tokens in (20, 10_000):
        step = TaskLoader(instances, batch_size=3, micro_tokens=micro_tokens).step(0)
        terms = [task.objective(model, batch)["task"] for batch in step.micro_batches]
        loss = sum(term.total for term in terms) / step.num_targets["task"]
        torch.testing.assert_close(loss, expected)
        assert sum(float(term.num_targets) for term in terms) == pytest.approx(
            step.num_targets["task"]
        )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


FILES = [  # name, text; first, second and label; kind, labels
    ("a.csv", 'text,label\n"one, two",x\n"say ""hi""",y\n', "text - label", "classes", "x y"),
    ("a.tsv", 'sentence\tlabel\n"a" b"\t10\nc\t9\n', "sentence - label", "classes", "9 10"),
    (
        "a.jsonl",
        '{"premise":"a","hypothesis":"b","label":2}\n{"premise":"c","hypothesis":"d","label":0}\n',
        "premise hypothesis label",
        "classes",
        "0 2",
    ),
    (
        "a.json",
        '[{"text":"a","labels":["x","y"]},{"text":"b","labels":[]}]',
        "text - labels",
        "multi-label",
        "x y",
    ),
    ("a.csv", "Text,Score\na,0.5\nb,2\n", "Text - Score", "regression", ""),
    ("a.txt", "一\t二\t1\n三\t四\t0\n五\t六\t1\n七\t八\t0\n", "0 1 2", "classes", "0 1"),
    (
        "a.csv",
        "\ufefftext_a,text_b,label\r\na,b,1\r\nc,d,0\r\n",
        "text_a text_b label",
        "classes",
        "0 1",
    ),
]


@pytest.mark.parametrize(("name", "text", "columns", "kind", "labels"), FILES)
def test_files_are_understood_by_their_names(
    tmp_path: Path, name: str, text: str, columns: str, kind: str, labels: str
) -> None:
    data = Classify().read(write(tmp_path / name, text), needs_labels=True)
    roles = zip(("first", "second", "label"), columns.split(), strict=True)
    assert data.columns == {role: column for role, column in roles if column != "-"}
    task = Classify().settle(data)
    assert (task.kind, task.labels) == (kind, tuple(labels.split()))
    again = task.read(data.path).examples
    assert [(e.first, str(e.label)) for e in again] == [
        (e.first, str(float(str(e.label))) if kind == "regression" else str(e.label))
        for e in data.examples
    ]


def test_texts_are_those_of_the_file(tmp_path: Path) -> None:
    csv = write(tmp_path / "a.csv", 'text,label\n"one,\ntwo",x\n"say ""hi""",y\n')
    assert [e.first for e in Classify().read(csv).examples] == ["one,\ntwo", 'say "hi"']
    tsv = write(tmp_path / "a.tsv", 'text\tlabel\n" half a quote\tx\nsome "quoted" word\ty\n')
    assert [e.first for e in Classify().read(tsv).examples] == [
        '" half a quote',
        'some "quoted" word',
    ]
    quoted = write(tmp_path / "b.tsv", 'text\tlabel\n"a ""b"""\tx\nc\ty\n')
    assert [e.first for e in Classify().read(quoted).examples] == ['a "b"', "c"]


@pytest.mark.parametrize("name", ["a.parquet", "a.PQ"])
def test_parquet_is_a_table_too(name: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / name)
    data = Classify().read(tmp_path / name)
    assert [(e.first, e.label) for e in data.examples] == [("a", "1"), ("b", "0")]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("text,label\na,x\n,y\n", 3, "empty text in the column 'text'"),
        ("text,label\na,x\nb,\n", 3, "no label"),
        ("text,label\na,x\nb,y,z\n", 3, "not as many columns"),
        ("text,label\na,x\nb,q\n", 3, "a label that the model does not have"),
        ("id,text,label\n7,a,x\n7,b,y\n", 3, "an id for the second time"),
    ],
)
def test_bad_rows_are_named_or_skipped_and_counted(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    path = write(tmp_path / "a.csv", text)
    task = Classify(kind="classes", labels=("x", "y"))
    with pytest.raises(UserError, match=rf"a\.csv, line {line}: .*{what}.*--skip-bad"):
        task.read(path)
    data = task.read(path, skip_bad=True)
    assert len(data.examples) == 1
    ((kind, count),) = data.problems.counts.items()
    assert what in kind and count == 1
    assert f"line {line}" in data.problems.places[kind][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wort,klasse\na,x\n", "which column is the text.*wort, klasse"),
        ("text,klasse\na,x\n", "no column of labels.*text, klasse"),
        ("text,label\n", "no example"),
        ("text,text\n", "two columns of one name"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Classify().read(write(tmp_path / "a.csv", text), needs_labels=True)


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "wort,klasse\na,x\nb,y\n")
    data = Classify(columns={"first": "wort", "label": "klasse"}).read(path, needs_labels=True)
    assert [(e.first, e.label) for e in data.examples] == [("a", "x"), ("b", "y")]
    with pytest.raises(UserError, match="no column 'worte' for first; there are: wort, klasse"):
        Classify(columns={"first": "worte"}).read(path)
    with pytest.raises(UserError, match="no role 'text'"):
        Classify(columns={"text": "wort"})


@pytest.mark.parametrize(
    ("header", "given", "columns"),
    [
        ("text,stars2", {"label": "stars2"}, "text - stars2"),
        ("sentence1,sentence2,gold2", {"label": "gold2"}, "sentence1 sentence2 gold2"),
        ("sentence1,sentence2,label", {"first": "sentence2"}, "sentence2 - label"),
        (
            "sentence1,other,label",
            {"first": "sentence1", "second": "other"},
            "sentence1 other label",
        ),
        ("question1,question2,label", {}, "question1 question2 label"),
        ("question1,question2,is_duplicate", {}, "question1 question2 is_duplicate"),
        ("question1,question2,gold", {"label": "gold"}, "question1 question2 gold"),
    ],
)
def test_what_is_not_named_is_guessed(
    tmp_path: Path, header: str, given: dict[str, str], columns: str
) -> None:
    cells = [",".join(f"{name} {n}" for name in header.split(",")) for n in range(2)]
    path = write(tmp_path / "a.csv", "\n".join((header, *cells, "")))
    adopted = {"kind": "classes"} if "question1" in header else {}  # those of QQP are 0 and 1
    data = Classify(columns=given, **adopted).read(path, needs_labels=True)  # type: ignore[arg-type]
    roles = zip(("first", "second", "label"), columns.split(), strict=True)
    expected = {role: column for role, column in roles if column != "-"}
    assert data.columns == expected
    one = data.examples[1]
    found = {"first": one.first, "second": one.second, "label": one.label}
    assert found == dict.fromkeys(found) | {r: f"{c} 1" for r, c in expected.items()}


def test_a_label_alone_does_not_say_which_column_is_the_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "wort,klasse\na,x\nb,y\n")
    with pytest.raises(UserError, match=r"which column is the text.*wort, klasse"):
        Classify(columns={"label": "klasse"}).read(path)


def test_a_header_that_is_not_known_is_shown_and_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "hdr.tsv", "utterance\tintent\nplay\tmusic\nstop\thalt\n")
    with pytest.raises(UserError, match=r"0 \(utterance\), 1 \(intent\); as no name in the first"):
        Classify().read(path)
    with pytest.raises(UserError, match=r"no column of labels; there are: 0 \(utterance\)"):
        Classify(columns={"first": "0"}).read(path, needs_labels=True)
    data = Classify(columns={"first": "utterance", "label": "intent"}).read(path)
    assert [(e.first, e.label) for e in data.examples] == [("play", "music"), ("stop", "halt")]


def test_a_column_may_be_called_by_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "2020,2021\na,x\nb,y\n")
    settings: dict[str, Any] = {}
    for assignment in ("columns.first=2020", "columns.label=2021"):
        assign(settings, assignment)
    data = build(Classify, settings).read(path)
    assert [(e.first, e.label) for e in data.examples] == [("a", "x"), ("b", "y")]


def test_without_labels_there_are_predictions_and_no_scores(tmp_path: Path) -> None:
    data = Classify().read(write(tmp_path / "test.csv", "text\na\nb\n"))
    assert not data.is_labelled
    task = Classify(kind="classes", labels=("x", "y"))
    instances = task.encode(data.examples, TOKENIZER)
    predictions = task.decode(data.examples, instances, predict(tiny_model("sequence"), instances))
    assert len(predictions) == 2 and task.score(data.examples, predictions) == {}
    with pytest.raises(UserError, match="no labelled example"):
        TaskLoader(instances)


def test_thresholds_are_fitted_for_several_labels() -> None:
    task = Classify(kind="multi-label", labels=("x", "y"))
    examples = [example("a", None, ("x",)), example("b", None, ("x", "y")), example("c", None, ())]
    instances = task.encode(examples, TOKENIZER)
    outputs = of_sequences(instances, [(-1.0, -5.0), (-2.0, -1.0), (-3.0, -4.0)])
    tuned = task.tune(examples, instances, outputs)
    assert task.score(examples, task.decode(examples, instances, outputs))["micro_f1"] == 0
    assert tuned.score(examples, tuned.decode(examples, instances, outputs))["micro_f1"] == 1


def test_f1_is_that_of_the_positive_label() -> None:
    gold = ["fraud", "normal", "normal", "normal"]
    examples = [example("a", None, label) for label in gold]
    task = Classify().settle(Dataset(path=Path("x"), format="", examples=examples))
    assert task.positive == "fraud"
    predictions = [
        TextPrediction(label=label, scores=np.zeros(2))
        for label in ("fraud", "fraud", "normal", "normal")
    ]
    assert task.score(examples, predictions)["f1"] == pytest.approx(2 / 3)
    other = replace(task, positive="normal")
    assert other.score(examples, predictions)["f1"] == pytest.approx(0.8)
    old = replace(task, positive="")  # a model of before there was the setting
    assert old.score(examples, predictions) == other.score(examples, predictions)


def test_a_few_labels_that_are_no_numbers_among_numbers_are_told(tmp_path: Path) -> None:
    rows = [f"text {n},{n}.5" for n in range(20)]
    path = write(tmp_path / "a.csv", "\n".join(["text,score", *rows, "one more,n/a", ""]))
    with pytest.raises(UserError, match=r"nearly all labels are numbers, but not 'n/a'.*--set"):
        Classify().settle(Classify().read(path))
    as_names = Classify(kind="classes")
    assert len(as_names.settle(as_names.read(path)).labels) == 21
    as_values = Classify(kind="regression")
    data = as_values.read(path, skip_bad=True)
    assert as_values.settle(data).kind == "regression" and data.problems.num_skipped == 1
    whole = write(tmp_path / "b.csv", "text,label\n" + "a,1\nb,2\n" * 10 + "c,x\n")
    assert Classify().settle(Classify().read(whole)).labels == ("1", "2", "x")


@pytest.mark.parametrize("kind", ["classes", "multi-label", "regression"])
def test_a_tiny_model_learns_its_examples(kind: str, tmp_path: Path) -> None:
    labels: dict[str, list[object]] = {
        "classes": ["x", "y", "x", "z"],
        "multi-label": [("x",), ("y", "z"), ("x",), ()],
        "regression": [1000.0, 1500.0, 1000.0, 3500.0],
    }
    examples = [
        example(text, None, label)
        for text, label in zip(("the cat", "中国 " * 12, "the", "q q"), labels[kind], strict=True)
    ]
    task = Classify(max_length=10).settle(Dataset(path=tmp_path, format="", examples=examples))
    assert task.kind == kind or kind == "regression"
    if kind == "regression":  # whole numbers could be classes
        task = Classify(max_length=10, kind="regression").settle(
            Dataset(path=tmp_path, format="", examples=examples)
        )
    instances = task.encode(examples, TOKENIZER)
    torch.manual_seed(0)  # dropout
    model = tiny_model("sequence", task.num_labels).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = TaskLoader(instances, batch_size=3, micro_tokens=24, end_step=100)
    for step in loader:
        for batch in step.micro_batches:
            (term,) = task.objective(model, batch).values()
            (term.total / step.num_targets["task"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    predictions = task.decode(examples, instances, predict(model, instances))
    scores = task.score(examples, predictions)
    assert scores[task.metric] > 0.95


def test_one_training_example_is_enough() -> None:
    task = Classify(kind="classes", labels=("x", "y"))
    instances = task.encode([example("a", None, "y")], TOKENIZER)
    loader = TaskLoader(instances, batch_size=32, end_step=3)
    assert [(s.number, s.epoch, s.num_targets["task"]) for s in loader] == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 2, 1),
    ]


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("GLUE/CoLA/train.tsv", 8551),
        ("GLUE/CoLA/test.tsv", 1063),
        ("GLUE/SST-2/dev.tsv", 872),
        ("GLUE/MRPC/train.tsv", 3668),
        ("GLUE/MRPC/test.tsv", 1725),
        ("GLUE/STS-B/dev.tsv", 1500),
        ("GLUE/RTE/test.tsv", 3000),
        ("GLUE/WNLI/train.tsv", 635),
        ("GLUE/QNLI/dev.tsv", 5463),
        ("GLUE/diagnostic/diagnostic.tsv", 1104),
        ("GLUE/QQP-subset/train_sample.tsv", 23496),
        ("SNLI/snli_1.0_test.jsonl", 10_000 - 176),
        ("ChnSentiCorp/dev.tsv", 1200),
        ("AFQMC/dev.txt", 4316),
        ("LCQMC/dev.txt", 8802),
        ("XNLI-zh/dev.tsv", 2490),
        ("IMDB/test.jsonl", 2500),
    ],
)
def test_real_files_have_all_their_rows(
    unpacked: Callable[[str], Path], path: str, count: int
) -> None:
    name, _, rest = path.partition("/")
    data = Classify().read(unpacked(name) / rest, skip_bad="QQP" in path)
    assert len(data.examples) == count
    assert data.problems.num_skipped == (176 if name == "SNLI" else "QQP" in path)
