"""Choices: any number of options, each with its context."""

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.tasks.choice import Choice, ChoiceExample
from bertie.tasks.steps import TaskLoader, predict
from tests.tasks.toys import TEXTS, TOKENIZER, tiny_model

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)


def example(context: str, options: list[str], label: int | None) -> ChoiceExample:
    return ChoiceExample(place="here", id="0", context=context, options=tuple(options), label=label)


CHOICES = st.tuples(TEXTS, st.lists(TEXTS, min_size=2, max_size=6))


@given(found=st.lists(CHOICES, min_size=1, max_size=4), data=st.data())
@settings(max_examples=25)
def test_gold_choices_come_back(found: list[tuple[str, list[str]]], data: st.DataObject) -> None:
    task = Choice(max_length=16)
    examples = [
        example(context, options, data.draw(st.integers(0, len(options) - 1)))
        for context, options in found
    ]
    instances = task.encode(examples, TOKENIZER)
    assert np.diff(instances.bounds).max() <= 16
    outputs = []
    for number, one in enumerate(examples):
        num_inputs, num_options = len(instances.inputs_of(number)), len(one.options)
        assert num_inputs % num_options == 0
        for place in range(num_inputs):
            outputs.append(np.array([9.0 * (place % num_options == one.label)]))
    predictions = task.decode(examples, instances, outputs)
    assert [p.label for p in predictions] == [e.label for e in examples]
    assert task.score(examples, predictions) == {"accuracy": 1}


def test_a_long_context_becomes_windows_that_share_the_weight() -> None:
    task = Choice(max_length=11)
    one = example("a b c d e f g h", ["k l", "m"], 1)
    instances = task.encode([one], TOKENIZER)
    texts = [TOKENIZER.decode(part) for part in np.split(instances.ids, instances.bounds[1:-1])]
    assert all(text.endswith(option) for text, option in zip(texts, ["k l", "m"] * 2, strict=True))
    assert "".join(sorted(set("".join(texts[::2]).replace(" ", "")))) == "abcdefghkl"
    assert instances.weights.tolist() == [0.5, 0.5] and instances.labels.tolist() == [1, 1]
    assert instances.counts == {"texts in windows": 1, "windows made of them": 2}
    outputs = [np.array([value]) for value in (3.0, 0.0, 0.0, 2.0)]
    (found,) = task.decode([one], instances, outputs)
    assert found.label == 0  # 1.5 against 1
    assert found.scores.tolist() == pytest.approx([0.6225, 0.3775], abs=1e-4)


def test_windows_of_fewer_come_again_and_keep_in_step() -> None:
    """An option that leaves more room needs fewer windows: each of them comes about as often."""
    task = Choice(max_length=24, stride=3)
    found = example("a b c d e f g h i j k l m n o p " * 3, ["a", "b " * 4, "c " * 9], 1)
    instances = task.encode([found], TOKENIZER)
    inputs = [instances.input(number).ids.tolist() for number in instances.inputs_of(0)]
    times = [[len(list(same)) for _, same in groupby(inputs[option::3])] for option in range(3)]
    assert len(times[0]) < len(times[2]) == len(instances)
    assert all(max(own) - min(own) <= 1 for own in times)


def test_what_fits_is_one_window() -> None:
    one = example("a b c", ["k l", "m"], 1)
    whole, cut = (Choice(truncate=t).encode([one], TOKENIZER) for t in (False, True))
    assert whole.ids.tolist() == cut.ids.tolist() and len(whole) == len(cut) == 1


def test_cut_off_the_context_loses_its_beginning_and_it_is_counted() -> None:
    task = Choice(max_length=11, truncate=True)
    one = example("a b c d e f g h", ["k l", "m n o p r s t u"], 0)
    instances = task.encode([one], TOKENIZER)
    first, second = np.split(instances.ids, instances.bounds[1:-1])
    assert TOKENIZER.decode(first) == "c d e f g h k l"
    assert TOKENIZER.decode(second) == "e f g h m n o p"
    assert instances.counts == {"contexts cut off": 2, "options cut off": 1}


def test_what_fits_is_the_pair() -> None:
    instances = Choice().encode([example("the cat", ["a", "b c"], 1)], TOKENIZER)
    pairs = [TOKENIZER.encode("the cat", option).ids for option in ("a", "b c")]
    assert instances.ids.tolist() == np.concatenate(pairs).tolist()


