"""Answers: cut from the original text, the best of all windows, or none at all."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.tasks.instances import Instances
from bertie.tasks.questions import Answer, SpanExample
from bertie.tasks.span import Span
from bertie.tasks.steps import TaskLoader, predict
from bertie.tasks.task import Dataset
from bertie.text.sequences import Pieces
from tests.tasks.toys import TEXTS, TOKENIZER, tiny_model

SMALL = Span(max_length=24, stride=5, max_question=8, max_answer=100)


def question(
    context: str, *answers: tuple[str, int], text: str = "the cat?", id: str = "0"
) -> SpanExample:
    found = tuple(Answer(text=answer, start=start) for answer, start in answers)
    return SpanExample(place="here", id=id, question=text, context=context, answers=found)


def gold_outputs(instances: Instances) -> list[np.ndarray]:
    """(L, 2) of each window: sure of its target; an answer in a window beats [CLS] of others."""
    outputs = []
    lengths = np.diff(instances.bounds)
    for length, (start, end) in zip(lengths, instances.labels, strict=True):
        logits = np.zeros((length, 2), np.float32)
        height = 9 if start else 3
        logits[start, 0] = logits[end, 1] = height
        outputs.append(logits)
    return outputs


def draw_answer(pieces: Pieces, data: st.DataObject) -> tuple[int, int]:
    """From where to where in the text some pieces in a row go."""
    first = data.draw(st.integers(0, len(pieces.ids) - 1))
    last = data.draw(st.integers(first, min(first + 5, len(pieces.ids) - 1)))
    return int(pieces.starts[first]), int(pieces.ends[last])


@given(context=TEXTS, data=st.data(), text=TEXTS)
@settings(max_examples=60)
def test_a_gold_answer_of_whole_pieces_comes_back(
    context: str, data: st.DataObject, text: str
) -> None:
    pieces = TOKENIZER.split(context)
    if not len(pieces.ids):
        return
    start, end = draw_answer(pieces, data)
    example = question(context, (context[start:end], start), text=text)
    instances = SMALL.encode([example], TOKENIZER)
    assert np.diff(instances.bounds).max() <= 24
    if not instances.labels.any():
        return  # no window holds all of it
    (prediction,) = SMALL.decode([example], instances, gold_outputs(instances))
    assert (prediction.start, prediction.end) == (start, end)
    assert prediction.text == context[start:end]
    assert SMALL.score([example], [prediction])["exact"] == 1


@given(context=TEXTS, data=st.data())
@settings(max_examples=60)
def test_a_window_points_at_the_answer_if_it_holds_all_of_it(
    context: str, data: st.DataObject
) -> None:
    pieces = TOKENIZER.split(context)
    if not len(pieces.ids):
        return
    start, end = draw_answer(pieces, data)
    instances = SMALL.encode([question(context, (context[start:end], start))], TOKENIZER)
    for number, label in enumerate(instances.labels):
        places = instances.places_of(number)
        if start in places[:, 0] and end in places[:, 1]:
            assert (places[label[0], 0], places[label[1], 1]) == (start, end)
        else:
            assert label.tolist() == [0, 0]


@given(context=TEXTS)
@settings(max_examples=30)
def test_the_windows_hold_the_whole_text(context: str) -> None:
    instances = SMALL.encode([question(context)], TOKENIZER)
    pieces = TOKENIZER.split(context)
    places = instances.places
    assert places is not None
    seen = {tuple(place) for place in places.tolist()} - {(-1, -1)}
    assert seen == set(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))
    whole = TOKENIZER.encode("the cat?", context)
    if len(whole.ids) <= 24:
        assert instances.ids.tolist() == whole.ids.tolist()
    else:
        assert len(instances) > 1


def test_windows_without_the_answer_point_at_cls() -> None:
    context = "a b c d e f g h k l m n o p r s t u v w"
    example = question(context, ("w", context.index("w")))
    instances = SMALL.encode([example], TOKENIZER)
    inside = [bool(label.any()) for label in instances.labels]
    assert inside[-1] and not inside[0] and instances.weights.all()
    for number in np.flatnonzero(inside):
        start, end = instances.labels[number]
        place = instances.places_of(number)[start]
        assert start == end and context[place[0] : place[1]] == "w"


def test_the_best_over_windows_wins_and_is_short_enough() -> None:
    context = "a b c d e f g h k l m n o p r s t u v w"
    task = Span(max_length=24, stride=5, max_question=8, max_answer=2, may_be_unanswerable=True)
    example = question(context)
    instances = task.encode([example], TOKENIZER)
    outputs = [np.zeros((n, 2), np.float32) for n in np.diff(instances.bounds)]
    places = instances.places_of(1)
    row = int(np.flatnonzero(places[:, 0] == context.index("k"))[0])
    outputs[1][row, 0] = outputs[1][row + 1, 1] = 5
    outputs[1][row + 4, 1] = 8  # too far from the start; alone it is worth 8
    for output in outputs:
        output[0] = 4.5
    (best,) = task.decode([example], instances, outputs)
    assert (best.text, best.no_answer) == ("k l", -1.0)
    outputs[1][0] = 6
    assert task.decode([example], instances, outputs)[0].text == "k l"  # the lowest [CLS] counts
    for output in outputs:
        output[0] = 6
    (none,) = task.decode([example], instances, outputs)
    assert (none.text, none.no_answer) == ("", 2.0)
    assert none.candidates[0].text == "k l" and len(none.candidates) == 20


def test_an_answer_in_two_windows_is_worth_its_better_score() -> None:
    context = "a b c d e f g h k l m n o p r s t u v w"
    example = question(context)
    instances = SMALL.encode([example], TOKENIZER)
    outputs = [np.zeros((n, 2), np.float32) for n in np.diff(instances.bounds)]
    holding = [
        (number, int(row))
        for number in range(len(instances))
        for row in np.flatnonzero(instances.places_of(number)[:, 0] == context.index("k"))
    ]
    assert len(holding) > 1
    for scores in ((3, 2), (2, 3)):
        for (number, row), score in zip(holding, scores, strict=False):
            outputs[number][row] = score
        (found,) = SMALL.decode([example], instances, outputs)
        assert (found.text, found.candidates[0].score) == ("k", 6)


def test_chinese_answers_may_be_longer() -> None:
    """Their pieces are characters."""
    for context, language, most in (("the cat", "english", 30), ("中国人大学", "chinese", 80)):
        data = Dataset(path=Path("x"), format="", examples=[question(context)])
        task = Span().settle(data)
        assert (task.language, task.max_answer) == (language, most)
        assert ("average" in task.metrics) == (language == "chinese")
        assert Span(max_answer=9).settle(data).max_answer == 9


def test_the_threshold_is_fitted() -> None:
    task = Span(max_length=40, max_question=8, may_be_unanswerable=True)
    examples = [question("a b c", ("b", 2), id="0"), question("a b c", id="1")]
    instances = task.encode(examples, TOKENIZER)
    outputs = [np.zeros((n, 2), np.float32) for n in np.diff(instances.bounds)]
    for output, null in zip(outputs, (4.0, 6.0), strict=True):
        row = int(np.flatnonzero(instances.places_of(0)[:, 0] == 2)[0])
        output[row], output[0] = 3, null
    assert task.score(examples, task.decode(examples, instances, outputs))["f1"] == 0.5
    tuned = task.tune(examples, instances, outputs)
    assert tuned.threshold == 4.0  # half-way between 2 and 6
    empty = question("", id="2")  # no candidate: its score is beyond all others
    more = task.encode([*examples, empty], TOKENIZER)
    rows = int(np.diff(more.bounds)[-1])
    again = task.tune([*examples, empty], more, [*outputs, np.zeros((rows, 2), np.float32)])
    assert again.threshold == 4.0
    assert tuned.score(examples, tuned.decode(examples, instances, outputs))["f1"] == 1


def test_the_threshold_of_chinese_answers_is_that_of_their_f1() -> None:
    """Half an answer is worth something in Chinese, and nothing as an English word."""
    task = Span(
        max_length=40, max_question=8, may_be_unanswerable=True, language="chinese", max_answer=9
    )
    examples = [question("中国人", ("中国人", 0), id="0"), question("中国人", id="1")]
    instances = task.encode(examples, TOKENIZER)
    outputs = [np.zeros((n, 2), np.float32) for n in np.diff(instances.bounds)]
    for output, null in zip(outputs, (4.0, 6.0), strict=True):
        rows = [int(np.flatnonzero(instances.places_of(0)[:, 0] == n)[0]) for n in (0, 1)]
        output[rows[0], 0] = output[rows[1], 1] = 3
        output[0] = null
    tuned = task.tune(examples, instances, outputs)
    assert tuned.threshold == 4.0  # half-way between 2 and 6
    scores = tuned.score(examples, tuned.decode(examples, instances, outputs))
    assert scores["f1"] == pytest.approx((0.8 + 1) / 2) and scores["no_answer_exact"] == 1


ROME = {"id": "a", "question": "What?", "answers": [{"text": "Rome", "answer_start": 0}]}
NONE = {"id": "b", "question": "Who?", "answers": [], "is_impossible": True}
PARAGRAPH = {"context": "Rome is old.", "qas": [ROME, NONE]}
SQUAD = {"data": [{"title": "T", "paragraphs": [PARAGRAPH]}]}


def write(path: Path, tree: object) -> Path:
    text = tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    return path


def test_squad_is_read(tmp_path: Path) -> None:
    data = Span().read(write(tmp_path / "a.json", SQUAD), needs_labels=True)
    assert [(e.id, e.title, e.answers) for e in data.examples] == [
        ("a", "T", (Answer(text="Rome", start=0),)),
        ("b", "T", ()),
    ]
    task = Span().settle(data)
    assert (task.may_be_unanswerable, task.language) == (True, "english")


def test_cmrc_and_tables_are_read(tmp_path: Path) -> None:
    cmrc = [
        {
            "context_id": "D",
            "context_text": "他在北京，北京很大。",
            "qas": [{"query_id": "q", "query_text": "哪里？", "answers": ["北京", 20.0]}],
        }
    ]
    data = Span().read(write(tmp_path / "a.json", cmrc), needs_labels=True)
    assert data.examples[0].answers == (Answer(text="北京", start=2), Answer(text="20.0", start=-1))
    assert Span().settle(data).language == "chinese"
    lines = '{"question": "q", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}}\n'
    (row,) = Span().read(write(tmp_path / "b.jsonl", lines), needs_labels=True).examples
    assert row.answers == (Answer(text="b", start=2),)
    table = "question,context,answer,answer_start\nq,a b,b,2\nr,a b,,\n"
    data = Span().read(write(tmp_path / "c.csv", table), needs_labels=True)
    assert [e.answers for e in data.examples] == [(Answer(text="b", start=2),), ()]
    unknown = Span().read(write(tmp_path / "d.csv", "question,context\nq,a b\n"))
    assert not unknown.is_labelled and unknown.examples[0].answers is None


@pytest.mark.parametrize(
    "answers",
    [
        [{"text": "b", "answer_start": 2}, {"text": "a b", "answer_start": 0}],
        {"text": ["b", "a b"], "answer_start": [2, 0]},
        [{"text": ["b"], "answer_start": [2]}, {"text": ["a b"], "answer_start": [0]}],
        [{"text": "b"}, {"text": "a b"}],
        ["b", "a b"],
    ],
)
def test_answers_of_rows_come_in_many_shapes(tmp_path: Path, answers: object) -> None:
    row = json.dumps({"question": "q", "context": "a b", "answers": answers})
    (example,) = Span().read(write(tmp_path / "a.jsonl", row), needs_labels=True).examples
    assert example.answers == (Answer(text="b", start=2), Answer(text="a b", start=0))


@pytest.mark.parametrize("answers", [[{"answer": "b"}], [["b"]], [True], {"start": 2}], ids=str)
def test_an_answer_that_is_no_text_is_named_or_left_out(tmp_path: Path, answers: object) -> None:
    rows = [{"question": "q", "context": "a b", "answers": one} for one in ("b", answers)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match=r"line 2: an answer that is not text; found .*--skip-bad"):
        Span().read(path)
    data = Span().read(path, skip_bad=True)
    assert len(data.examples) == 1 and data.problems.num_skipped == 1


def test_a_file_without_the_column_of_answers_has_none(tmp_path: Path) -> None:
    """The model knows the column's name from training; there, all could be answered."""
    path = write(tmp_path / "a.jsonl", '{"question": "q", "context": "a b"}')
    data = Span(columns={"answer": "answers"}).read(path)
    assert not data.is_labelled and data.examples[0].answers is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"question": 5, "answers": []}, "found question 5, which is not text"),
        ({"answers": [{"text": None, "answer_start": 0}]}, "found text None, which is not text"),
        ({"answers": [{"text": "Rome", "answer_start": "x"}]}, "invalid literal"),
    ],
)
def test_what_is_no_squad_is_said(tmp_path: Path, change: dict[str, object], found: str) -> None:
    path = write(tmp_path / "a.json", squad_of(**change))
    with pytest.raises(UserError, match=f"article 1: not as SQuAD has it: .*{found}"):
        Span().read(path)


