"""A model directory → ONNX, torch.export or plain Hugging Face, checked before it is there."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertie.checkpoint.draft import draft_of
from bertie.checkpoint.families import find_strange
from bertie.checkpoint.model_dir import (
    CONFIG,
    TOKENIZER_FILES,
    copy_pooling,
    open_model,
    save_model,
)
from bertie.errors import UserError, check_known
from bertie.export.check import Difference, Run, check, score_export
from bertie.export.padded import INPUTS, PaddedBert, check_exportable
from bertie.infer.answers import predict
from bertie.infer.engine import PRECISIONS, Engine
from bertie.tasks.task import AnyTask

FORMS = {  # form -> the precisions it can have
    "onnx": ("fp32", "int8"),
    "torch": ("fp32", "bf16"),
    "hf": ("fp32", "bf16"),
}
ONNX, TORCH = "model.onnx", "model.pt2"
ONNX_BYTES = 1_900_000_000  # an ONNX file holds less than 2 GiB; larger weights lie beside it


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What the engine in fp32 and the export make of a file with labels."""

    metric: str
    engine: float
    export: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written and how well it agrees with the engine."""

    num_bytes: int
    difference: Difference
    scores: Scores | None


def export_model(
    directory: Path, out: Path, *, form: str, precision: str = "fp32", dev: Path | None = None
) -> Exported:
    """Writes the folder `out`, if what is in it answers as the engine does."""
    check_wanted(form, precision, out)
    engine = Engine.load(directory, device="cpu", precision=precision, show=False)
    check_exportable(engine.model)
    with draft_of(out) as draft:
        run = WRITERS[form](directory, draft, engine, precision)
        difference = check(run, engine, precision)
        scores = None if dev is None else compare_scores(run, engine, directory, dev)
        num_bytes = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return Exported(num_bytes=num_bytes, difference=difference, scores=scores)


def check_wanted(form: str, precision: str, out: Path) -> None:
    check_known("form", form, FORMS)
    if precision not in FORMS[form]:
        could = [f"{name} ({', '.join(known)})" for name, known in FORMS.items()]
        raise UserError(f"no {precision} in {form}; there are: {', '.join(could)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; write to a new folder")


def compare_scores(run: Run, engine: Engine, directory: Path, dev: Path) -> Scores:
    """The task's own metric on a file, of the engine in fp32 and of the export."""
    if engine.task is None:
        raise UserError(f"{directory} was not fine-tuned, so it has no score on {dev}")
    task: AnyTask = engine.task
    data = task.read(dev, needs_labels=True)
    plain = Engine.load(directory, device="cpu", show=False)
    predictions = predict(task, data.examples, plain.model, plain.tokenizer)
    before = task.score(data.examples, predictions)
    after = score_export(run, engine, task, data.examples)
    metric = task.metric or next(iter(before))
    return Scores(metric=metric, engine=before[metric], export=after[metric])


def copy_rest(directory: Path, draft: Path) -> None:
    """The tokenizer, and what says which label is which."""
    for name in (*TOKENIZER_FILES, CONFIG, "task.json"):
        if (directory / name).is_file():
            shutil.copyfile(directory / name, draft / name)


def write_onnx(directory: Path, draft: Path, engine: Engine, precision: str) -> Run:
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise UserError("ONNX needs its packages: pip install 'bertie[onnx]'") from None
    from bertie.export.onnx_graph import Writer

    model = open_model(directory).model
    made = Writer(model, engine.embedding, is_int8=precision == "int8").write()
    is_large = made.ByteSize() > ONNX_BYTES
    onnx.save(made, draft / ONNX, save_as_external_data=is_large, location=f"{ONNX}.data")
    onnx.checker.check_model(draft / ONNX, full_check=True)
    copy_rest(directory, draft)
    session = onnxruntime.InferenceSession(draft / ONNX, providers=["CPUExecutionProvider"])

    def run(*inputs: np.ndarray) -> Sequence[np.ndarray]:
        found: Sequence[np.ndarray] = session.run(None, dict(zip(INPUTS, inputs, strict=True)))
        return found

    return run


def run_module(module: Callable[..., Sequence[torch.Tensor]]) -> Run:
    def run(*inputs: np.ndarray) -> Sequence[np.ndarray]:
        with torch.inference_mode():
            made = module(*map(torch.from_numpy, inputs))
        return [one.float().numpy() for one in made]

    return run


def write_torch(directory: Path, draft: Path, engine: Engine, precision: str) -> Run:
    model = open_model(directory, dtype=PRECISIONS[precision]).model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    # Three tensors: were one given twice, the program would read one input for both.
    ids, mask, segments = (torch.ones(2, 7, dtype=torch.int64) for _ in INPUTS)
    batch = torch.export.Dim("batch")
    length = torch.export.Dim("length", max=model.config.max_positions)
    program = torch.export.export(
        PaddedBert(model, engine.embedding),
        (ids, mask, segments),
        dynamic_shapes=({0: batch, 1: length},) * 3,
    )
    torch.export.save(program, draft / TORCH)
    copy_rest(directory, draft)
    return run_module(torch.export.load(draft / TORCH).module())


def write_hf(directory: Path, draft: Path, engine: Engine, precision: str) -> Run:
    opened = open_model(directory, dtype=PRECISIONS[precision])
    if strange := find_strange(opened.model.config):
        raise UserError(
            f"transformers has no model with {strange}, which {directory} has; export it to onnx "
            "or torch"
        )
    save_model(opened.model, draft, card=opened.card, tokenizer_from=directory)
    copy_pooling(directory, draft)
    again = open_model(draft, dtype=PRECISIONS[precision]).model
    return run_module(PaddedBert(again, engine.embedding))


WRITERS: dict[str, Callable[[Path, Path, Engine, str], Run]] = {
    "onnx": write_onnx,
    "torch": write_torch,
    "hf": write_hf,
}
