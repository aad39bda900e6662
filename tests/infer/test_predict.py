"""A run that was killed anywhere ends with the bytes of one that was not."""

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertie
from bertie.errors import UserError
from bertie.evaluate import evaluate_file
from bertie.infer import verb
from bertie.infer.answers import Chosen, Tagged
from bertie.infer.engine import Engine
from bertie.infer.examples import make_choice, make_text
from bertie.infer.file_examples import read_examples
from bertie.infer.predict import draft_path, keep_whole_lines, make_line, write_lines
from bertie.infer.rows import STDIN
from bertie.tasks.classify import Classify
from bertie.tasks.tag import Tag
from bertie.tasks.task import Rejects
from tests.infer.models import SENTENCES, make_tuned

EXAMPLES = [make_text(text * (1 + n % 3)) for n, text in enumerate(SENTENCES * 6)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    task = Classify(kind="classes", labels=("a", "b"), max_length=20)
    return bertie.load(make_tuned(tmp_path_factory.mktemp("predict"), task))


@pytest.mark.parametrize("cut", [0, 1, 30, 100, 101, 555, 100_000])
def test_killed_anywhere_is_never_killed(
    cut: int, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 100)
    verb_of_task = engine.for_task(engine.task)
    whole, out, draft = tmp_path / "whole", tmp_path / "out", tmp_path / "draft"
    assert list(write_lines(verb_of_task, EXAMPLES, whole, tmp_path / "x"))[-1] == len(EXAMPLES)
    assert len(whole.read_bytes().splitlines()) == len(EXAMPLES)
    draft.write_bytes(whole.read_bytes()[:cut])
    numbers = list(write_lines(verb_of_task, EXAMPLES, out, draft))
    assert numbers == list(range(whole.read_bytes()[:cut].count(b"\n"), len(EXAMPLES) + 1))
    assert out.read_bytes() == whole.read_bytes()
    assert not draft.exists()


def test_answers_are_in_the_draft_before_the_end(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 100)
    lives = write_lines(
        engine.for_task(engine.task), EXAMPLES, tmp_path / "out", tmp_path / "draft"
    )
    assert list(islice(lives, 9))[-1] == 8
    lives.close()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "draft").read_bytes().count(b"\n") == 8


def test_a_second_run_of_the_same_command_is_refused(engine: Engine, tmp_path: Path) -> None:
    out, draft = tmp_path / "out", tmp_path / "draft"
    lives, again = (
        write_lines(engine.for_task(engine.task), EXAMPLES, out, draft) for _ in range(2)
    )
    assert list(islice(lives, 3))[-1] == 2
    with pytest.raises(UserError, match=f"another run is writing {out}"):
        next(again)
    assert list(lives)[-1] == len(EXAMPLES)
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == [
        one.id for one in EXAMPLES
    ]


@given(data=st.binary() | st.text(alphabet="a\n").map(str.encode))
def test_what_is_kept_are_whole_lines(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draft = tmp_path_factory.getbasetemp() / "lines"
    draft.write_bytes(data)
    with draft.open("r+b") as file:
        assert keep_whole_lines(file) == data.count(b"\n")
        file.write(b"more")
    assert draft.read_bytes() == data[: data.rfind(b"\n") + 1] + b"more"


def test_a_draft_belongs_to_its_command(engine: Engine, tmp_path: Path) -> None:
    out, data = tmp_path / "folder" / "out.jsonl", tmp_path / "data"
    data.write_text("a")
    same = draft_path(out, engine.source, data, "settings")
    assert draft_path(out, engine.source, data, "settings") == same
    assert draft_path(out, engine.source, data, "others") != same
    os.utime(data, (1, 1))
    assert draft_path(out, engine.source, data, "settings") != same
    stdin = draft_path(out, engine.source, STDIN)
    stdin.write_text("of another stream")
    assert draft_path(out, engine.source, STDIN) == stdin and not stdin.read_bytes()
    out.write_text("somebody's")
    with pytest.raises(UserError, match=r"out\.jsonl exists; remove it"):
        draft_path(out, engine.source, data)


def test_half_a_character_is_written_as_json_has_it() -> None:
    example = make_choice(("a", ["b", "\ud800"]))
    line = make_line(example, Chosen(label=1, option="\ud800", scores=(0.0, 1.0)))
    assert json.loads(line) == {
        "id": "",
        "label": 1,
        "option": "\ud800",
        "scores": [0.0, 1.0],
        "num_cut": 0,
    }


def test_what_is_no_number_is_not_written_as_one() -> None:
    """JSON has no NaN."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        make_line(make_text("a"), Chosen(label=0, option="b", scores=(float("nan"),)))


@pytest.mark.parametrize("num_sentences", [1, 2, 5])
def test_sentences_are_read_with_their_document_however_the_file_is_portioned(
    num_sentences: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Tag(
        kind="spans",
        labels=("O", "B-X", "I-X"),
        level="word",
        max_length=40,
        context="document",
        metric="f1",
    )
    words = " ".join(SENTENCES).split()
    lines = []
    for number in range(30):
        lines += ["-DOCSTART- O", ""] if number % num_sentences == 0 else []
        lines += [f"{word} O" for word in words[number : number + 1 + number % 4]] + [""]
    (tmp_path / "a.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = make_tuned(tmp_path, task)
    scores = evaluate_file(model, tmp_path / "a.conll")[1].predictions
    monkeypatch.setattr(verb, "FIRST_TOKENS", 4)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 30)
    engine = bertie.load(model, device="cpu")
    tokenizer = engine.tokenizer
    examples = list(read_examples(tmp_path / "a.conll", task, tokenizer, Rejects()))
    reader = engine.for_task(task)
    assert len(list(reader.chunks(examples))) > 4
    for found, wanted in zip(reader.each(examples), scores, strict=True):
        assert isinstance(found, Tagged)
        np.testing.assert_allclose([word.score for word in found.words], wanted.scores, atol=1e-5)
