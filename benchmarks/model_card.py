"""The card of the model that ships: a text with gaps, filled with what runs and benchmarks wrote.

    python benchmarks/model_card.py --run RUN --store STORE --scores embedded.json --out FOLDER
    ... --run FIRST SECOND        # SECOND went on from FIRST: what they cost is summed
    ... --after CARD              # went on from the model of this card, whose runs are no more
    python benchmarks/model_card.py --after CARD --scores embedded.json --out FOLDER   # new scores

RUN has run.json and metrics.jsonl, STORE manifest.json; FOLDER/README.md is written. A figure that
was not measured is a dash. Without --run, what CARD says of data and runs stays as it is.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from bertie.checkpoint.model_dir import read_config
from bertie.config import read_recipe
from bertie.model.config import ModelConfig, count_parameters
from bertie.pretrain import HARMLESS, PretrainRecipe
from bertie.train.record import flatten, is_one_of

RECIPE = "embedded-en"
NO_SETTINGS = {"start", "store_digest", "model.vocab_size"}  # said elsewhere
TEXT = Path(__file__).with_suffix(".md")
NUM_POINTS = 10  # of the curve
NONE = "–"
TITLES = {"ours": "this model", "minilm": "all-MiniLM-L6-v2", "random": "random start"}
GROUPS = {"wiki": "Wikipedia", "books": "books"}
ON_TEST = ("SQuAD-1.1", "CoNLL-2003")
SCORES = "\n## Masks and pairs"  # from here on, a card is made of scores
FIGURES = ("mlm_loss", "mlm_accuracy", "nats_per_character", "nsp_accuracy")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def show(name: str, value: float | None, more_digits: int = 0) -> str:
    """A figure in the way of its kind: shares as percent, losses in nats."""
    if value is None:
        return NONE
    if name.endswith(("loss", "character")):
        return f"{value:.{3 + more_digits}f}"
    return f"{100 * value:.{1 + more_digits}f}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# --- the run ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What the folder of a run says."""

    record: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        return [line for line in self.lines if "progress" in line][-1]


