"""Whether what was exported answers as the engine does, whatever the lengths."""

# N sequences   W the longest of them   L tokens of one   C numbers of a row

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from bertie.errors import UserError
from bertie.export.padded import list_outputs
from bertie.infer.batches import pack_inputs
from bertie.infer.engine import Engine
from bertie.model.heads import get_head
from bertie.tasks.instances import Framer, Input
from bertie.tasks.task import AnyTask

# ids, mask, segments (N, W) -> the outputs, padded: (N, ...) or (N, W, ...) each
Run = Callable[[np.ndarray, np.ndarray, np.ndarray], Sequence[np.ndarray]]

# The largest difference that may be, as a share of the largest output. In bf16, two ways to add up
# the same numbers differ in the last bit, and the next rounding makes a step of it.
TOLERANCES = {"fp32": 1e-4, "bf16": 0.1}
# In int8 the steps are so large that two right ways are as far from each other as each is from
# fp32, and of millions of outputs one is always far off. So the errors of all of them are weighed:
# an export may err by so many times what the engine's own int8 does (right ones: 0.9 to 1.1).
MAX_ERROR_RATIO = 2.0
NUM_BATCHES, BATCH = 6, 5
DEV_BATCH = 32
POOL: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # (L, D) -> (D,)
    "mean": lambda rows: np.asarray(rows.mean(0)),
    "max": lambda rows: np.asarray(rows.max(0)),
    "cls": lambda rows: np.asarray(rows[0]),
}


class Difference(NamedTuple):
    """How far an export is from the engine."""

    largest: float
    scale: float  # the largest output of the engine
    num_sequences: int
    rounding: "Rounding | None" = None  # of int8, the output that is worst

    @property
    def share(self) -> float:
        return self.largest / max(self.scale, 1e-9)


class Rounding(NamedTuple):
    """How far int8 is from fp32: root mean squares, as shares of the outputs' own."""

    output: str
    export: float
    engine: float

    @property
    def ratio(self) -> float:
        return self.export / max(self.engine, TOLERANCES["fp32"])


def draw_inputs(engine: Engine) -> list[list[Input]]:
    """Batches of random pieces and lengths, single texts and pairs, one as long as the model."""
    rng, framer = np.random.default_rng(0), Framer.of(engine.tokenizer)
    size = engine.model.config.vocab_size
    batches = []
    for number in range(NUM_BATCHES):
        longest = engine.max_length if number == 0 else min(engine.max_length, 8 << number)
        batch = []
        for room in (longest - 3, *rng.integers(0, longest - 2, BATCH - 1)):
            ids = rng.integers(0, size, room)
            first, second = np.split(ids, [int(rng.integers(0, room + 1))])
            batch.append(framer.frame(first, second) if rng.random() < 0.5 else framer.frame(ids))
        batches.append(batch)
    return batches


