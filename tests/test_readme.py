"""Every command and every piece of Python in the READMEs runs, in order, as a newcomer would."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import bertie
from bertie.embedded import VARIABLE
from tests.checkpoint.test_importing import write_google
from tests.commands import bertie as typed
from tests.commands import python
from tests.tuned import write_task

ROOT = Path(__file__).parents[1]
READMES = ["README.md", "README.zh-CN.md"]
TASK_FILES = {
    "classify": "reviews.csv",
    "tag": "ner.conll",
    "span": "squad.json",
    "choice": "swag.csv",
}


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with the files that the README speaks of, its my_text/ in two languages."""
    tmp_path = tmp_path_factory.mktemp("readme")
    text = tmp_path / "my_text"
    text.mkdir()
    english = [
        f"Paris is in France, and sentence {n} says so; is the text long?" for n in range(300)
    ]
    chinese = [f"巴黎在法国，这是第{n}句。一段对模型来说太长的文字。在哪里？" for n in range(300)]
    (text / "english.txt").write_text("\n\n".join(english), encoding="utf-8")
    (text / "chinese.txt").write_text("\n\n".join(chinese), encoding="utf-8")
    for task, name in TASK_FILES.items():
        write_task(task, tmp_path).rename(tmp_path / name)
    write_google(tmp_path / "google_bert")  # a tiny one, as Google's code would write it
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*specials, *(f"piece{number}" for number in range(78))]
    (tmp_path / "google_bert" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return tmp_path


def check(done: subprocess.CompletedProcess, what: str) -> str:
    """What it printed."""
    assert done.returncode == 0, f"{what}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_command_and_snippet_runs(folder: Path) -> None:
    """The commands are those of both languages; see the next test."""
    commands = [line for block in blocks(READMES[0], "sh") for line in block.splitlines() if line]
    assert len(commands) >= 8
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        if program == "make":  # its recipe is `bertie quickstart` and this very test run
            words = ["make", "-n", "-C", str(ROOT), *arguments]
            assert check(subprocess.run(words, capture_output=True, text=True), command)
        else:
            assert program == "bertie"
            assert check(typed(*arguments, cwd=folder), command)
    for snippet in (snippet for name in READMES for snippet in blocks(name, "python")):
        assert check(python(snippet, cwd=folder), snippet)


def test_both_languages_show_the_same_commands() -> None:
    english, chinese = (
        [
            shlex.split(line, comments=True)
            for block in blocks(name, "sh")
            for line in block.splitlines()
        ]
        for name in READMES
    )
    assert english == chinese


@pytest.mark.parametrize("name", READMES)
def test_the_model_that_ships_guesses_what_is_said_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    text = (ROOT / name).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*\[MASK\].*) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    model = bertie.load()
    for sentence, said in rows:
        guesses = re.findall(r"(\w+) ([0-9.]+)%", said)
        (found,) = model.fill(sentence, top=3).masks
        assert [guess.piece for guess in found] == [piece for piece, _ in guesses]
        for guess, (_, percent) in zip(found, guesses, strict=True):
            assert 100 * guess.probability == pytest.approx(float(percent), abs=0.06)


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