def read_run(folder: Path) -> Run:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Run(record=read(folder / "run.json"), lines=[json.loads(line) for line in lines])


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What an older card says of the runs that came first."""

    runs: list[str]
    curve: list[str]
    counted: dict[str, float]  # step, tokens, seconds


NO_CARD = Before(runs=[], curve=[], counted={"step": 0, "tokens": 0, "seconds": 0.0})


def read_card(path: Path | None) -> Before:
    """
    >>> read_card(None).counted["step"]
    0
    """
    if path is None:
        return NO_CARD
    part = path.read_text(encoding="utf-8").partition("## Recipe and cost")[2].partition("\n## ")[0]
    total = re.search(r"In all ([\d,]+) steps, ([\d,]+) tokens .*?, ([\d.]+) minutes", part)
    if total is None:
        raise SystemExit(f"{path} does not say what its runs cost; is it a card of this script's?")
    steps, tokens, minutes = (float(number.replace(",", "")) for number in total.groups())
    lines = part.splitlines()
    return Before(
        runs=[line for line in lines if line.startswith("- ")],
        curve=[line for line in lines if re.match(r"\| \d", line)],
        counted={"step": int(steps), "tokens": int(tokens), "seconds": 60 * minutes},
    )


def describe_runs(folders: Sequence[Path], store: Path, before: Before) -> dict[str, str]:
    runs, manifest = [read_run(folder) for folder in folders], read(store / "manifest.json")
    for folder, run in list(zip(folders, runs, strict=True))[0 if before.runs else 1 :]:
        if not run.record["settings"].get("start"):
            raise SystemExit(f"{folder} began with random weights: it is no part of the model")
    settings = runs[-1].record["settings"]["model"]
    config = ModelConfig(**settings)
    total = {
        name: count + sum(run.last[name] for run in runs) for name, count in before.counted.items()
    }
    return {
        **{name: f"{settings[name]:,}" for name in ("num_layers", "num_heads", "vocab_size")},
        "hidden_size": str(config.hidden_size),
        "max_positions": str(config.max_positions),
        "dropout": f"{config.dropout:g}",
        "num_parameters": f"{count_parameters(config, ('masked_lm', 'next_sentence')):,}",
        "num_characters": f"{manifest['statistics']['characters']:,}",
        "num_tokens": f"{manifest['num_tokens']:,}",
        "num_documents": f"{manifest['num_documents']:,}",
        "num_held_out": f"{manifest['statistics']['documents_held_out']:,}",
        "runs": "\n".join([*before.runs, *map(describe_run, runs)]),
        "steps": f"{total['step']:,}",
        "tokens": f"{total['tokens']:,}",
        "passes": f"{total['tokens'] / manifest['num_tokens']:.1f}",
        "minutes": f"{total['seconds'] / 60:.1f}",
        "tokens_per_s": f"{total['tokens'] / total['seconds']:,.0f}",
        "curve": "\n".join([*before.curve, *draw_curve(join_lines(runs, before.counted))]),
    }


def describe_run(run: Run) -> str:
    record, last = run.record, run.last
    start = record["settings"].get("start")
    changes = ", ".join(f"`{one}`" for one in list_changes(record["settings"]))
    device = record.get("gpu") or record.get("machine") or "a CPU"
    return (
        f"- {'on from the run before, or what it was stored as: ' if start else ''}"
        f"recipe `{RECIPE}`, {f'with {changes}' if changes else 'as it is'}; "
        f"started {record['started']} on {device}; {last['step']:,} steps, {last['tokens']:,} "
        f"tokens, {last['seconds'] / 60:.1f} minutes; products in "
        f"{record['settings']['train']['precision']}, weights in fp32"
    )


def list_changes(settings: Mapping[str, Any]) -> list[str]:
    """Settings that are not the recipe's, of those that change what is learned.

    One that the run does not know came after it, with a default that changes nothing.
    """
    recipe, defaults = (
        flatten(asdict(one)) for one in (read_recipe(PretrainRecipe, RECIPE), PretrainRecipe())
    )
    used = {name: defaults[name] for name in recipe if name in defaults} | flatten(settings)
    return [
        f"{name} = {used.get(name, 'none')}"
        for name in sorted(recipe.keys() | used.keys())
        if not is_one_of(name, HARMLESS | NO_SETTINGS) and recipe.get(name) != used.get(name)
    ]


def join_lines(runs: Sequence[Run], counted: Mapping[str, float]) -> list[dict[str, Any]]:
    """Lines of all runs, counted on from what came before, and from one to the next."""
    joined = []
    for run in runs:
        joined += [
            line | {name: line[name] + before for name, before in counted.items()}
            for line in run.lines
        ]
        counted = {name: before + run.last[name] for name, before in counted.items()}
    return joined


def draw_curve(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Some lines of training, evenly spaced, and the last; each with the evaluation of its step."""
    held_out = {line["step"]: line["held_out"] for line in lines if "held_out" in line}
    trained = [line for line in lines if "progress" in line]
    numbers = {round(n * (len(trained) - 1) / NUM_POINTS) for n in range(1, NUM_POINTS + 1)}
    steps = {trained[number]["step"] for number in numbers} | held_out.keys()
    rows = []
    for line in trained:
        if line["step"] in steps:
            seen = held_out.get(line["step"], {})
            names = ("mlm_loss", "mask_loss", "nsp_accuracy")
            rows.append(
                row(
                    f"{line['seconds'] / 60:.1f}",
                    f"{line['tokens']:,}",
                    *(show(name, line.get(name)) for name in ("mlm_loss", "nsp_accuracy")),
                    *(show(name, seen.get(name)) for name in names),
                )
            )
    return rows


# --- the scores ---


def describe_scores(scores: Mapping[str, Any]) -> dict[str, str]:
    tasks, size = scores.get("tasks", {}), scores.get("size", {})
    models = [name for name in TITLES if any(name in one for one in tasks.values())]
    seeds = {one["num_seeds"] for per in tasks.values() for one in per.values()}
    megabytes = {
        name: NONE if size.get(f"{name}_bytes") is None else f"{size[f'{name}_bytes'] / 1e6:.1f}"
        for name in ("model", "wheel")
    }
    return {
        "held_out": "\n".join(list_groups(scores.get("held_out", {}).get("ours", {}))),
        "num_seeds": " or ".join(map(str, sorted(seeds))) or NONE,
        "rates": ", ".join(f"{rate:g}" for rate in scores.get("protocol", {}).get("rates", [])),
        "models": " | ".join(TITLES[name] for name in models),
        "rule": "|".join("---" for _ in models) or "---",
        "tasks": "\n".join(list_tasks(tasks, models)),
        "places": "; ".join(list_places(tasks)) or NONE,
        "wanted": "\n".join(list_wanted(scores.get("wanted", {}))),
        "storage": "\n".join(list_storage(scores)),
        "model_mb": megabytes["model"],
        "wheel_mb": megabytes["wheel"],
        **{
            name: f"{size[name]:.2f}" if name in size else NONE
            for name in ("open_s", "first_answer_s")
        },
        **{
            name: f"{size[name]:.0f}" if name in size else NONE
            for name in ("model_memory_mb", "process_memory_mb", "threads")
        },
        "processor": str(size.get("processor", NONE)),
    }


