"""The command line: its verbs and options, help without torch, errors in one line."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from bertie.cli import app, main, pretrain
from bertie.errors import UserError
from tests.commands import bertie
from tests.infer.models import make_directory

# Changing this list is changing what users type: say so in the CHANGELOG.
SURFACE = {
    "vocab": "text out recipe size cased against extend workers sets",
    "coverage": "text vocab sets",
    "tokenize": "text vocab file max_length as_json lower_case",
    "info": "target batch length",
    "import": "source out lower_case gelu storage",
    "prepare": "text vocab out recipe workers sets",
    "pretrain": "recipe store out start resume sets",
    "finetune": "recipe model task train dev test out seeds skip_bad sets",
    "evaluate": "model data out skip_bad sets",
    "fill": "words top as_json device precision",
    "predict": "model file out format skip_bad sets device precision",
    "embed": "words out pooling layer normalise column format device precision",
    "similar": "words query top column format device precision",
    "features": "words out task layers skip_bad sets",
    "table7": "train out model dev test seeds skip_bad sets",
    "ablate": "studies corpus data out budget size seeds on tasks at_once only_report sets",
    "export": "to out model dtype dev",
    "inspect": "words out",
    "serve": "models host port api_key_file allow_origin threads device precision recipe sets",
    "quickstart": "out",
}


def test_the_verbs_and_their_options() -> None:
    commands = typer.main.get_command(app).commands
    found = {
        name: " ".join(parameter.name for parameter in command.params)
        for name, command in commands.items()
    }
    assert found == SURFACE


@pytest.mark.parametrize("verb", ["", *SURFACE])
def test_help_teaches_with_an_example_and_loads_nothing_heavy(verb: str) -> None:
    code = (
        "import sys; sys.argv = ['bertie', *sys.argv[1:], '--help']\n"
        "from bertie.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print('LOADED', [m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, *([verb] if verb else [])]
    result = subprocess.run(arguments, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("LOADED []\n")
    assert f"bertie {verb}".strip() in result.stdout.split("Options")[0].split("Usage")[1][20:]


@pytest.mark.parametrize("verb", ["", *SURFACE])
def test_an_example_in_a_help_is_a_line_that_can_be_copied(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    command = typer.main.get_command(app)
    if verb:
        command = command.commands[verb]
    shown = CliRunner().invoke(app, [verb, "--help"] if verb else ["--help"]).stdout
    lines = [line.strip() for line in shown.splitlines()]
    blocks = re.findall(r"^```\n(.*?)^```$", inspect.cleandoc(command.help), re.DOTALL | re.M)
    assert blocks and {line for block in blocks for line in block.splitlines()} <= set(lines)


def test_help_names_every_recipe_and_study_that_ships() -> None:
    """But the quickstart's and table 7's own, which no one else is meant to take."""
    commands = typer.main.get_command(app).commands
    helps = {name: command.help for name, command in commands.items()}
    told = " ".join(helps[verb] for verb in ("vocab", "pretrain", "finetune", "table7"))
    recipes = {path.stem for path in Path(str(resources.files("bertie.recipes"))).glob("*.toml")}
    missing = {name for name in recipes if not re.search(rf"(?<![\w-]){name}(?![\w-])", told)}
    assert missing == {
        "quickstart", "quickstart-adapt", "quickstart-packages", "vocab-cased", "vocab-english"
    }  # fmt: skip
    studies = {path.stem for path in Path(str(resources.files("bertie.studies"))).glob("*.toml")}
    assert {name for name in studies if name not in helps["ablate"]} == set()


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("some words, and some more words of text " * 3, "utf-8")
    (tmp_path / "b.jsonl").write_text('{"body": "x"}', "utf-8")
    made = bertie(
        "vocab", "a.txt", "--out", "v", "--size", "60", "--set", "learn.num_unused=0", cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    assert "60 pieces from 27 words" in made.stdout
    return tmp_path / "v"


def test_tokenize_a_pair_as_json(vocab: Path) -> None:
    result = bertie("tokenize", "Some words", "more [MASK]", "--vocab", str(vocab), "--json")
    fields = json.loads(result.stdout)
    assert fields["pieces"] == ["[CLS]", "some", "words", "[SEP]", "more", "[MASK]", "[SEP]"]
    assert fields["segments"] == [0, 0, 0, 0, 1, 1, 1]
    assert fields["spans"] == [[0, 0], [0, 4], [5, 10], [0, 0], [0, 4], [5, 11], [0, 0]]


def test_tokenize_lines_of_standard_input_and_say_what_was_cut(vocab: Path) -> None:
    result = bertie(
        *("tokenize", "--file", "-", "--vocab", str(vocab), "--json", "--max-length", "4"),
        stdin="some words, and more\nsome\n",
    )
    assert [len(json.loads(line)["ids"]) for line in result.stdout.splitlines()] == [4, 3]
    assert "3 pieces were cut off" in result.stderr


def test_the_folder_one_is_in_is_a_tokenizer_too(vocab: Path) -> None:
    result = bertie("tokenize", "Some", "--vocab", ".", "--json", cwd=vocab)
    assert json.loads(result.stdout)["pieces"] == ["[CLS]", "some", "[SEP]"]


def test_tokenize_shows_a_table(vocab: Path) -> None:
    result = bertie("tokenize", "Some [bold]words", "--vocab", str(vocab))
    assert "[UNK]" in result.stdout and "Some" in result.stdout and "words" in result.stdout


def test_a_vocabulary_is_extended_and_compared(vocab: Path) -> None:
    lines = (f"protein {n} of tokenization number {n % 9}\n\n" for n in range(400))
    (vocab.parent / "c.txt").write_text("".join(lines), "utf-8")
    arguments = ("vocab", "c.txt", "--extend", "v", "--size", "75", "--out", "w")
    result = bertie(*arguments, "--set", "learn.min_count=1", cwd=vocab.parent)
    assert result.returncode == 0, result.stderr
    assert "60 of them are the old ones with their ids; 15 are new." in result.stdout
    assert "│ w " in result.stdout and "│ v " in result.stdout
    refused = bertie(*arguments[:-1], "x", "--cased", cwd=vocab.parent)
    assert refused.returncode == 2 and "leave the settings tokenizer.*" in refused.stderr


def test_coverage_compares(vocab: Path) -> None:
    text = str(vocab.parent / "a.txt")
    shutil.copytree(vocab, vocab.parent / "other")
    result = bertie("coverage", text, "--vocab", "v", "--vocab", "other", cwd=vocab.parent)
    assert result.stdout.count("1.0000") == 2


def test_what_cannot_be_read_is_told_and_the_rest_is_learned(tmp_path: Path) -> None:
    lines = [*(b'{"text": "some words"}',) * 9, b"{", b'{"body": 1}', b'{"text": "caf\xe9"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    result = bertie("vocab", "*.jsonl", "--out", "v", "--size", "150", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Skipped 2 lines or rows:\n  1 x not JSON (a.jsonl, line 10)" in result.stdout
    assert "1 x no field 'text' (a.jsonl, line 11)" in result.stdout
    assert "1 x not UTF-8, U+FFFD instead (a.jsonl, line 12)\nText in another" in result.stdout
    assert "x not JSON" in bertie("coverage", "a.jsonl", "--vocab", "v", cwd=tmp_path).stdout


def test_python_dash_m_and_version() -> None:
    assert bertie("--version").stdout.startswith("bertie 0.")


WRONG = {
    "no such file": (["vocab", "missing", "--out", "w"], "no file or folder missing"),
    "unknown setting": (
        ["vocab", "a.txt", "--out", "w", "--set", "learn.sice=5"],
        "no setting learn.sice (did you mean learn.size?); there are: learn.size",
    ),
    "unknown recipe": (["vocab", "a.txt", "--out", "w", "--recipe", "nope"], "no recipe nope"),
    "existing output": (["vocab", "a.txt", "--out", "v"], "exists"),
    "too small": (["vocab", "a.txt", "--out", "w", "--size", "5"], "do not fit into 5 pieces"),
    "output is a file": (["vocab", "a.txt", "--out", "a.txt"], "a.txt is a file"),
    "output inside a file": (["vocab", "a.txt", "--out", "a.txt/x"], "a.txt is a file"),
    "unreadable": (["vocab", "/proc/self/mem", "--out", "w"], "/proc/self/mem"),
    "no directory": (["tokenize", "x", "--vocab", "w"], "no tokenizer directory at w"),
    "three texts": (["tokenize", "x", "y", "z", "--vocab", "v"], "one text, or two"),
    "nothing to do": (["tokenize", "--vocab", "v"], "one text, or two"),
    "no room": (["tokenize", "x", "--vocab", "v", "--max-length", "1"], "do not fit into 1"),
    "bad comparison": (
        ["vocab", "a.txt", "--out", "w", "--against", "x"],
        "no tokenizer directory",
    ),
    "no text in the field": (
        ["vocab", "b.jsonl", "--out", "w"],
        "The fields are: body. Name the right one: --set corpus.field=NAME",
    ),
    "unknown option": (["vocab", "a.txt", "--nope"], "No such option"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_said_clearly_with_code_2(vocab: Path, name: str) -> None:
    arguments, message = WRONG[name]
    before = sorted(vocab.parent.rglob("*"))
    result = bertie(*arguments, cwd=vocab.parent)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(vocab.parent.rglob("*")) == before, "nothing is left behind"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("fill"))


def test_fill_shows_pieces_probabilities_and_sentences(model: Path) -> None:
    result = bertie("fill", str(model), "Paris [bold]is the [MASK] of [MASK].", "--top", "3")
    assert (result.returncode, result.stderr) == (0, "")
    assert "mask 1 of 2" in result.stdout and "mask 2 of 2" in result.stdout
    assert result.stdout.count("%") == 6
    assert result.stdout.count("Paris [bold]is the") == 7
    assert "each with its best piece: Paris [bold]is the" in result.stdout


def test_fill_shows_the_place_in_a_long_text(model: Path) -> None:
    text = f"{'the city ' * 50}of [MASK], {'its capital ' * 50}"
    result = bertie("fill", str(model), text, "--top", "1")
    assert "the city of" in result.stdout and "… │" in result.stdout
    assert len(result.stdout) < 1000


def test_fill_lines_of_standard_input_as_json(model: Path) -> None:
    result = bertie("fill", str(model), "-", "--json", stdin="a [MASK]\n\n中 [MASK] b [MASK]\n")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["text"], second["text"]) == ("a [MASK]", "中 [MASK] b [MASK]")
    assert [len(fills) for fills in second["masks"]] == [5, 5]
    assert list(first["masks"][0][0]) == ["piece", "id", "probability", "span"]
    assert first["masks"][0][0]["span"] == [2, 8]
    assert first["best"] == f"a {first['masks'][0][0]['piece']}".replace(" ##", "")


def test_bytes_that_are_no_text_do_not_stop_it(model: Path) -> None:
    result = bertie("fill", str(model), "\udcff [MASK]", "--json")
    assert json.loads(result.stdout)["text"] == "\udcff [MASK]", result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a city"], "bertie: text 1: no [MASK] in 'a city'; write [MASK] where"),
        (["[MASK]", "--top", "0"], "bertie: top is 1 to 120; found 0"),
    ],
)
def test_fill_refuses_in_one_line(model: Path, arguments: list[str], message: str) -> None:
    result = bertie("fill", str(model), *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1


def test_a_checkpoint_is_imported_and_shown(tmp_path: Path) -> None:
    from bertie.checkpoint.card import TaskCard
    from bertie.checkpoint.model_dir import save_model
    from bertie.model.bert import Bert
    from bertie.model.config import named_size

    model = Bert(named_size("1/8/2", vocab_size=11), ("sequence",))
    card = TaskCard(head="sequence", labels=("dull", "bright"))
    save_model(model, tmp_path / "source", card=card)
    (tmp_path / "source" / "vocab.txt").write_text("".join(f"p{n}\n" for n in range(11)))
    result = bertie("import", "source", "--out", "model", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(
        "bertie: nothing in source says whether its vocabulary is cased"
    )
    assert result.stderr.count("\n") == 1
    result = bertie("import", "source", "--out", "model", "--cased", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "model: 5,178 parameters; heads: sequence\n"
    result = bertie("info", "model", "--batch", "2", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    for words in ("dull, bright", "sequence, classes", "5,178", "2 x 128 tokens", "L·(4H² + 4H)"):
        assert words in result.stdout


def test_pretraining_lets_blocks_of_gpu_memory_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    for given, found in ((None, "expandable_segments:True"), ("backend:native", "backend:native")):
        monkeypatch.delenv(name, raising=False)
        if given is not None:
            monkeypatch.setenv(name, given)
        with pytest.raises(UserError, match="no recipe"):
            pretrain("nowhere")
        assert os.environ[name] == found


@pytest.mark.parametrize("given", [None, "7"])
def test_threads_that_wait_do_not_hold_their_core(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    monkeypatch.setattr("bertie.cli.app", lambda: None)
    main()
    assert os.environ["GOMP_SPINCOUNT"] == (given or "1000")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix closes them")
@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_what_is_closed(closed: str, tmp_path: Path) -> None:
    """Nor does stdout get what is for stderr."""
    code = (
        "import os, sys\n"
        "from bertie.cli import main\n"
        "sys.argv = ['bertie', 'tokenize', 'Paris', '--vocab', 'none']\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, end='', file=open(3, 'w'))\n"
        "assert os.open('later', os.O_CREAT | os.O_WRONLY) > 2\n"
    )
    (tmp_path / "code.py").write_text(code)
    command = f'"{sys.executable}" code.py 3>code {closed}'
    result = subprocess.run(command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE)
    assert result.returncode == 0 and (tmp_path / "code").read_text() == "2"
    assert result.stdout == b""


def test_a_closed_stdout_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["bertie", "tokenize", "Paris", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    sys.stdout.close()
    assert end.value.code in (0, None)
