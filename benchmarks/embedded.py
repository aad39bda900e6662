"""All that is said of the model that ships: masks and pairs, tasks, what eight bits cost, size.

    python benchmarks/embedded.py --model MODEL --plain PLAIN --minilm MINILM --data DATA \\
        --corpus CORPUS --work WORK --out embedded.json --parallel 16
    ... --size                                   # with files, wheel, time to open, memory
    ... --run RUN --store STORE                  # what eight bits cost, where PLAIN is gone
    ... --learners ours                          # the others' tasks are in embedded.json already
    ... --limit 32 --rates 1e-4 --seeds 2        # a try
    ... --change RTE.epochs=10 RTE.batch_size=16 # for all models: what is wanted of the protocol

MODEL has its weights in eight bits, PLAIN is the same before that. Tasks: the rate of the four that
is best on dev with one seed, then five seeds with it; the same for MiniLM and for random weights of
the model's shape. PLAIN has the rate and the seeds of MODEL, so that each seed is a pair.

Jobs that are in WORK already are not run again: what was stopped goes on. A job is known by a hash
of its model's files and by the limit; so is what `--out` holds from before, and what is of another
model or limit is dropped. The result is written after each job.
"""

import argparse
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import held_out
import scores
from bertie.checkpoint.model_dir import read_config, save_model
from bertie.metrics.intervals import mean, spread
from bertie.model.bert import Bert
from opening import measure_size
from scores import Job, Place
from splits import split_titles

