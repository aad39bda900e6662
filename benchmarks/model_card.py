"""The card of the model that ships: a text with gaps, filled with what runs and benchmarks wrote.

    python benchmarks/model_card.py --run RUN --store STORE --scores embedded.json --out FOLDER

RUN has run.json and metrics.jsonl, STORE manifest.json; FOLDER/README.md is written. A figure that
was not measured is a dash.
"""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from bertie.model.config import ModelConfig, count_parameters

TEXT = Path(__file__).with_suffix(".md")
NUM_POINTS = 10  # of the curve
NONE = "–"
TITLES = {"ours": "this model", "minilm": "all-MiniLM-L6-v2", "random": "random start"}
GROUPS = {"wiki": "Wikipedia", "books": "books"}
ON_TEST = ("SQuAD-1.1", "CoNLL-2003")
FIGURES = ("mlm_loss", "mlm_accuracy", "nats_per_character", "nsp_accuracy")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def show(name: str, value: float | None) -> str:
    """A figure in the way of its kind: shares as percent, losses in nats."""
    if value is None:
        return NONE
    return f"{value:.3f}" if name.endswith(("loss", "character")) else f"{100 * value:.1f}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# --- the run ---


def describe_run(run: Path, store: Path) -> dict[str, str]:
    record, manifest = read(run / "run.json"), read(store / "manifest.json")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    last = [line for line in lines if "progress" in line][-1]
    settings = record["settings"]["model"]
    config = ModelConfig(**settings)
    characters = manifest["statistics"]["characters"]
    return {
        **{name: f"{settings[name]:,}" for name in ("num_layers", "num_heads", "vocab_size")},
        "hidden_size": str(config.hidden_size),
        "max_positions": str(config.max_positions),
        "num_parameters": f"{count_parameters(config, ('masked_lm', 'next_sentence')):,}",
        "num_characters": f"{characters:,}",
        "num_tokens": f"{manifest['num_tokens']:,}",
        "num_documents": f"{manifest['num_documents']:,}",
        "num_held_out": f"{manifest['statistics']['documents_held_out']:,}",
        "command": shlex.join(["bertie", *record["command"][1:]]),
        "started": record["started"],
        "precision": record["settings"]["train"]["precision"],
        "device": str(record.get("gpu") or record.get("machine") or "a CPU"),
        "steps": f"{last['step']:,}",
        "tokens": f"{last['tokens']:,}",
        "passes": f"{last['tokens'] / manifest['num_tokens']:.1f}",
        "minutes": f"{last['seconds'] / 60:.1f}",
        "tokens_per_s": f"{last['tokens'] / last['seconds']:,.0f}",
        "curve": "\n".join(draw_curve(lines)),
    }


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
            for name in ("model_memory_mb", "process_memory_mb")
        },
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
        metrics = list(by_model.get("ours", {}).get(part, {}))
        cells = [show_scores(one, part, metrics) for one in found]
        title = f"{name}, {' / '.join(metrics)}" + (" (test)" if part == "test" else "")
        rows.append(row(title, *cells))
    return rows


def show_scores(found: Mapping[str, Any], part: str, metrics: Sequence[str]) -> str:
    if part not in found:
        return NONE
    scores = (found[part][metric] for metric in metrics)
    shown = " / ".join(f"{100 * one['mean']:.1f} ± {100 * one['spread']:.1f}" for one in scores)
    return f"{shown} ({found['peak']:g})"


def list_wanted(wanted: Mapping[str, Any]) -> list[str]:
    return [
        row(
            name.replace("_", " "),
            show(name, one["wanted"]),
            show(name, one["found"]),
            "reached" if one["is_reached"] else "not reached",
        )
        for name, one in wanted.items()
    ]


def list_storage(scores: Mapping[str, Any]) -> list[str]:
    text, rows = scores.get("held_out", {}), []
    for group in text.get("plain", {}):
        both = (text[model][group]["mlm_loss"] for model in ("plain", "ours"))
        rows.append(row(f"MLM loss, {GROUPS[group]}", *(f"{loss:.4f}" for loss in both)))
    for name, by_model in scores.get("tasks", {}).items():
        if "plain" in by_model:
            metrics = list(by_model["plain"].get("dev", {}))
            cells = (show_scores(by_model[model], "dev", metrics) for model in ("plain", "ours"))
            rows.append(row(f"{name}, dev", *cells))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the pre-training")
    parser.add_argument("--store", type=Path, required=True, help="its manifest.json is enough")
    parser.add_argument("--scores", type=Path, required=True, help="what embedded.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the model's directory")
    options = parser.parse_args()
    values = describe_run(options.run, options.store)
    values |= describe_scores(read(options.scores)["result"])
    card = Template(TEXT.read_text(encoding="utf-8")).substitute(values)
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(options.out / "README.md")


if __name__ == "__main__":
    main()