def list_groups(groups: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        row(
            f"{GROUPS[group]} ({found['num_documents']:,})",
            *(show(name, found.get(name)) for name in FIGURES),
        )
        for group, found in groups.items()
    ]


def list_tasks(tasks: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    rows = []
    for name, by_model in tasks.items():
        part = "test" if name in ON_TEST else "dev"
        found = [by_model.get(model, {}) for model in models]
        metrics = next((list(one[part]) for one in found if part in one), [])
        cells = [show_scores(one, part, metrics) for one in found]
        title = f"{name}, {' / '.join(metrics)}" + (" (test)" if part == "test" else "")
        rows.append(row(title, *cells))
    return rows


def list_places(tasks: Mapping[str, Any]) -> list[str]:
    """Where tasks were learned, the place of most rows first; of the others, which they are."""
    rows: dict[str, list[str]] = {}
    for name, by_model in tasks.items():
        for model, one in by_model.items():
            if model in TITLES:
                place = one.get("measured_on", NONE)
                rows.setdefault(place, []).append(f"{name} of {TITLES[model]}")
    first, *others = sorted(rows, key=lambda place: -len(rows[place])) or [NONE]
    return [first, *(f"on {place}: {', '.join(rows[place])}" for place in others)]


def show_scores(found: Mapping[str, Any], part: str, metrics: Sequence[str]) -> str:
    if part not in found:
        return NONE
    scores = [found[part][metric] for metric in metrics]
    if found["num_seeds"] == 1:  # no spread
        shown = " / ".join(f"{100 * one['mean']:.1f}" for one in scores)
        return f"{shown} ({found['peak']:g}, one seed)"
    shown = " / ".join(f"{100 * one['mean']:.1f} ± {100 * one['spread']:.1f}" for one in scores)
    return f"{shown} ({found['peak']:g})"


def list_wanted(wanted: Mapping[str, Any]) -> list[str]:
    return [
        row(
            name.replace("_", " "),
            show(name, one["wanted"]),
            show_beside(name, one["found"], one["wanted"]),
            "reached" if one["is_reached"] else "not reached",
        )
        for name, one in wanted.items()
    ]


def show_beside(name: str, found: float, wanted: float) -> str:
    """With a digit more where it would look like what was wanted, and is not."""
    looks_equal = found != wanted and show(name, found) == show(name, wanted)
    return show(name, found, more_digits=int(looks_equal))


def list_storage(scores: Mapping[str, Any]) -> list[str]:
    text, rows = scores.get("held_out", {}), []
    if again := scores.get("look_again"):
        before, after = (again[when]["mlm_loss"] for when in ("before", "after"))
        losses = f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}"
        device = scores.get("devices", {}).get("look_again", NONE)
        rows.append(row(f"MLM loss at the end of the run, after that on {device}", *losses))
    for group in text.get("plain", {}):
        plain, ours = (text[model][group]["mlm_loss"] for model in ("plain", "ours"))
        losses = f"{plain:.4f}", f"{ours:.4f}", f"{ours - plain:+.4f}"
        rows.append(row(f"MLM loss, {GROUPS[group]}", *losses))
    for name, by_model in scores.get("tasks", {}).items():
        if "plain" in by_model:
            metrics = list(by_model["plain"].get("dev", {}))
            cells = (show_scores(by_model[model], "dev", metrics) for model in ("plain", "ours"))
            changes = by_model["plain"].get("ours_minus_plain", {})
            shown = [
                f"{100 * changes[metric]['mean']:+.2f} ± {100 * changes[metric]['spread']:.2f}"
                for metric in metrics
                if metric in changes
            ]
            rows.append(row(f"{name}, dev", *cells, " / ".join(shown) or NONE))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--run", type=Path, nargs="+", default=[], help="pre-training; those that went on, too"
    )
    parser.add_argument("--after", type=Path, metavar="CARD", help="of the model it went on from")
    parser.add_argument("--store", type=Path, help="its manifest.json is enough")
    parser.add_argument("--scores", type=Path, required=True, help="what embedded.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the model's directory")
    options = parser.parse_args()
    if bool(options.run) != (options.store is not None) or not (options.run or options.after):
        parser.error("give --run with --store, or --after for new scores of the same model")
    text = Template(TEXT.read_text(encoding="utf-8"))
    values = describe_scores(read(options.scores)["result"])
    if options.run:
        before = read_card(options.after)
        card = text.substitute(values | describe_runs(options.run, options.store, before))
    else:
        values |= {"dropout": f"{read_config(options.out).dropout:g}"}
        old = options.after.read_text(encoding="utf-8").partition(SCORES)[0]
        card = old + SCORES + text.safe_substitute(values).partition(SCORES)[2]
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(options.out / "README.md")


if __name__ == "__main__":
    main()