RATES = (2e-5, 3e-5, 5e-5, 1e-4)
SQUAD = "SQuAD-1.1"
METRICS = {  # of each set, those that the field reports
    "SST-2": ("accuracy",),
    SQUAD: ("f1", "exact"),
    "CoNLL-2003": ("f1",),
    "CoLA": ("matthews",),
    "STS-B": ("pearson", "spearman"),
    "MRPC": ("accuracy", "f1"),
    "RTE": ("accuracy",),
}
GLUE = ("SST-2", "CoLA", "STS-B", "MRPC", "RTE")
SETS = {  # by model
    "ours": tuple(METRICS),
    "minilm": tuple(METRICS),
    "random": GLUE,
}
CHANGEABLE = ("batch_size", "epochs")  # of all models alike
PAIRED = ("SST-2",)  # learned by `plain` too: what eight bits cost
WANTED = {  # dev, except the last two groups, which are held-out text
    "SST-2": {"accuracy": 0.90},
    "MRPC": {"accuracy": 0.80, "f1": 0.865},
    "CoLA": {"matthews": 0.40},
    "STS-B": {"pearson": 0.875},
    "RTE": {"accuracy": 0.64},
    "wiki": {"mlm_loss": 2.55, "nsp_accuracy": 0.96},
    "books": {"mlm_loss": 2.40, "nsp_accuracy": 0.83},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A set learned by a model at a rate."""

    model: str
    weights: str  # hash of its files
    set: str
    peak: float
    changes: tuple[tuple[str, int], ...] = ()  # of the run's settings

    def job(self, seed: int) -> Job:
        (run,) = (run for run in scores.RUNS if run.name == self.set)
        model = f"{self.model}-{self.weights}"
        changed = "".join(f"-{name}={value}" for name, value in self.changes)
        name = f"{self.set}-{model}-{self.peak:g}{changed}"
        new = dict(self.changes)
        named = replace(
            run,
            name=name,
            model=model,
            peak=self.peak,
            epochs=new.pop("epochs", run.epochs),
            batch_size=new.pop("batch_size", run.batch_size),
        )
        assert not new, f"changes of what is not CHANGEABLE: {new}"
        return Job(run=named, side="bertie", seed=seed)


# --- the tasks ---


def list_trials(
    models: Mapping[str, str],
    sets: Sequence[str],
    rates: Sequence[float],
    changes: Mapping[str, dict[str, int]],
) -> list[Trial]:
    """Of all models but `plain`; the longest sets first, so that all end at about the same time."""
    return [
        Trial(
            model=model,
            weights=models[model],
            set=name,
            peak=peak,
            changes=tuple(changes.get(name, {}).items()),
        )
        for name in METRICS
        for model in SETS
        for peak in rates
        if model in models and name in SETS[model] and name in sets
    ]


def run_missing(
    jobs: Sequence[Job], place: Place, parallel: int, limit_s: float, report: Callable[[], None]
) -> None:
    def tidy_up() -> None:  # a hundred models would fill a disk
        for path in place.work.glob("*/outcome.json"):
            shutil.rmtree(path.parent / "model", ignore_errors=True)
        report()

    missing = [job for job in jobs if not has_ended(job, place)]
    scores.run_all(missing, place, parallel=parallel, limit_s=limit_s, report=tidy_up)


def has_ended(job: Job, place: Place) -> bool:
    return "error" not in scores.read_outcome(job, place)


def score_of(trial: Trial, place: Place, seed: int = 0) -> float:
    """On dev, by the metric that counts; the lowest if it did not end."""
    outcome = scores.read_outcome(trial.job(seed), place)
    return float("-inf") if "error" in outcome else outcome["scores"][outcome["metric"]]


def choose(trials: Sequence[Trial], place: Place) -> list[Trial]:
    """Of each set and model, the rate that is best on dev with the first seed."""
    best: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        key = trial.set, trial.model
        if key not in best or score_of(trial, place) > score_of(best[key], place):
            best[key] = trial
    return list(best.values())


def pair_up(chosen: Sequence[Trial], plain: str | None) -> list[Trial]:
    """The trials of `plain`: the rate that was chosen for the same weights in eight bits."""
    return [
        replace(trial, model="plain", weights=plain)
        for trial in chosen
        if plain is not None and trial.model == "ours" and trial.set in PAIRED
    ]


def summarise(
    trials: Sequence[Trial], plain: str | None, place: Place, num_seeds: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Set -> model -> rate, mean and spread of each metric on dev and test, over the seeds."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    chosen = choose(trials, place)
    for trial in (*chosen, *pair_up(chosen, plain)):
        outcomes = read_ended(trial, place, num_seeds)
        if not outcomes:  # it says nothing against what another machine found
            continue
        row: dict[str, Any] = {
            "peak": trial.peak,
            "changes": dict(trial.changes),
            "num_seeds": len(outcomes),
            "measured_on": f"{name_device(place)}, {place.precision}",
            "by_rate": {f"{t.peak:g}": score_of(t, place) for t in trials if is_alike(t, trial)},
            "seconds": sum(one["seconds"] for one in outcomes.values()),
        }
        for part, key in (("dev", "scores"), ("test", "test")):
            for metric in METRICS[trial.set]:
                ended = [one.get(key, {}) for one in outcomes.values()]
                values = [one[metric] for one in ended if metric in one]
                if values:
                    row.setdefault(part, {})[metric] = describe(values)
        if trial.model == "plain":
            ours = next(t for t in chosen if (t.set, t.model) == (trial.set, "ours"))
            row |= subtract(trial.set, read_ended(ours, place, num_seeds), outcomes)
        table.setdefault(trial.set, {})[trial.model] = row
    return table


def read_ended(trial: Trial, place: Place, num_seeds: int) -> dict[int, dict[str, Any]]:
    """By seed; those that failed or were not run are left out."""
    outcomes = {seed: scores.read_outcome(trial.job(seed), place) for seed in range(num_seeds)}
    return {seed: one for seed, one in outcomes.items() if "error" not in one}


def subtract(
    name: str, ours: Mapping[int, dict[str, Any]], plain: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """What eight bits change: the difference of each seed that both have."""
    seeds = sorted(ours.keys() & plain.keys())
    return {
        "ours_minus_plain": {
            metric: describe(
                [ours[n]["scores"][metric] - plain[n]["scores"][metric] for n in seeds]
            )
            for metric in METRICS[name]
            if seeds
        }
    }


def is_alike(one: Trial, other: Trial) -> bool:
    return (one.set, one.model) == (other.set, other.model)


def describe(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": mean(values), "spread": spread(values), "scores": list(values)}


# --- models ---


def hash_model(directory: Path, *patterns: str) -> str:
    """Twelve digits that change with its weights, settings or vocabulary."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in directory.glob(pattern)):
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def hash_models(given: Mapping[str, Path]) -> dict[str, str]:
    """Of each model by name; random weights are known by what they are made of."""
    shape = ("config.json", "vocab.txt", "tokenizer*.json")
    found = {
        name: hash_model(path, *shape, "*.safetensors", "*.bin") for name, path in given.items()
    }
    return found | {"random": hash_model(given["ours"], *shape)}


def put_models(given: Mapping[str, Path], hashes: Mapping[str, str], folder: Path) -> None:
    """All models in one folder, by their names and hashes; random weights are made here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in given.items():
        link = folder / f"{name}-{hashes[name]}"
        link.unlink(missing_ok=True)  # the model may have moved
        link.symlink_to(path.absolute())
    made = folder / f"random-{hashes['random']}"
    if not made.exists():
        generator = torch.Generator().manual_seed(0)
        model = Bert(read_config(given["ours"]), (), generator=generator)
        save_model(model, made, tokenizer_from=given["ours"])


def keep_valid(
    result: Mapping[str, Any],
    hashes: Mapping[str, str],
    limit: int,
    changes: Mapping[str, dict[str, int]],
) -> dict[str, Any]:
    """Of what was found before, all that is of the same models, limit and changes."""
    before = result.get("models", {})
    if result.get("limit") != limit:
        return {}

    def is_kept(model: str) -> bool:
        if model in hashes:
            return bool(before.get(model) == hashes[model])
        # MiniLM is what it is; `plain` belongs to the model that ships
        return model == "minilm" or before.get("ours") == hashes["ours"]

    kept: dict[str, Any] = {"models": {m: one for m, one in before.items() if is_kept(m)}}
    text = {m: one for m, one in result.get("held_out", {}).items() if is_kept(m)}
    tasks = {
        name: {
            m: one
            for m, one in by_model.items()
            if is_kept(m) and one.get("changes", {}) == changes.get(name, {})
        }
        for name, by_model in result.get("tasks", {}).items()
    }
    kept |= {"held_out": text, "tasks": {name: one for name, one in tasks.items() if one}}
    if is_kept("ours"):
        kept |= {name: result[name] for name in ("size", "look_again") if name in result}
    return kept | {name: result[name] for name in ("devices", "minutes") if name in result}


def merge(result: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Sets and models may come one by one."""
    for name, part in found.items():
        old = result.get(name, {})
        is_by_set = name == "tasks"
        new = {key: old.get(key, {}) | one for key, one in part.items()} if is_by_set else part
        result[name] = old | new


# --- all of it ---


def compare(result: dict[str, Any]) -> dict[str, Any]:
    """What was wanted, what was found, and whether that is enough."""
    found: dict[str, Any] = {}
    for name, wanted in WANTED.items():
        if name in held_out.GROUPS:
            figures = result.get("held_out", {}).get("ours", {}).get(name, {})
        else:
            dev = result.get("tasks", {}).get(name, {}).get("ours", {}).get("dev", {})
            figures = {metric: one["mean"] for metric, one in dev.items()}
        for metric, value in wanted.items():
            if metric in figures:
                is_loss = metric.endswith("loss")
                reached = figures[metric] <= value if is_loss else figures[metric] >= value
                found[f"{name} {metric}"] = {
                    "wanted": value,
                    "found": figures[metric],
                    "is_reached": reached,
                }
    return found


def evaluate_text(options: argparse.Namespace) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        texts = held_out.gather(options.corpus, Path(folder), options.percent)
        models = {"ours": options.model, "plain": options.plain}
        return {
            name: held_out.evaluate_groups(path, texts, options.limit)
            for name, path in models.items()
            if path is not None
        }


def evaluate_tasks(
    options: argparse.Namespace,
    hashes: Mapping[str, str],
    place: Place,
    report: Callable[[dict[str, Any]], None],
) -> None:
    learners = {name: one for name, one in hashes.items() if name in options.learners}
    trials = list_trials(learners, options.sets, options.rates, options.change)
    plain = hashes.get("plain")

    def tell() -> None:
        report({"tasks": summarise(trials, plain, place, options.seeds)})

    first = [trial.job(0) for trial in trials]
    run_missing(first, place, options.parallel, options.job_seconds, tell)
    chosen = choose(trials, place)
    paired = pair_up(chosen, plain)
    # What eight bits cost first: PLAIN may be gone when the machine is.
    rest = [t.job(seed) for t in (*paired, *chosen) for seed in range(options.seeds)]
    run_missing(rest, place, options.parallel, options.job_seconds, tell)
    tell()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="model directory, as it ships")
    parser.add_argument("--plain", type=Path, help="the same, before it was stored in eight bits")
    parser.add_argument(
        "--run", type=Path, help="folder of its run: look again as it did at its end"
    )
    parser.add_argument("--store", type=Path, help="that it was trained on, for --run")
    parser.add_argument("--minilm", type=Path, help="MiniLM's directory, to compare")
    parser.add_argument("--data", type=Path, help="folder of the published sets")
    parser.add_argument("--corpus", type=Path, help="text: JSON lines with their source")
    parser.add_argument("--work", type=Path, required=True, help="folder for what jobs leave")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", nargs="+", default=list(METRICS), choices=list(METRICS))
    parser.add_argument("--learners", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5, help="at the best rate")
    parser.add_argument("--change", nargs="+", default=[], metavar="SET.NAME=NUMBER")
    parser.add_argument("--percent", type=int, default=held_out.PERCENT, help="held out")
    parser.add_argument("--limit", type=int, default=0, help="rows and instances, for a try")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--job-seconds", type=float, default=900, help="that a job may take")
    parser.add_argument("--threads", type=int, default=1, help="of a job")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), help="of tasks; none: bf16 on a GPU, else fp32"
    )
    parser.add_argument("--size", action="store_true", help="measure files, opening, memory")
    options = parser.parse_args()
    try:
        options.change = read_changes(options.change)
    except ValueError as error:
        parser.error(str(error))
    if (options.run is None) != (options.store is None):
        parser.error("--run and --store go together")
    return options


