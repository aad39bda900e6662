"""The tutorial is run: every `sh` block, in order, and its Python, on little text, in toy size.

Blocks of `console` (with a $ in front) need other machines and are not run; a `toml` block becomes
the file that its first line names.
"""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertie.cli import app
from tests.commands import python
from tests.test_recipes import TUNING, shrink
from tests.tuned import write_choices, write_classes, write_questions, write_tags

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
# Not every run has them.
OPTIONAL = {"tensorboard/", "bad-step-*.safetensors"}
TINY_TUNING = ("train.budget=2 steps", "train.device=cpu", "tune.batch_size=4")
SUBJECTS = ("text", "cat", "sea", "answer", "old city", "first letter", "piece", "question")
VERBS = ("looks like", "is not", "comes after", "does not know", "was once", "waits for")
NAMES = ("北京", "上海", "大学", "城市", "天气", "图书馆", "问题", "老师")


def write_text(folder: Path) -> None:
    """Three folders of some hundred documents, of sentences that follow from one another."""
    for name, sentence in {
        "my_text": lambda n, k: f"The {SUBJECTS[n % 8]} {VERBS[k % 6]} the {SUBJECTS[k % 8]}.",
        "papers": lambda n, k: f"Gene {n % 7} regulates phosphorylation of protein {k % 9}.",
        "zh_text": lambda n, k: f"{NAMES[n % 8]}是中国的{NAMES[k % 8]}，第{n}号。",
    }.items():
        documents = [
            f"{n} " + " ".join(sentence(n + i, n * i + n % 5) for i in range(3 + n % 4))
            for n in range(300)
        ]
        (folder / name).mkdir()
        (folder / name / "a.txt").write_text("\n\n".join(documents), encoding="utf-8")
    write_classes(folder / "reviews.csv")
    write_tags(folder / "names.conll")
    write_questions(folder / "questions.json", unanswerable=True)
    write_choices(folder / "endings.csv")


def run(command: str) -> None:
    program, *arguments = shlex.split(command, comments=True)
    assert program == "bertie"
    if arguments[0] == "pretrain":
        arguments += [part for one in shrink(arguments[1]) for part in ("--set", one)]
    if arguments[0] == "finetune":
        arguments += [part for one in TINY_TUNING for part in ("--set", one)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
    assert done.output


def test_every_command_and_snippet_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    for language, block in BLOCKS:
        if language == "sh":
            for command in block.splitlines():
                run(command)
        elif language == "python":
            done = python(block)
            assert done.returncode == 0, block + done.stderr
        elif language == "toml":
            name = block.splitlines()[0].removeprefix("# ")
            Path(name).write_text(block, encoding="utf-8")
    check_files(Path("my_run"))
    check_files(Path("sentiment"))


def check_files(run: Path) -> None:
    """A run has the files of the tutorial's table, and no others."""
    table = TEXT.split(f"| in `{run}/` |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.M))))
    found = {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()}
    assert named - OPTIONAL <= found <= named


def test_blocks_are_of_a_known_kind_and_only_console_has_a_prompt() -> None:
    for language, block in BLOCKS:
        assert language in ("sh", "python", "toml", "console", "text")
        assert block.startswith("$ ") == (language == "console")
    assert sum(language == "sh" for language, _ in BLOCKS) >= 8


def test_every_recipe_is_in_the_table() -> None:
    from tests.test_recipes import NAMES as RECIPES

    every = {*RECIPES, *TUNING}
    assert {name for name in every if f"| `{name}` |" in TEXT} == every


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