@pytest.mark.parametrize("tree", [[1, 2, 3], [], ["context_text"]], ids=str)
def test_a_list_of_anything_is_no_squad(tmp_path: Path, tree: object) -> None:
    with pytest.raises(UserError, match=r"a\.json"):
        Span().read(write(tmp_path / "a.json", tree))


def squad_of(**qa: object) -> dict[str, object]:
    paragraph = {"context": "Rome is old.", "qas": [ROME, {"id": "b", "question": "q", **qa}]}
    return {"data": [{"paragraphs": [paragraph]}]}


@pytest.mark.parametrize(
    ("qa", "what"),
    [
        ({"answers": [{"text": "Rome", "answer_start": 1}]}, "an answer that is not at its offset"),
        ({"answers": [{"text": "Rom", "answer_start": -1}]}, "an answer that is not at its offset"),
        ({"question": " ", "answers": []}, "an empty question"),
        ({"id": "a", "answers": []}, "an id for the second time"),
    ],
)
def test_bad_questions_are_named_or_skipped(
    tmp_path: Path, qa: dict[str, object], what: str
) -> None:
    path = write(tmp_path / "a.json", squad_of(**qa))
    with pytest.raises(UserError, match=rf"a\.json, question [ab]: {what}.*--skip-bad"):
        Span().read(path, needs_labels=True)
    data = Span().read(path, needs_labels=True, skip_bad=True)
    assert len(data.examples) == 1 and data.problems.counts == {what: 1}


