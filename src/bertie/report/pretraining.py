"""The report of a pre-training run: did it learn, how well, how fast."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bertie.errors import UserError
from bertie.report.command import show_command
from bertie.report.numbers import duration, fixed, percent, short
from bertie.report.page import (
    REPORT,
    Markup,
    code,
    figure,
    figures,
    heading,
    page,
    paragraph,
    table,
    write_whole,
)
from bertie.report.plots import Level, Series, line_chart, stacked

METRICS, RUN = "metrics.jsonl", "run.json"
CURVES = "curves.svg"

Line = Mapping[str, object]
POSITIONS = {
    "mask": "[MASK]",
    "random": "random piece",
    "kept": "kept",
    "seen": "random or kept",
    "lm": "next token",
    "back": "previous token",
}
PAIRS = {"nsp": "next sentence", "sop": "sentence order"}
# What a run is known by, the first that it has: on held-out text, and in training.
TRAINED = {"lm": "of next tokens"} | {key: f"of {name}" for key, name in PAIRS.items()}
HEADLINES = {"mask": "on [MASK] positions"} | TRAINED
TERMS = {"mlm": "of the masked LM"} | TRAINED


def write_pretraining_report(run: Path) -> Path:
    """Reads metrics.jsonl and run.json of a run, writes report.html and curves.svg beside them."""
    lines = read_lines(run / METRICS)
    facts = read_facts(run / RUN)
    training = [line for line in lines if {"rate", "mlm_loss", "lm_loss"} & line.keys()]
    held_out = [flat_held_out(line) for line in lines if isinstance(line.get("held_out"), Mapping)]
    unigram = number(facts, "unigram_entropy")
    charts = make_charts(training, held_out, unigram)
    blocks = [
        *headline(training, held_out, unigram),
        heading("Curves"),
        figures(figure(chart) for chart in charts),
        *held_out_tables(held_out, unigram),
        heading("The run"),
        table(("what", "value"), run_rows(training, held_out), numbers=("value",)),
        *settings(facts),
    ]
    write_whole(run / CURVES, stacked(charts))
    return write_whole(run / REPORT, page(f"Pre-training: {run.resolve().name}", blocks))


def read_lines(path: Path) -> list[Line]:
    """The lines in order of their steps; what is no JSON object (a line cut off) is left out."""
    if not path.is_file():
        raise UserError(f"no file {path}; a pre-training run writes one into its --out folder")
    lines: list[Line] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and math.isfinite(number(line, "step")):
            lines.append(line)
    return sorted(lines, key=lambda line: number(line, "step"))


def read_facts(path: Path) -> Line:
    """run.json, or nothing if there is none that can be read."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def number(line: Line, name: str) -> float:
    """The value as a number; not a number if it is missing or of another kind."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def flat_held_out(line: Line) -> Line:
    inner = line["held_out"]
    assert isinstance(inner, Mapping)
    return {**line, **inner}


def series(name: str, lines: Sequence[Line], key: str) -> Series:
    found = [(number(line, "step"), number(line, key)) for line in lines if key in line]
    return Series(name=name, x=[x for x, _ in found], y=[y for _, y in found])


def make_charts(training: Sequence[Line], held_out: Sequence[Line], unigram: float) -> list[Markup]:
    levels = [Level(name="unigram entropy", y=unigram)] if math.isfinite(unigram) else []
    title, losses, accuracies = word_series(training, held_out)
    charts = []
    if losses:
        charts = [
            line_chart(losses, title=f"{title} loss (nats)", x_label="step", levels=levels),
            line_chart(accuracies, title=f"{title} accuracy", x_label="step", y_range=(0, 0)),
        ]
    for key, name in PAIRS.items():
        if not losses and (lines := pair_series(training, held_out, f"{key}_loss")):
            charts.append(line_chart(lines, title=f"Loss of {name} (nats)", x_label="step"))
        if lines := pair_series(training, held_out, f"{key}_accuracy"):
            title, half = f"Accuracy of {name}", [Level(name="chance", y=0.5)]
            charts.append(
                line_chart(lines, title=title, x_label="step", levels=half, y_range=(0.4, 1))
            )
    rest = {"rate": "Learning rate", "norm": "Gradient norm", "tokens_per_s": "Tokens per second"}
    for key, title in rest.items():
        is_log = key == "norm"
        lines = [series(title, training, key)]
        y_range = None if is_log else (0.0, 0.0)
        charts.append(
            line_chart(lines, title=title, x_label="step", is_log_y=is_log, y_range=y_range)
        )
    if any("mfu" in line for line in training):
        lines = [series("of the device's peak", training, "mfu")]
        charts.append(
            line_chart(lines, title="Share of peak FLOPs", x_label="step", y_range=(0, 0))
        )
    return charts


def pair_series(training: Sequence[Line], held_out: Sequence[Line], key: str) -> list[Series]:
    lines = [series("training", training, key), series("held out", held_out, key)]
    return [line for line in lines if line.y]


def is_masked(training: Sequence[Line]) -> bool:
    """Whether a masked LM was trained, and not one of next tokens."""
    return not any("lm_loss" in line for line in training)


def word_series(
    training: Sequence[Line], held_out: Sequence[Line]
) -> tuple[str, list[Series], list[Series]]:
    """Losses and accuracies of predicted tokens; of a masked LM, held out, at [MASK] alone."""
    if is_masked(training):
        losses = [
            series("training, all positions", training, "mlm_loss"),
            series("held out, [MASK] only", held_out, "mask_loss"),
        ]
        accuracies = [
            series("training, all", training, "mlm_accuracy"),
            series("held out, [MASK]", held_out, "mask_accuracy"),
        ]
        losses, accuracies = ([one for one in some if one.y] for some in (losses, accuracies))
        return "Masked LM", losses, accuracies
    losses, accuracies = (
        [
            series(f"{where}, {name}", lines, f"{term}_{what}")
            for term, name in (("lm", "next token"), ("back", "previous token"))
            for where, lines in (("training", training), ("held out", held_out))
            if any(f"{term}_{what}" in line for line in lines)
        ]
        for what in ("loss", "accuracy")
    )
    return "Language model", losses, accuracies


def headline(training: Sequence[Line], held_out: Sequence[Line], unigram: float) -> list[Markup]:
    """The figure that counts, in a sentence, and what should worry the reader."""
    blocks = []
    key = next((key for key in HEADLINES if has(held_out, f"{key}_loss")), "mask")
    loss = number(held_out[-1], f"{key}_loss") if held_out else math.nan
    if math.isfinite(loss) and key in PAIRS:
        right = percent(number(held_out[-1], f"{key}_accuracy"))
        text = (
            f"Held-out loss {HEADLINES[key]}: {fixed(loss)} nats; {right} are right, by chance 50%."
        )
        blocks.append(paragraph(text, "headline"))
    elif math.isfinite(loss):
        blocks += headline_of_words(f"Held-out loss {HEADLINES[key]}", loss, unigram)
    else:
        blocks.append(paragraph(headline_of_training(training), "headline"))
    num_skipped = max((number(line, "skipped") for line in training), default=math.nan)
    if num_skipped > 0:
        text = f"Steps skipped because their gradient was not finite: {num_skipped:.0f}."
        blocks.append(paragraph(text, "warning"))
    return blocks


def headline_of_words(what: str, loss: float, unigram: float) -> list[Markup]:
    text = f"{what}: {fixed(loss)} nats"
    if math.isfinite(unigram):
        gap = unigram - loss
        side = "below" if gap >= 0 else "above"
        text += f", {fixed(abs(gap))} {side} the unigram entropy of {fixed(unigram)}"
    blocks = [paragraph(f"{text}. Perplexity {short(math.exp(min(loss, 700)))}.", "headline")]
    if loss >= unigram:
        text = (
            "It has learned no more than how frequent words are; try more steps, another peak "
            "rate, or a longer warm-up."
        )
        blocks.append(paragraph(text, "warning"))
    return blocks


def headline_of_training(training: Sequence[Line]) -> str:
    """Where nothing was held out."""
    if not training:
        return "The run has no lines yet."
    term = next((term for term in TERMS if has(training, f"{term}_loss")), "mlm")
    text = f"Training loss {TERMS[term]}: {fixed(number(training[-1], f'{term}_loss'))} nats"
    if term != "mlm":
        return f"{text}. There is no held-out figure."
    return (
        f"{text}, over all positions. There is no held-out figure, and a tenth of the positions "
        "can be copied: this says little of what was learned."
    )


def has(lines: Sequence[Line], key: str) -> bool:
    return any(key in line for line in lines)


def held_out_tables(held_out: Sequence[Line], unigram: float) -> list[Markup]:
    """The last evaluation and the best, position by position."""
    if not held_out:
        return []
    last = held_out[-1]
    rows = []
    for key, name in (POSITIONS | PAIRS).items():
        loss, accuracy = number(last, f"{key}_loss"), number(last, f"{key}_accuracy")
        if math.isfinite(loss) or math.isfinite(accuracy):
            gap = unigram - loss if key in POSITIONS else math.nan
            rows.append((name, fixed(loss), percent(accuracy), fixed(gap)))
    columns = ("positions", "loss (nats)", "accuracy", "below unigram")
    blocks = [heading("Held-out text"), table(columns, rows, numbers=columns[1:])]
    if has(held_out, "kept_loss"):
        text = "Kept words stand in the text and can be copied: only [MASK] tells."
        blocks.append(paragraph(text, "soft"))
    losses = [(number(line, "mask_loss"), line) for line in held_out]
    finite = [(loss, line) for loss, line in losses if math.isfinite(loss)]
    if finite:
        loss, line = min(finite, key=lambda pair: pair[0])
        step = short(number(line, "step"))
        blocks.append(paragraph(f"Best on [MASK]: {fixed(loss)} nats at step {step}.", "soft"))
    return blocks


def run_rows(training: Sequence[Line], held_out: Sequence[Line]) -> list[tuple[str, str]]:
    lines = [*training, *held_out]
    if not lines:
        return []

    def most(name: str) -> float:
        return max(
            (v for line in lines if math.isfinite(v := number(line, name))), default=math.nan
        )

    speeds = [v for line in training if math.isfinite(v := number(line, "tokens_per_s"))]
    return [
        ("steps", f"{most('step'):,.0f}"),
        ("tokens", short(most("tokens"))),
        ("time", duration(most("seconds"))),
        ("tokens per second (median)", short(median(speeds)) if speeds else "–"),
        ("skipped steps", short(most("skipped"))),
        ("evaluations on held-out text", str(len(held_out))),
    ]


def settings(facts: Line) -> list[Markup]:
    """Everything that run.json says."""
    if not facts:
        text = f"There is no {RUN}: settings, machine and versions are not known."
        return [paragraph(text, "soft")]
    blocks = []
    rest = dict(facts)
    if command := rest.pop("command", None):
        shown = show_command(list(map(str, command))) if isinstance(command, list) else str(command)
        blocks += [heading("Command"), code(shown)]
    return [*blocks, heading("Settings and machine"), table(("name", "value"), flat(rest))]


def flat(values: Mapping[str, object], path: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows: optim.peak, 0.0001."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{path}{name}.")
        else:
            rows.append((f"{path}{name}", value if isinstance(value, str) else json.dumps(value)))
    return rows
