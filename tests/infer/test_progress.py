"""A bar where people wait: of many answers, and inside of one; never for what is fast."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertie
from bertie.infer import batches
from bertie.infer.engine import Engine
from bertie.infer.progress import PART, tell_part, watch, watch_one
from tests.infer.models import SENTENCES, make_directory

LONG = " ".join(SENTENCES * 5)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return bertie.load(make_directory(tmp_path_factory.mktemp("progress")))


def be_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose user has no patience."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("bertie.infer.progress.PATIENCE_S", -1.0)


@pytest.mark.parametrize("verb", ["embed", "score"])
@pytest.mark.parametrize("many", [False, True])
def test_one_long_text_has_a_bar(
    verb: str,
    many: bool,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    be_terminal(monkeypatch)
    monkeypatch.setattr(batches, "BATCH_TOKENS", 100)
    getattr(engine, verb)([LONG] if many else LONG)
    assert PART in capsys.readouterr().err


def test_what_is_fast_or_not_to_be_shown_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch)
    bertie.load(make_directory(tmp_path), show=False).embed(LONG)
    tell_part(1, 2)  # to nobody
    assert capsys.readouterr().err == ""


def test_those_who_do_not_wait_are_not_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch)

    def answers() -> Iterator[int]:
        for number in range(3):
            tell_part(number, 3)
            yield number

    found = []
    for answer in watch(answers(), 3):
        before = capsys.readouterr().err
        tell_part(77, 99)  # of other work
        assert "77/99" not in capsys.readouterr().err
        found.append((answer, before))
    assert [answer for answer, _ in found] == [0, 1, 2]
    assert watch_one(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        watch_one(lambda: 1 // 0)


def test_without_a_terminal_there_is_silence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertie.infer.progress.PATIENCE_S", -1.0)
    engine.embed(LONG)
    assert list(watch(iter("ab"), 2)) == ["a", "b"]
    assert capsys.readouterr().err == ""