def test_of_several_answers_one_that_is_there_will_do(tmp_path: Path) -> None:
    answers = [{"text": "x", "answer_start": -1}, {"text": "old", "answer_start": 8}]
    data = Span().read(write(tmp_path / "a.json", squad_of(answers=answers)), needs_labels=True)
    instances = Span().encode(data.examples, TOKENIZER)
    assert instances.labels.all() and instances.weights.all()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="article 1: not as SQuAD has it"):
        Span().read(write(tmp_path / "a.json", {"data": [{"paragraphs": [{"qas": []}, {}]}]}))
    with pytest.raises(UserError, match="no column of the question"):
        Span().read(write(tmp_path / "a.csv", "text,label\na,b\n"))


def test_a_tiny_model_learns_its_questions() -> None:
    examples = [
        question("the cat 中国 人 running", ("中国", 8), id="0"),
        question("a b c d e f g h k l m n o p", ("n o", 22), id="1"),
        question("a-b", id="2"),
    ]
    data = Dataset(path=Path(), format="", examples=examples)
    task = Span(max_length=20, stride=4, max_question=8, language="english").settle(data)
    instances = task.encode(examples, TOKENIZER)
    torch.manual_seed(0)
    model = tiny_model("span").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in TaskLoader(instances, batch_size=8, micro_tokens=64, end_step=120):
        for batch in step.micro_batches:
            term = task.objective(model, batch)["task"]
            (term.total / step.num_targets["task"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    outputs = predict(model, instances)
    tuned = task.tune(examples, instances, outputs)
    assert tuned.score(examples, tuned.decode(examples, instances, outputs))["f1"] == 1


@pytest.mark.parametrize(
    ("path", "count", "num_left_out"),
    [
        ("SQuAD/dev-v1.1.json", 10570, 0),
        ("SQuAD/dev-v2.0.json", 11873, 0),
        ("CMRC2018/squad-style-data/cmrc2018_dev.json", 3219, 3),
        ("CMRC2018/data/cmrc2018_dev.json", 3219, 0),
        ("CMRC2018/squad-style-data/cmrc2018_trial.json", 1002, 7),
    ],
)
def test_real_files_have_all_their_questions(
    unpacked: Callable[[str], Path], path: str, count: int, num_left_out: int
) -> None:
    name, _, rest = path.partition("/")
    file = unpacked(name) / rest
    assert len(Span().read(file).examples) == count
    data = Span().read(file, needs_labels=True, skip_bad=True)
    assert data.problems.num_skipped == num_left_out == count - len(data.examples)


def test_questions_are_whole_up_to_half_the_room() -> None:
    """Those that are longer are cut, and counted; a limit can be set."""
    question, text = " ".join("abcdefghi"), "the cat sat on the mat"
    one = SpanExample(place="here", id="0", question=question, context=text, answers=None)
    for length, limit, num_kept in ((30, None, 9), (15, None, 6), (30, 4, 4)):
        task = Span(max_length=length, stride=3, max_question=limit)
        instances = task.encode([one], TOKENIZER)
        assert int(instances.seconds[0]) == num_kept + 2
        assert instances.counts.get("questions cut off", 0) == (num_kept < 9)
    with pytest.raises(UserError, match=r"no room for a text beside a question$"):
        Span(max_length=4)
    with pytest.raises(UserError, match="beside a question of 9 pieces"):
        Span(max_length=12, max_question=9)
