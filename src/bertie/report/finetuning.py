"""The report of fine-tuning: how good, how sure, where it fails, what it took."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bertie.report.numbers import duration, fixed, percent
from bertie.report.page import (
    REPORT,
    REPORT_JSON,
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
from bertie.report.plots import (
    Level,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    reliability_diagram,
    scatter_plot,
)
from bertie.report.results import FinetuneResults, FinetuneRun, group_of, groups

CORRELATIONS = ("matthews", "pearson", "spearman")
MOST_CURVES = 6  # as many as there are colours
MOST_BARS = 20
MOST_CHARACTERS = 1200  # of the text of an error


def write_finetuning_report(results: FinetuneResults, out: Path) -> Path:
    """Writes report.html and report.json into a folder."""
    blocks = [
        *headline(results),
        *test_table(results),
        *run_tables(results),
        *class_blocks(results),
        *sureness(results),
        *threshold_table(results),
        *error_table(results),
        heading("How to repeat it"),
        *(paragraph(line, "soft") for line in results.data),
        *([code(results.command)] if results.command else []),
        *settings_table(results),
    ]
    text = json.dumps(plain({"summary": summary(results), **fields(results)}), indent=2)
    write_whole(out / REPORT_JSON, f"{text}\n")
    return write_whole(out / REPORT, page(f"Fine-tuning: {results.name}", blocks))


def summary(results: FinetuneResults) -> dict[str, object]:
    """The numbers of the headline."""
    best = results.best()
    group = group_of(results, best)
    return {
        "metric": results.metric,
        "best": results.score(best),
        "best_seed": best.seed,
        "best_settings": best.settings,
        "mean": group.mean,
        "spread": group.spread,
        "num_seeds": len(group.runs),
        "num_runs": len(results.runs),
        "num_stuck": sum(map(results.is_stuck, results.runs)),
        "seconds": sum(run.seconds for run in results.runs),
    }


def show(name: str, value: float) -> str:
    """A score as people write it: shares in percent, correlations and thresholds as they are."""
    if name.startswith("num_"):
        return fixed(value, 0)
    is_plain = name in CORRELATIONS or name.endswith(("threshold", "loss"))
    return fixed(value) if is_plain else percent(value)


def headline(results: FinetuneResults) -> list[Markup]:
    best, metric = results.best(), results.metric
    group, score = group_of(results, best), results.score(best)
    name = metric.replace("_", " ")
    text = f"{name[:1].upper()}{name[1:]} on dev: {show(metric, score)}"
    if len(results.runs) > 1:
        text += f", the best of {len(results.runs)} runs"
    if len(group.runs) > 1:
        text += (
            f"; {show(metric, group.mean)} ± {show(metric, group.spread)} "
            f"over the {len(group.runs)} seeds of its settings"
        )
    about = [f"{results.task} · {results.model}"]
    about.append(f"{results.num_train:,} examples to train, {results.num_dev:,} to choose by (dev)")
    if results.interval is not None:
        low, high = (show(metric, value) for value in results.interval)
        about.append(f"95% bootstrap interval on dev: {low} to {high}")
    if len(results.runs) > 1:
        about.append(
            "the best run was chosen by its score on dev, so that score is a little too good"
        )
    if results.majority is not None:
        about.append(f"always the same answer, the best one: {show(metric, results.majority)}")
    blocks = [paragraph(f"{text}.", "headline"), *(paragraph(line, "soft") for line in about)]
    return [*blocks, *(paragraph(line, "warning") for line in warnings(results))]


def warnings(results: FinetuneResults) -> list[str]:
    """What the reader must not overlook."""
    found = []
    broken = [run for run in results.runs if results.is_broken(run)]
    stuck = [run for run in results.runs if results.is_stuck(run)]
    at_majority = [run for run in stuck if not results.is_broken(run)]
    if broken:
        found.append(
            f"{count(broken, results)} broke down, the score is not a number{seeds_of(broken)}: "
            "try a lower rate or a longer warm-up."
        )
    if at_majority:
        weights = ", or task.class_weights=balanced for rare classes"
        is_unweighted = results.settings.get("task.class_weights") == "none"
        found.append(
            f"{count(at_majority, results)} did no better than always the same answer"
            f"{seeds_of(at_majority)}: try a lower rate, a longer warm-up, or more epochs"
            f"{weights if is_unweighted else ''}."
        )
    group = group_of(results, results.best())
    is_near = results.majority is not None and group.mean - group.spread <= results.majority < 1
    if is_near and not stuck:
        found.append(
            "The mean is no further from always the same answer than the seeds are "
            "from each other: this may be chance."
        )
    return [*found, *results.notes]


def count(runs: Sequence[FinetuneRun], results: FinetuneResults) -> str:
    return f"{len(runs)} of {len(results.runs)} runs"


def seeds_of(runs: Sequence[FinetuneRun]) -> str:
    return f" (seed {', '.join(str(run.seed) for run in runs)})"


def test_table(results: FinetuneResults) -> list[Markup]:
    """The scores of other files than dev; one without labels has none."""
    if not results.tests:
        return []
    names = list(dict.fromkeys(name for scores in results.tests.values() for name in scores))
    rows = [
        [path, *(show(name, scores[name]) if name in scores else "–" for name in names)]
        for path, scores in results.tests.items()
    ]
    shown = [name.replace("_", " ") for name in names]
    return [heading("Test"), table(("file", *shown), rows, numbers=shown)]


def run_tables(results: FinetuneResults) -> list[Markup]:
    """Settings with their mean and spread, every run, and their curves."""
    names = list(dict.fromkeys(name for run in results.runs for name in run.settings))
    found_scores = dict.fromkeys(name for run in results.runs for name in run.scores)
    scores = [name for name in found_scores if not name.startswith("num_")]
    blocks = [heading("Runs")]
    found = groups(results)
    if len(found) > 1:
        numbers = ("seeds", "mean", "spread", "best")
        rows = [
            [setting(group.settings.get(name)) for name in names]
            + [str(len(group.runs))]
            + [show(results.metric, value) for value in (group.mean, group.spread, group.best)]
            for group in found
        ]
        blocks.append(table((*names, *numbers), rows, numbers=(*names, *numbers)))
    best = results.best()
    rows = [
        [str(run.seed), *(setting(run.settings.get(name)) for name in names)]
        + [show(name, run.scores.get(name, math.nan)) for name in scores]
        + [duration(run.seconds), remark(results, run, best)]
        for run in sorted(results.runs, key=results.rank, reverse=True)
    ]
    columns = ("seed", *names, *(name.replace("_", " ") for name in scores), "time")
    blocks.append(table((*columns, "note"), rows, numbers=columns))
    return [*blocks, *curves(results)]


def remark(results: FinetuneResults, run: FinetuneRun, best: FinetuneRun) -> str:
    if results.is_broken(run):
        return "broke down"
    if results.is_stuck(run):
        return "as always the same answer"
    return "kept" if run is best else ""


def curves(results: FinetuneResults) -> list[Markup]:
    """The score of each evaluation, of the seeds of the best settings."""
    group = group_of(results, results.best())
    ranked = sorted(group.runs, key=results.rank, reverse=True)
    shown = [run for run in ranked if run.curve][:MOST_CURVES]
    if not shown:
        return []
    lines = [
        Series(name=f"seed {run.seed}", x=range(1, len(run.curve) + 1), y=run.curve)
        for run in shown
    ]
    title = f"{results.metric.replace('_', ' ')} on dev"
    chart = line_chart(lines, title=title, x_label="evaluation", levels=near_levels(results, shown))
    caption = "The seeds of the best settings." if len(results.runs) > 1 else ""
    return [figures([figure(chart, caption)])]


def near_levels(results: FinetuneResults, shown: Sequence[FinetuneRun]) -> list[Level]:
    """The score of always the same answer, if it is so near that it does not flatten the curves."""
    values = [value for run in shown for value in run.curve if math.isfinite(value)]
    if results.majority is None or not values:
        return []
    room = max(0.05, max(values) - min(values))
    is_near = results.majority >= min(values) - room
    return [Level(name="same answer", y=results.majority)] if is_near else []


def class_blocks(results: FinetuneResults) -> list[Markup]:
    """Precision, recall and F1 of each class or type, and what is taken for what."""
    if not results.class_scores and not results.confusion:
        return []
    columns = ("label", "precision", "recall", "F1", "support")
    rows = [
        (name, percent(s.precision), percent(s.recall), percent(s.f1), f"{s.support:,}")
        for name, s in results.class_scores.items()
    ]
    plots = []
    if results.class_scores:
        ranked = sorted(results.class_scores.items(), key=lambda item: item[1].f1)
        bars = [(name, score.f1) for name, score in ranked[:MOST_BARS]]
        title = "F1" if len(ranked) <= MOST_BARS else f"F1 of the {MOST_BARS} worst"
        plots.append(figure(bar_chart(bars, title=title)))
    if results.confusion:
        caption = "Rows are the true labels; the darker, the larger the share of its row."
        plots.append(
            figure(heat_map(results.confusion, results.labels, title="Confusion"), caption)
        )
    blocks = [table(columns, rows, numbers=columns[1:])] if rows else []
    return [heading("Labels"), *blocks, figures(plots)]


def sureness(results: FinetuneResults) -> list[Markup]:
    """Calibration of classes; gold against predicted for numbers."""
    blocks = []
    if results.calibration is not None:
        error = percent(results.calibration.error)
        caption = (
            f"Expected calibration error {error}. Bars below the diagonal: more confident than "
            "right; above it: less."
        )
        plot = figure(reliability_diagram(results.calibration), caption)
        blocks += [heading("How far to trust its confidence"), figures([plot])]
    if results.gold_and_predicted:
        plot = scatter_plot(
            results.gold_and_predicted, title="Dev", x_label="gold", y_label="predicted"
        )
        blocks += [heading("Gold and predicted"), figures([figure(plot)])]
    return blocks


def threshold_table(results: FinetuneResults) -> list[Markup]:
    if not results.thresholds:
        return []
    rows = [(name, fixed(value)) for name, value in results.thresholds.items()]
    text = "Fitted on dev, so the scores above are a little better than on new data."
    parts = [table(("threshold", "value"), rows, numbers=("value",)), paragraph(text, "soft")]
    return [heading("Thresholds"), *parts]


def error_table(results: FinetuneResults) -> list[Markup]:
    if not results.errors:
        return []
    columns = ("text", "gold", "predicted", "confidence", "place")
    rows = [
        (cut(e.text), cut(e.gold), cut(e.predicted), percent(e.confidence), e.place)
        for e in results.errors
    ]
    return [
        heading("The worst errors"),
        table(columns, rows, numbers=("confidence",), texts=("text",)),
    ]


def settings_table(results: FinetuneResults) -> list[Markup]:
    total = duration(sum(run.seconds for run in results.runs))
    rows = [("time of all runs", total), *results.cost.items()]
    counts = {k: v for k, v in results.best().scores.items() if k.startswith("num_")}
    rows += [
        (name.removeprefix("num_").replace("_", " "), show(name, value))
        for name, value in counts.items()
    ]
    rows += [(name, setting(value)) for name, value in results.settings.items()]
    rows += [(name, setting(value)) for name, value in results.best().settings.items()]
    return [table(("setting of the best run", "value"), rows)]


def setting(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " …"


def fields(value: object) -> dict[str, object]:
    """A dataclass as a dictionary, one level deep."""
    assert dataclasses.is_dataclass(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def plain(value: object) -> object:
    """The same in what JSON has; a number that is none is null."""
    if dataclasses.is_dataclass(value):
        return plain(fields(value))
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