def fill_up(inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, mask, segments: (N, W) each."""
    shape = len(inputs), max(len(one.ids) for one in inputs)
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for row, one in enumerate(inputs):
        length = len(one.ids)
        ids[row, :length], mask[row, :length] = one.ids, 1
        segments[row, one.second : length] = 1
    return ids, mask, segments


@torch.inference_mode()
def run_engine(engine: Engine, inputs: Sequence[Input]) -> list[list[np.ndarray]]:
    """Each output of each sequence, as `list_outputs` names them: (...) or (L, ...)"""
    model = engine.model
    packed = pack_inputs(inputs, engine.device)
    if not model.heads:
        num_layers = engine.embedding.num_layers(model.config.num_layers)
        hidden = model.encode(*packed, num_layers=num_layers).float()
        rows = np.split(hidden.numpy(), packed.bounds[1:-1].numpy())
        return [[POOL[engine.embedding.pooling](one) for one in rows], rows]
    outputs: list[list[np.ndarray]] = []
    for name, logits in zip(model.heads, model(*packed), strict=True):
        made = logits.float().numpy()
        is_pooled = get_head(name).reads == "pooled"
        rows = list(made) if is_pooled else np.split(made, packed.bounds[1:-1].numpy())
        outputs += [[one[:, n] for one in rows] for n in range(2)] if name == "span" else [rows]
    return outputs


def cut(padded: np.ndarray, inputs: Sequence[Input], *, is_of_tokens: bool) -> list[np.ndarray]:
    """What belongs to each sequence, without its filler."""
    pairs = zip(padded, inputs, strict=True)
    return [one[: len(given.ids)] if is_of_tokens else one for one, given in pairs]


def compare(run: Run, engine: Engine) -> Difference:
    largest = scale = 0.0
    batches = draw_inputs(engine)
    for inputs in batches:
        wanted = run_engine(engine, inputs)
        for name, found, want in side_by_side(run, engine, inputs, wanted):
            check_numbers(found, want, name)
            largest = max(largest, float(np.abs(found - want).max()))
            scale = max(scale, float(np.abs(want).max()))
    return Difference(largest, scale, sum(map(len, batches)))


def side_by_side(
    run: Run, engine: Engine, inputs: Sequence[Input], wanted: Sequence[Sequence[np.ndarray]]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each output, what an export makes of each sequence, and what is wanted."""
    outputs = list_outputs(engine.model.heads)
    for found, want, output in zip(run(*fill_up(inputs)), wanted, outputs, strict=True):
        parts = cut(np.asarray(found, np.float32), inputs, is_of_tokens=output.is_of_tokens)
        for one, two in zip(parts, want, strict=True):
            yield output.name, one, two


def compare_rounding(run: Run, engine: Engine, plain: Engine) -> Rounding:
    """The errors of an export and of the engine in int8, where they differ most.

    `plain` is the same model in fp32. Every sequence weighs the same, however long it is.
    """
    squares: dict[str, list[tuple[float, float, float]]] = {}
    for inputs in draw_inputs(engine):
        exact = run_engine(plain, inputs)
        rough = [one for output in run_engine(engine, inputs) for one in output]
        pairs = side_by_side(run, engine, inputs, exact)
        for (name, found, want), own in zip(pairs, rough, strict=True):
            sizes = (found - want, own - want, want)
            export, engines, size = (float(np.square(one).mean()) for one in sizes)
            squares.setdefault(name, []).append((export, engines, size))
    shares = []
    for name, rows in squares.items():
        export, engines, size = np.sqrt(np.mean(rows, 0)).tolist()
        shares.append(Rounding(name, export / max(size, 1e-9), engines / max(size, 1e-9)))
    return max(shares, key=lambda one: one.ratio)


def check_numbers(found: np.ndarray, wanted: np.ndarray, name: str) -> None:
    """Raises where there is nothing to compare: another shape, or what is no number."""
    if not np.isfinite(wanted).all():
        raise UserError(f"{name} is not finite in the engine; the model's weights are damaged")
    if found.shape != wanted.shape:
        raise UserError(f"{name} came out as {found.shape}, wanted {wanted.shape}")
    if not np.isfinite(found).all():
        raise UserError(f"{name} came out with NaN or infinity in it; nothing was written")


def check(run: Run, engine: Engine, precision: str) -> Difference:
    """The difference, if it is within the tolerance."""
    found = compare(run, engine)
    if precision == "int8":
        plain = Engine.load(engine.source, device="cpu", show=False)
        return found._replace(rounding=check_rounding(compare_rounding(run, engine, plain)))
    if found.share > TOLERANCES[precision]:
        raise UserError(
            f"the export differs from the engine by {found.largest:.2g} where outputs are up to "
            f"{found.scale:.2g}, more than {TOLERANCES[precision]:.0e} of it; nothing was written"
        )
    return found


def check_rounding(found: Rounding) -> Rounding:
    if found.ratio > MAX_ERROR_RATIO:
        raise UserError(
            f"the export's {found.output} differs from fp32 by {found.export:.2g} of its size, the "
            f"engine's int8 by {found.engine:.2g}: more than {MAX_ERROR_RATIO:g} times that; "
            "nothing was written"
        )
    return found


def score_export(
    run: Run, engine: Engine, task: AnyTask, examples: Sequence[Any]
) -> dict[str, float]:
    """The scores of an export on labelled examples."""
    instances = task.encode(examples, engine.tokenizer)
    inputs = [instances.input(number) for number in range(len(instances.bounds) - 1)]
    outputs = list_outputs(engine.model.heads)
    made: list[np.ndarray] = []
    for start in range(0, len(inputs), DEV_BATCH):
        batch = inputs[start : start + DEV_BATCH]
        found = [
            cut(np.asarray(one, np.float32), batch, is_of_tokens=output.is_of_tokens)
            for one, output in zip(run(*fill_up(batch)), outputs, strict=True)
        ]
        is_span = len(found) > 1  # starts and ends, which the task reads side by side
        made += [np.stack(pair, -1) for pair in zip(*found, strict=True)] if is_span else found[0]
    return task.score(examples, task.decode(examples, instances, made))