def test_the_loss_is_over_the_options_of_each_example() -> None:
    examples = [example("a", ["b", "c", "d"], 2), example("e", ["f", "g"], 0)]
    task, model = Choice(), tiny_model("choice", 1)
    instances = task.encode(examples, TOKENIZER)
    scores = torch.tensor(np.concatenate(predict(model, instances)))
    expected = -(scores[:3].log_softmax(0)[2] + scores[3:].log_softmax(0)[0]) / 2
    for micro_tokens in (1, 1000):
        step = TaskLoader(instances, batch_size=2, micro_tokens=micro_tokens).step(0)
        totals = [task.objective(model, batch)["task"].total for batch in step.micro_batches]
        torch.testing.assert_close(sum(totals) / step.num_targets["task"], expected)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_swag_and_hellaswag_are_read(tmp_path: Path) -> None:
    row = '0,v,7,"A, b. She",A b.,She,gold,"runs, far.",sits.,eats.,sleeps.,2'
    data = Choice().read(write(tmp_path / "a.csv", f"{SWAG}\n{row}\n"), needs_labels=True)
    (one,) = data.examples
    assert (one.context, one.options[0], one.label) == ("A b.", "She runs, far.", 2)
    assert data.columns["options"] == "ending0,ending1,ending2,ending3"
    line = json.dumps({"ind": 4, "query": "A:", "choices": ["b", "c", "d"], "gold": 1})
    (two,) = Choice().read(write(tmp_path / "a.jsonl", f"{line}\n")).examples
    assert (two.context, two.options, two.label) == ("A:", ("b", "c", "d"), 1)


def test_columns_can_be_named_and_labels_be_letters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "satz,eins,zwei,antwort\nx,y,z,B\n")
    columns = {"context": "satz", "options": "eins,zwei", "label": "antwort"}
    data = Choice(columns=columns).read(path, needs_labels=True)
    assert (data.examples[0].options, data.examples[0].label) == (("y", "z"), 1)
    again = Choice().settle(data).read(write(tmp_path / "b.csv", "satz,eins,zwei\nx,y,z\n"))
    assert not again.is_labelled and again.examples[0].label is None
    with pytest.raises(UserError, match="no column 'drei' for options 1"):
        Choice(columns={**columns, "options": "eins,drei"}).read(path)
    with pytest.raises(UserError, match="which column is the context"):
        Choice().read(path)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("x,y,,0", "an empty option"),
        ("x,y,z,2", "a label that is not an option"),
        (",y,z,0", "empty text in the column 'context'"),
    ],
)
def test_bad_rows_are_named_or_skipped(tmp_path: Path, row: str, what: str) -> None:
    path = write(tmp_path / "a.csv", f"context,option1,option2,label\na,b,c,0\n{row}\n")
    with pytest.raises(UserError, match=rf"a\.csv, line 3: {what}"):
        Choice().read(path)
    data = Choice().read(path, skip_bad=True)
    assert len(data.examples) == 1 and data.problems.num_skipped == 1


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ("1 2 2", [0, 1, 1]),
        ("2 1 B", [1, 0, 1]),
        ("0 1 1", [0, 1, 1]),
        ("1 1 1", [1, 1, 1]),
        ("A B A", [0, 1, 0]),
    ],
)
def test_labels_may_count_from_one(tmp_path: Path, labels: str, numbers: list[int]) -> None:
    """As in WinoGrande; and it is said. With a 0 they count from 0."""
    rows = [f"a{n},b,c,{label}" for n, label in enumerate(labels.split())]
    path = write(tmp_path / "a.csv", "\n".join(["context,option1,option2,answer", *rows, ""]))
    for skip_bad in (False, True):
        data = Choice().read(path, skip_bad=skip_bad, needs_labels=True)
        assert [example.label for example in data.examples] == numbers
        assert ("labels from 1" in data.format) == ("2" in labels)


@pytest.mark.parametrize(
    ("path", "count"),
    [("SWAG/train.csv", 91), ("SWAG/test.csv", 7), ("HellaSwag/val.jsonl", 10042)],
)
def test_real_files_have_all_their_rows(
    unpacked: Callable[[str], Path], path: str, count: int
) -> None:
    name, _, rest = path.partition("/")
    assert len(Choice().read(unpacked(name) / rest, needs_labels=True).examples) == count