def read_changes(words: Sequence[str]) -> dict[str, dict[str, int]]:
    """
    >>> read_changes(["RTE.epochs=10", "RTE.batch_size=16"])
    {'RTE': {'batch_size': 16, 'epochs': 10}}
    """
    found: dict[str, dict[str, int]] = {}
    for word in sorted(words):
        path, _, number = word.partition("=")
        name, _, field = path.rpartition(".")
        if name not in METRICS or field not in CHANGEABLE or not number.isdecimal():
            known = f"{', '.join(METRICS)}; {', '.join(CHANGEABLE)}"
            raise ValueError(f"--change is SET.NAME=NUMBER of {known}; found {word}")
        found.setdefault(name, {})[field] = int(number)
    return found


def find_place(options: argparse.Namespace) -> Place:
    """Jobs of a try are kept apart from whole ones."""
    work = options.work.absolute()
    device: scores.Device = "cuda" if torch.cuda.is_available() else "cpu"
    return Place(
        data=(options.data or Path()).absolute(),
        models=work / "models",
        work=work / (f"jobs-{options.limit}" if options.limit else "jobs"),
        device=device,
        precision=options.precision or scores.PRECISION[device],
        limit=options.limit,
        threads=options.threads,
    )


def name_device(place: Place) -> str:
    return torch.cuda.get_device_name() if place.device == "cuda" else "cpu"


