"""Every export answers as the engine does, whatever head it has and however texts are filled up."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import bertie
from bertie.checkpoint.model_dir import POOLING
from bertie.errors import UserError
from bertie.export import check as check_module
from bertie.export.check import compare, fill_up, run_engine
from bertie.export.writing import FORMS, export_model, write_onnx
from bertie.infer.embed import Embedding
from bertie.infer.engine import Engine
from bertie.tasks.classify import Classify
from bertie.tasks.instances import Framer, Input
from bertie.tasks.span import Span
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import SENTENCES, make_directory, make_tuned

FORMATS = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
HEADS: list[tuple[str, ...]] = [
    (),
    ("masked_lm", "next_sentence"),
    ("masked_lm",),
    ("sequence",),
    ("token",),
    ("span",),
    ("choice",),
]
KINDS = [(form, precision) for form, known in FORMS.items() for precision in known]


@pytest.mark.parametrize("heads", HEADS, ids="+".join)
def test_onnx_answers_as_the_engine_does(heads: tuple[str, ...], tmp_path: Path) -> None:
    made = make_directory(tmp_path, heads, num_labels=3)
    for precision in FORMS["onnx"]:
        exported = export_model(made, tmp_path / precision, form="onnx", precision=precision)
        assert exported.difference.share < (1e-5 if precision == "fp32" else 0.1)
        assert (tmp_path / precision / "vocab.txt").is_file()


@pytest.mark.parametrize(("form", "precision"), [kind for kind in KINDS if kind[0] != "onnx"])
def test_the_other_forms_do_so_too(form: str, precision: str, tmp_path: Path) -> None:
    for number, heads in enumerate(HEADS if form == "hf" else HEADS[:1] + HEADS[5:6]):
        made = make_directory(tmp_path / str(number), heads)
        out = tmp_path / f"out{number}"
        exported = export_model(made, out, form=form, precision=precision)
        assert exported.difference.share < (1e-5 if precision == "fp32" else 0.1)


SWITCHES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 10, "share_layers": True},
    "left": {"attention": "left"},
    "waves": {"positions": "sinusoidal", "combine": "product"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SWITCHES)
def test_variants_are_exported_or_refused(name: str, form: str, tmp_path: Path) -> None:
    heads: list[tuple[str, ...]] = [(), ("masked_lm", "next_sentence"), ("sequence",), ("span",)]
    for number, one in enumerate([*heads, *([("next_token",)] if name == "left" else [])]):
        made = make_directory(tmp_path / str(number), one, num_labels=3, **SWITCHES[name])
        out = tmp_path / f"out{number}"
        if form == "hf" and name != "albert":
            with pytest.raises(UserError, match="transformers has no model with"):
                export_model(made, out, form=form)
            continue
        assert export_model(made, out, form=form).difference.share < 1e-5


def test_shared_layers_are_in_an_onnx_file_once(tmp_path: Path) -> None:
    sizes = []
    for number, is_shared in enumerate((False, True)):
        made = make_directory(tmp_path / str(number), ("masked_lm",), share_layers=is_shared)
        sizes.append(export_model(made, tmp_path / f"out{number}", form="onnx").num_bytes)
    layer = 4 * (4 * 24 * 24 + 2 * 24 * 40)
    assert sizes[0] - sizes[1] == pytest.approx(layer, rel=0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("switches", [{"layer": "lstm"}, {"bilstm_layers": 1}], ids=str)
def test_lstms_are_not_exported(form: str, switches: dict[str, Any], tmp_path: Path) -> None:
    made = make_directory(tmp_path, ("sequence",), **switches)
    with pytest.raises(UserError, match="a model with an LSTM is not exported"):
        export_model(made, tmp_path / "out", form=form)


def test_transformers_opens_what_hf_writes(tmp_path: Path) -> None:
    made = make_directory(tmp_path, ("sequence",), num_labels=3)
    export_model(made, tmp_path / "out", form="hf")
    engine = bertie.load(made)
    inputs = frame(engine, SENTENCES)
    ids, mask, segments = map(torch.from_numpy, fill_up(inputs))
    with torch.inference_mode():
        theirs = open_theirs("BertForSequenceClassification", tmp_path / "out")(
            input_ids=ids, attention_mask=mask, token_type_ids=segments
        ).logits
    (ours,) = run_engine(engine, inputs)
    np.testing.assert_allclose(theirs.numpy(), np.stack(ours), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("layer", [-1, 0, 1])
def test_pooling_is_inside_the_graph(pooling: str, layer: int, tmp_path: Path) -> None:
    engine = bertie.load(make_directory(tmp_path, ()))
    engine.embedding = Embedding(pooling, layer)  # type: ignore[arg-type]
    run = write_onnx(engine.source, tmp_path, engine, "fp32")
    assert compare(run, engine).share < 1e-5
    vectors, _ = run(*fill_up(frame(engine, SENTENCES)))
    wanted = engine.embed(SENTENCES, pooling=pooling, layer=layer)  # type: ignore[arg-type]
    np.testing.assert_allclose(vectors, wanted, rtol=1e-4, atol=1e-4)


def test_hf_says_how_vectors_are_made(tmp_path: Path) -> None:
    made = make_directory(tmp_path, ())
    (made / POOLING).parent.mkdir()
    (made / POOLING).write_text('{"pooling_mode_max_tokens": true}')
    found = export_model(made, tmp_path / "out", form="hf")
    assert bertie.load(tmp_path / "out").embedding == bertie.load(made).embedding
    assert bertie.load(made).embedding[:2] == ("max", -1)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert found.num_bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("precision", FORMS["onnx"])
def test_filler_and_neighbours_change_nothing(precision: str, tmp_path: Path) -> None:
    made = make_directory(tmp_path, ("sequence",), num_labels=3)
    export_model(made, tmp_path / "out", form="onnx", precision=precision)

    def run(inputs: list[Input]) -> np.ndarray:
        return run_onnx(tmp_path / "out", inputs)[0]

    inputs = frame(bertie.load(made), [*SENTENCES, "a", ""])
    alone = np.concatenate([run([one]) for one in inputs])
    np.testing.assert_allclose(run(inputs), alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(inputs[::-1])[::-1], alone, rtol=1e-5, atol=1e-5)


def test_a_program_without_bertie_runs_what_torch_writes(tmp_path: Path) -> None:
    made = make_directory(tmp_path, ("token",))
    export_model(made, tmp_path / "out", form="torch")
    code = (
        "import sys, torch\n"
        "ids = torch.ones(3, 5, dtype=torch.int64)\n"
        f"module = torch.export.load({str(tmp_path / 'out' / 'model.pt2')!r}).module()\n"
        "assert module(ids, ids.clone(), ids * 0)[0].shape == (3, 5, 2)\n"
        "assert 'bertie' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={})


def test_an_export_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_directory(tmp_path, ("sequence",))
    monkeypatch.setitem(check_module.TOLERANCES, "fp32", 1e-12)
    monkeypatch.setattr(check_module, "MAX_ERROR_RATIO", 0.5)
    for precision, place in (("fp32", "the engine by"), ("int8", "fp32 by")):
        with pytest.raises(UserError, match=f"differs from {place} .*nothing was written"):
            export_model(made, tmp_path / "out", form="onnx", precision=precision)
        assert not (tmp_path / "out").exists()


def test_the_score_on_a_file_is_told(tmp_path: Path) -> None:
    task = Classify(kind="classes", labels=("no", "yes"), max_length=40, metric="accuracy")
    made = make_tuned(tmp_path, task)
    texts = [*SENTENCES, *(text.partition(" ")[2] for text in SENTENCES)]
    labels = [answer.label for answer in bertie.load(made).classify(texts)]
    assert {*labels} == {"no", "yes"}
    labels[2] = "no" if labels[2] == "yes" else "yes"  # one of eight is not what fp32 answers
    dev = tmp_path / "dev.csv"
    rows = [f'"{text}",{label}' for text, label in zip(texts, labels, strict=True)]
    dev.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    found = export_model(made, tmp_path / "out", form="onnx", precision="int8", dev=dev)
    assert found.scores is not None
    assert (found.scores.metric, found.scores.engine) == ("accuracy", 7 / 8)
    (logits,) = run_onnx(tmp_path / "out", frame(bertie.load(made), texts))
    rough = [task.labels[best] for best in logits.argmax(1)]
    same = [one == two for one, two in zip(rough, labels, strict=True)]
    assert found.scores.export == np.mean(same)


WRONG = {
    "form": ({"form": "tflite"}, "no form 'tflite'; there are: onnx, torch, hf"),
    "precision": ({"form": "hf", "precision": "int8"}, r"no int8 in hf; there are: onnx \(fp32, "),
    "there": ({"form": "hf", "out": "model"}, "model is there already; write to a new folder"),
    "no task": ({"form": "hf", "dev": Path("x.csv")}, "was not fine-tuned, so it has no score"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    options, message = WRONG[name]
    made = make_directory(tmp_path)
    out = tmp_path / str(options.pop("out", "out"))
    with pytest.raises(UserError, match=message):
        export_model(made, out, **options)
    assert out == made or not out.exists()


def run_onnx(folder: Path, inputs: list[Input]) -> list[np.ndarray]:
    """As a program without bertie does."""
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = ("input_ids", "attention_mask", "token_type_ids")
    made: list[np.ndarray] = session.run(None, dict(zip(names, fill_up(inputs), strict=True)))
    return made


def frame(engine: Engine, texts: list[str]) -> list[Input]:
    framer = Framer.of(engine.tokenizer)
    return [framer.frame(engine.tokenizer.ids(text)[: engine.max_length - 2]) for text in texts]


@pytest.mark.parametrize("threshold", [-99.0, 99.0])
def test_the_way_from_logits_to_an_answer_is_as_documented(
    threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    task = Span(max_length=40, max_question=20, may_be_unanswerable=True, threshold=threshold)
    model = make_tuned(tmp_path, task)
    export_model(model, tmp_path / "qa_onnx", form="onnx")
    (block,) = re.findall(r"```python\n(.*?)```", FORMATS, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    question, text = re.findall(r'question, text = "(.*?)", "(.*?)"', block)[0]
    answer = bertie.load(model, device="cpu").answer(question, text)
    assert capsys.readouterr().out.strip() == answer.text
    assert bool(answer.text) == (threshold > 0)
