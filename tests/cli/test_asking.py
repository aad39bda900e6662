"""predict, embed and similar: files in, answers out; killed and started again is never killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bertie as package
from bertie.cli import app
from bertie.errors import UserError
from bertie.evaluate import evaluate_file, write_predictions
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from tests.commands import bertie
from tests.infer.models import SENTENCES, make_directory, make_tuned

LABELS = ("a", "b", "c")


def run(*arguments: object) -> str:
    """In this process, which has torch already."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asking")
    make_tuned(folder / "classes", Classify(kind="classes", labels=LABELS, max_length=20))
    span = Span(max_length=30, max_question=9, stride=7)
    make_tuned(folder / "span", span)
    make_directory(folder / "pretrained")
    (folder / "lines.txt").write_text("\n".join([*SENTENCES, "", "Paris"]) + "\n", "utf-8")
    rows = [{"review": text, "id": f"r{n}"} for n, text in enumerate(SENTENCES)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, "utf-8")
    return folder


def answers(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_predict_answers_each_line_as_the_engine(folder: Path) -> None:
    result = bertie("predict", "classes/model", "lines.txt", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    found = answers(result.stdout)
    wanted = package.load(folder / "classes/model").classify([*SENTENCES, "", "Paris"])
    assert [one["id"] for one in found] == list("012345")
    assert [one["label"] for one in found] == [one.label for one in wanted]
    assert found[0]["scores"] == pytest.approx(wanted[0].scores, abs=1e-5)
    piped = bertie(
        "predict", "classes/model", "-", cwd=folder, stdin=(folder / "lines.txt").read_text("utf-8")
    )
    assert piped.stdout == result.stdout


def test_predict_writes_what_evaluate_writes(folder: Path) -> None:
    path = folder / "rows.jsonl"
    result = bertie("predict", "classes/model", "rows.jsonl", "--out", "out/p.jsonl", cwd=folder)
    assert (result.returncode, result.stdout) == (0, "out/p.jsonl: 4 answers\n"), result.stderr
    data, evaluated, _ = evaluate_file(folder / "classes/model", path)
    (written,) = write_predictions(folder / "evaluated", data, evaluated)
    found, wanted = (answers(file.read_text()) for file in (folder / "out/p.jsonl", written))
    for one, two in zip(found, wanted, strict=True):
        assert (one["id"], one["label"]) == (two["id"], two["label"])
        assert list(one["scores"].values()) == pytest.approx(two["scores"], abs=1e-5)
    again = bertie("predict", "classes/model", "rows.jsonl", "--out", "out/p.jsonl", cwd=folder)
    assert again.returncode == 2 and "out/p.jsonl exists; remove it" in again.stderr


def test_predict_says_what_was_cut_and_left_out(folder: Path) -> None:
    rows = [{"q": "Paris " * 30, "context": "Paris is"}, {"q": "Where?", "context": "Paris"}]
    lines = [*map(json.dumps, rows), "broken"]
    name = ("--set", "task.columns.question=q", "--format", "jsonl")
    stdin = "\n".join(lines)
    result = bertie("predict", "span/model", "-", *name, "--skip-bad", cwd=folder, stdin=stdin)
    assert len(answers(result.stdout)) == 2, result.stderr
    assert result.stderr == (
        "bertie: 1 questions cut off to fit into the model\n"
        "bertie: 1 x not a JSON object (-, line 3)\n"
    )
    refused = bertie("predict", "span/model", "-", *name, cwd=folder, stdin=stdin)
    assert refused.returncode == 2 and "-, line 3: not a JSON object" in refused.stderr


def test_predict_answers_a_pipe_while_it_comes(folder: Path) -> None:
    command = [sys.executable, "-m", "bertie", "predict", "classes/model", "-"]
    whole = bertie(*command[3:], cwd=folder, stdin="\n".join(SENTENCES)).stdout.splitlines()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, **pipes) as life:  # type: ignore[call-overload]
        for text, line in zip(SENTENCES, whole, strict=True):
            life.stdin.write(f"{text}\n".encode())
            life.stdin.flush()
            found, wanted = (json.loads(one) for one in (life.stdout.readline(), line))
            assert (found["id"], found["label"]) == (wanted["id"], wanted["label"])
        life.stdin.close()
        assert life.wait(60) == 0


@pytest.mark.parametrize(("file", "goes_on"), [("lines.txt", True), ("-", False)])
def test_a_stopped_predict_goes_on_if_it_can(
    file: str, goes_on: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertie.infer.predict.answer_lines", stop)
    monkeypatch.chdir(folder)
    words = ["predict", "classes/model", file, "--out", str(tmp_path / "out.jsonl")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130
    assert ("the same command goes on where it was" in result.stderr) == goes_on


def test_a_pipe_is_read_by_its_path(folder: Path) -> None:
    """As a shell makes one of `<(...)`."""
    (folder / "lines.csv").write_text("text,id\n" + "".join(f'"{one}",x\n' for one in SENTENCES))
    for name, file in (("pipe", "lines.txt"), ("pipe.csv", "lines.csv")):
        os.mkfifo(folder / name)
        wanted = bertie("predict", "classes/model", file, cwd=folder).stdout
        for out in ((), ("--out", f"{name}.jsonl")):
            writer = threading.Thread(
                target=(folder / name).write_bytes, args=((folder / file).read_bytes(),)
            )
            writer.start()
            result = bertie("predict", "classes/model", name, *out, cwd=folder)
            writer.join()
            assert result.returncode == 0, result.stderr
            found = (folder / out[1]).read_text("utf-8") if out else result.stdout
            assert [one["label"] for one in answers(found)] == [
                one["label"] for one in answers(wanted)
            ]
    with pytest.raises(UserError, match="is a folder; name a file in it"):
        run("predict", folder / "classes/model", folder)


def test_predict_reads_the_files_of_its_task(folder: Path) -> None:
    tagger = make_tuned(folder / "tag", Tag(kind="spans", labels=("O", "B-X"), max_length=20))
    (folder / "a.conll").write_text("Paris NNP B-X\nis VB O\n\nFrance NNP B-X\n")
    found = answers(run("predict", tagger, folder / "a.conll"))
    assert [one["text"] for one in found] == ["Paris is", "France"]
    assert [one["id"] for one in found] == ["1", "4"]
    paragraph = {"context": "Paris is large", "qas": [{"id": "q7", "question": "Where?"}]}
    tree = {"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (folder / "dev.json").write_text(json.dumps(tree, indent=1))
    options = ("--out", folder / "squad.jsonl")
    assert "1 answers" in run("predict", folder / "span/model", folder / "dev.json", *options)
    (found,) = answers((folder / "squad.jsonl").read_text())
    wanted = package.load(folder / "span/model").answer("Where?", "Paris is large")
    assert (found["id"], found["text"]) == ("q7", wanted.text)


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    model, none = folder / "classes/model", folder / "none.conll"
    for command in (
        ("predict", model, none),
        ("predict", model, none, "--out", folder / "none.jsonl"),
        ("embed", model, none, "--out", folder / "none.npy"),
        ("similar", model, none, "--query", "a"),
        ("features", model, none, "--out", folder / "none"),
    ):
        with pytest.raises(UserError, match=r"^no file .*none\.conll$"):
            run(*command)
    assert not list(folder.glob("*none.*"))


@pytest.mark.parametrize(
    "command",
    [("predict", "classes/model"), ("embed", "classes/model"), ("similar", "--query", "a")],
)
def test_what_is_no_text_is_refused(folder: Path, command: tuple[str, ...]) -> None:
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    out = ("--out", "vectors.npy") if command[0] == "embed" else ()
    result = bertie(*command, "picture.txt", *out, cwd=folder)
    assert result.returncode == 2 and result.stdout == ""
    assert "picture.txt is not text but an image" in result.stderr
    assert not (folder / "vectors.npy").exists()


def test_a_model_that_was_not_fine_tuned_predicts_nothing(folder: Path) -> None:
    result = bertie("predict", "pretrained/model", "lines.txt", cwd=folder)
    assert result.returncode == 2
    assert "was not fine-tuned" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again_is_never_killed(folder: Path, number: int) -> None:
    lines = [f"{text} {n} Paris is the capital" for n in range(1500) for text in SENTENCES]
    (folder / "many.txt").write_text("\n".join(lines), "utf-8")
    command = ["predict", "classes/model", "many.txt", "--out"]
    if not (folder / "whole.jsonl").exists():
        assert bertie(*command, "whole.jsonl", cwd=folder).returncode == 0
    (folder / "killed.jsonl").unlink(missing_ok=True)
    arguments = [sys.executable, "-m", "bertie", *command, "killed.jsonl"]
    life = subprocess.Popen(
        arguments, cwd=folder, env=os.environ | {"PYTHONUTF8": "1"}, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and life.poll() is None:
        drafts = list(folder.glob(".killed.jsonl.draft-*"))
        if drafts and drafts[0].stat().st_size:
            break
    life.send_signal(number)
    _, told = life.communicate()
    if number == signal.SIGINT:
        assert life.returncode == 130 and b"stopped; the same command goes on" in told
    assert not (folder / "killed.jsonl").exists()
    result = bertie(*command, "killed.jsonl", cwd=folder)
    assert "answers were there already" in result.stderr
    assert (folder / "killed.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()
    assert not list(folder.glob(".killed*"))


def test_the_precision_and_the_device_can_be_chosen(folder: Path) -> None:
    options = ("--precision", "int8", "--device", "cpu")
    model, text = folder / "pretrained/model", "Paris is the [MASK] of France."
    rough = package.load(model, precision="int8", device="cpu")
    (filled,) = answers(run("fill", model, text, "--json", *options))
    wanted = rough.fill(text).masks[0]
    assert filled["masks"][0][0]["probability"] == pytest.approx(wanted[0].probability, abs=1e-6)
    run("embed", model, folder / "lines.txt", "--out", folder / "rough.npy", *options)
    vectors = rough.embed([*SENTENCES, "", "Paris"])
    np.testing.assert_allclose(np.load(folder / "rough.npy"), vectors, atol=1e-6)
    assert not np.allclose(vectors, package.load(model).embed([*SENTENCES, "", "Paris"]), atol=1e-5)
    told = run("similar", model, *SENTENCES[:2], *options)
    assert float(told) == pytest.approx(rough.similarity(*SENTENCES[:2]), abs=1e-4)
    classes = package.load(folder / "classes/model", precision="int8", device="cpu")
    found = answers(run("predict", folder / "classes/model", folder / "lines.txt", *options))
    assert found[0]["scores"] == pytest.approx(classes.classify(SENTENCES[0]).scores, abs=1e-5)
    for verb in ("fill", "similar"):
        with pytest.raises(UserError, match="no precision 'int4'; there are: fp32"):
            run(verb, model, text, text, "--precision", "int4")


def test_embed_writes_the_engine_s_vectors(folder: Path) -> None:
    engine = package.load(folder / "pretrained/model")
    result = bertie("embed", "pretrained/model", "lines.txt", "--out", "v.npy", cwd=folder)
    assert (result.returncode, result.stdout) == (0, "v.npy: 6 vectors of 24\n"), result.stderr
    wanted = engine.embed([*SENTENCES, "", "Paris"])
    np.testing.assert_allclose(np.load(folder / "v.npy"), wanted, atol=1e-5)
    options = ("--layer", "1", "--pooling", "max", "--normalise", "--column", "review")
    bertie("embed", "pretrained/model", "rows.jsonl", *options, "--out", "v.parquet", cwd=folder)
    from pyarrow import parquet

    table = parquet.read_table(folder / "v.parquet").to_pydict()
    assert table["text"] == SENTENCES
    wanted = engine.embed(SENTENCES, layer=1, pooling="max", normalise=True)
    np.testing.assert_allclose(np.array(table["vector"]), wanted, atol=1e-5)


def test_similar_compares_two_or_finds_the_nearest(folder: Path) -> None:
    engine = package.load(folder / "pretrained/model")
    result = bertie("similar", "pretrained/model", *SENTENCES[:2], cwd=folder)
    assert float(result.stdout) == pytest.approx(engine.similarity(*SENTENCES[:2]), abs=1e-4)
    options = ("--query", SENTENCES[2], "--top", "2")
    result = bertie("similar", "pretrained/model", "lines.txt", *options, cwd=folder)
    assert "1.0000" in result.stdout.splitlines()[3] and "Naïve" in result.stdout.splitlines()[3]
    assert result.stdout.count("│") == 6
    refused = bertie("similar", "pretrained/model", "one", cwd=folder)
    assert refused.returncode == 2 and "two texts, or --query" in refused.stderr