def main() -> None:
    options, started_at = parse(), time.monotonic()
    named = {"ours": options.model, "plain": options.plain, "minilm": options.minilm}
    given = {name: path for name, path in named.items() if path is not None}
    hashes, place = hash_models(given), find_place(options)
    place.work.mkdir(parents=True, exist_ok=True)
    put_models(given, hashes, place.models)
    result: dict[str, Any] = {}
    if options.out.is_file():  # parts that were measured before, on this machine or another
        whole = json.loads(options.out.read_text(encoding="utf-8"))
        result = keep_valid(whole["result"], hashes, options.limit, options.change)
        if result.get("models") != whole["result"].get("models"):
            print(f"{options.out}: what is of other weights, or of another limit, is dropped")
    minutes_before = result.get("minutes", 0.0)

    def report(found: dict[str, Any]) -> None:
        # Rows of tasks tell it themselves; what is opened is opened on a CPU.
        devices = {name: name_device(place) for name in found if name not in ("tasks", "size")}
        merge(result, found | {"models": hashes, "devices": devices})
        result["limit"] = options.limit
        result["wanted"] = compare(result)
        result["protocol"] = held_out.describe_protocol() | {"rates": options.rates}
        result["minutes"] = round(minutes_before + (time.monotonic() - started_at) / 60, 2)
        scores.write_result(options.out, result)

    report({})
    if options.size:
        report({"size": measure_size(options.model)})
    if options.run is not None:
        report({"look_again": held_out.look_again(options.model, options.run, options.store)})
    if options.corpus is not None:
        report({"held_out": evaluate_text(options)})
    if options.data is not None:
        split_titles(place.data / scores.SPLIT[SQUAD], place.work / "splits" / SQUAD)
        evaluate_tasks(options, hashes, place, report)
    for name, found in result["wanted"].items():
        word = "reached" if found["is_reached"] else "MISSED"
        print(f"{name}: {found['found']:.4f}, wanted {found['wanted']}: {word}")


if __name__ == "__main__":
    main()
