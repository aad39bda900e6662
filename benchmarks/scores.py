"""Scores of fine-tuning on real sets, over seeds; of some, beside the same through `transformers`.

    python benchmarks/scores.py --data DATA --models MODELS --out scores.json --parallel 10
    python benchmarks/scores.py --data DATA --models MODELS --out scores.json --limit 64   # a try

DATA holds the sets as published, MODELS the directories of the encoders. Both sides start from the
same weights and have the same rows, lengths, batch size, epochs, rates, optimizer and seeds, and
keep the epoch that is best on dev; see peer.py for what is the peer's own. A job is one side of a
run with one seed, in a process of its own: steps of such small models keep a GPU waiting, so many
jobs share one. The result is written after each job.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import machine
from bertie.datasets import DataFiles, read_sets
from bertie.finetune import finetune
from bertie.metrics.intervals import mean, spread
from bertie.train.loop import Precision, TrainConfig
from bertie.train.optim import OptimConfig
from bertie.tuning import FinetuneRecipe, TuneConfig
from splits import split_titles, take_rows

Side = Literal["bertie", "transformers"]
SIDES: tuple[Side, ...] = ("bertie", "transformers")
Device = Literal["cpu", "cuda"]
PRECISION: dict[Device, Precision] = {"cpu": "fp32", "cuda": "bf16"}
MICRO_TOKENS = 16_384
# Loaded once, before the jobs fork off.
PRELOADED = ["torch", "bertie.finetune", "transformers.models.bert.modeling_bert"]
SPLIT = {
    "SQuAD-1.1": "SQuAD/dev-v1.1.json",
    "SQuAD-2.0": "SQuAD/dev-v2.0.json",
    "CMRC2018": "CMRC2018/squad-style-data/cmrc2018_dev.json",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """A set, and how it is learned."""

    name: str
    task: str
    train: str
    dev: str = ""  # none: a tenth of train, that with the lowest hash of its text
    test: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of the task
    model: str = "minilm"
    after: str = ""  # the run whose model, of the same seed, is the start
    epochs: int = 3
    peak: float = 1e-4
    batch_size: int = 32
    num_rows: int = 0  # of train, evenly spaced; 0: all
    has_peer: bool = False
    skip_bad: bool = False  # leave out rows whose answers are not where they should be


def glue(name: str, folder: str = "", *, max_length: int = 128, **values: Any) -> Run:
    return Run(
        name=name,
        task="classify",
        train=f"GLUE/{folder or name}/train.tsv",
        dev=f"GLUE/{folder or name}/dev.tsv",
        settings={"truncate": True, "max_length": max_length},  # as the peer does it
        **values,
    )


def questions(name: str, **values: Any) -> Run:
    """Of a file that is split by titles."""
    return Run(
        name=name,
        task="span",
        train=f"{name}/train.json",
        dev=f"{name}/dev.json",
        test=f"{name}/test.json",
        **values,
    )


def tag_conll(name: str, *, has_peer: bool = False, **settings: Any) -> Run:
    return Run(
        name=name,
        task="tag",
        train="CoNLL-2003/eng.train",
        dev="CoNLL-2003/eng.testa",
        test="CoNLL-2003/eng.testb",
        settings=settings,
        has_peer=has_peer,
    )


def classify_imdb(name: str, *, truncate: bool) -> Run:
    return Run(
        name=name,
        task="classify",
        train="IMDB/train.jsonl",
        test="IMDB/test.jsonl",
        settings={"max_length": 256, "truncate": truncate},
        epochs=2,
    )


# The longest first, so that all end at about the same time.
RUNS = (
    Run(
        name="SNLI",
        task="classify",
        train="SNLI/snli_1.0_train_subset.jsonl",
        test="SNLI/snli_1.0_test.jsonl",
        epochs=1,
    ),
    Run(
        name="AFQMC",
        task="classify",
        train="AFQMC/train.txt",
        dev="AFQMC/dev.txt",
        settings={"metric": "macro_f1"},  # accuracy does not tell it from the more frequent class
        model="m3e-small",
        batch_size=128,
        epochs=6,
        has_peer=True,
    ),
    glue("SST-2", epochs=2),
    Run(
        name="HellaSwag",
        task="choice",
        train="HellaSwag/train.jsonl",
        dev="HellaSwag/val.jsonl",
        num_rows=10_000,
        epochs=2,
        has_peer=True,
    ),
    tag_conll("CoNLL-2003-document", context="document", max_length=256),
    Run(
        name="PeoplesDaily-NER",
        task="tag",
        train="PeoplesDaily-NER/train.txt",
        dev="PeoplesDaily-NER/dev.txt",
        model="m3e-small",
        epochs=1,
    ),
    classify_imdb("IMDB-windows", truncate=False),
    questions("SQuAD-1.1", epochs=4, has_peer=True),
    questions("SQuAD-2.0", epochs=4),
    tag_conll("CoNLL-2003", max_length=192, has_peer=True),
    classify_imdb("IMDB-truncated", truncate=True),
    questions(
        "CMRC2018",
        model="m3e-small",
        settings={"max_length": 512},
        epochs=10,
        peak=4e-4,  # at 1e-4 spans are not learned from so few questions
        has_peer=True,
        skip_bad=True,
    ),
    glue("CoLA", epochs=5, has_peer=True),
    Run(
        name="ChnSentiCorp",
        task="classify",
        train="ChnSentiCorp/train.tsv",
        dev="ChnSentiCorp/dev.tsv",
        test="ChnSentiCorp/test.tsv",
        settings={"truncate": True, "max_length": 256},
        model="m3e-small",
        has_peer=True,
    ),
    glue("STS-B", epochs=5, has_peer=True),
    glue("MRPC", epochs=5, has_peer=True),
    glue("RTE", max_length=256, epochs=5, has_peer=True),
    glue("RTE-after-SNLI", "RTE", max_length=256, epochs=5, after="SNLI"),
    glue("WNLI"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where everything is, and on what it runs."""

    data: Path
    models: Path
    work: Path
    device: Device
    precision: Precision
    limit: int = 0  # rows of each file; 0: all
    threads: int = 1

    def find(self, name: str, num_rows: int = 0) -> Path:
        """A file of data, or the part of it that is asked for."""
        in_work = self.work / "splits" / name
        path = in_work if in_work.is_file() else self.data / name
        count = min(filter(None, (self.limit, num_rows)), default=0)
        return take_rows(path, count, self.work / "rows" / str(os.getpid())) if count else path


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One side of a run, with one seed."""

    run: Run
    side: Side
    seed: int

    @property
    def name(self) -> str:
        return f"{self.run.name}-{self.side}-{self.seed}"

    def model_dir(self, place: Place) -> Path:
        if not self.run.after:
            return place.models / self.run.model
        return place.work / f"{self.run.after}-bertie-{self.seed}" / "model"


# --- one job ---


def make_recipe(job: Job, place: Place) -> FinetuneRecipe:
    run = job.run
    return FinetuneRecipe(
        model=job.model_dir(place),
        out=place.work / job.name,
        task={"name": run.task, **run.settings},
        data=DataFiles(
            train=place.find(run.train, run.num_rows),
            dev=place.find(run.dev) if run.dev else None,
            test=(place.find(run.test),) if run.test else (),
            skip_bad=run.skip_bad,
        ),
        tune=TuneConfig(batch_size=run.batch_size, micro_tokens=MICRO_TOKENS),
        optim=OptimConfig(name="adamw", peak=run.peak, warmup=0.1, schedule="linear"),
        train=TrainConfig(
            budget=f"{run.epochs} epochs",
            precision=place.precision,
            device=place.device,
            seed=job.seed,
            evaluate_every=0,
            save_every=0,
        ),
    )


def run_ours(job: Job, recipe: FinetuneRecipe) -> dict[str, Any]:
    done = finetune(recipe)
    results = done.results
    return {
        "metric": results.metric,
        "num_train": results.num_train,
        "num_dev": results.num_dev,
        "majority": results.majority,
        # Counts of what was cut or left out, without the places.
        "notes": [n.strip().split(" (/")[0] for n in results.notes if n.startswith("  ")],
        "scores": dict(results.runs[0].scores),
        "test": next(iter(results.tests.values()), {}),
        "curve": list(results.runs[0].curve),
    }


def run_theirs(job: Job, recipe: FinetuneRecipe) -> dict[str, Any]:
    from peer import tune

    assert recipe.model is not None
    sets = read_sets(recipe.task, recipe.data, recipe.model)
    scores = tune(
        sets.task,
        sets.train.examples,
        sets.dev.examples,
        recipe.model,
        batch_size=recipe.tune.batch_size,
        epochs=job.run.epochs,
        optim=recipe.optim,
        seed=job.seed,
        device=torch.device(recipe.train.device),
        precision=recipe.train.precision,
    )
    metric = sets.task.metric
    curve = [epoch[metric] for epoch in scores]
    return {"metric": metric, "scores": scores[curve.index(max(curve))], "curve": curve}


def run_job(job: Job, place: Place) -> None:
    """Leaves outcome.json in the folder of the job."""
    torch.set_num_threads(place.threads)
    folder = place.work / job.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    started_at = time.perf_counter()
    try:
        run = run_ours if job.side == "bertie" else run_theirs
        outcome = run(job, make_recipe(job, place))
    except Exception:  # whatever it was, the other jobs go on
        outcome = {"error": traceback.format_exc()}
    outcome |= {"seed": job.seed, "seconds": round(time.perf_counter() - started_at, 1)}
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "draft.json").write_text(json.dumps(outcome), encoding="utf-8")
    (folder / "draft.json").rename(folder / "outcome.json")


# --- all jobs ---


def run_all(
    jobs: Sequence[Job], place: Place, *, parallel: int, limit_s: float, report: Callable[[], None]
) -> None:
    """So many jobs at a time, in their order; one that takes too long is ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting, running = list(jobs), dict[Job, tuple[BaseProcess, float]]()
    while waiting or running:
        unfinished = {(job.run.name, job.seed) for job in (*waiting, *running)}
        ready = [job for job in waiting if (job.run.after, job.seed) not in unfinished]
        for job in ready[: parallel - len(running)]:
            waiting.remove(job)
            running[job] = context.Process(target=run_job, args=(job, place)), time.monotonic()
            running[job][0].start()
        time.sleep(0.1)
        for job, (process, started_at) in list(running.items()):
            if time.monotonic() - started_at > limit_s:
                process.kill()
                process.join()
            if not process.is_alive():
                del running[job]
                print(f"{job.name}: {describe(read_outcome(job, place))}", flush=True)
                report()


def read_outcome(job: Job, place: Place) -> dict[str, Any]:
    path = place.work / job.name / "outcome.json"
    if not path.is_file():
        return {"error": "it did not end in time", "seed": job.seed}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def describe(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return str(outcome["error"].strip().splitlines()[-1])
    return f"{outcome['metric']} {outcome['scores'][outcome['metric']]:.4f}, {outcome['seconds']} s"


# --- what came out ---


def summarise(jobs: Sequence[Job], place: Place) -> list[dict[str, Any]]:
    """One row a run: its settings, the scores of both sides, and whether ours are not worse."""
    rows = []
    for run in dict.fromkeys(job.run for job in jobs):
        row: dict[str, Any] = asdict(run)
        for side in SIDES:
            own = [job for job in jobs if job.run is run and job.side == side]
            ended = [job for job in own if (place.work / job.name / "outcome.json").is_file()]
            row[side] = summarise_side([read_outcome(job, place) for job in ended])
        ours, theirs = (row[side].get("dev") for side in SIDES)
        if ours and theirs:
            row["is_not_worse"] = ours["mean"] >= theirs["mean"] - theirs["spread"]
        rows.append(row)
    return rows


def summarise_side(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The score that counts on dev and test, over the seeds that ended well."""
    whole = [outcome for outcome in outcomes if "error" not in outcome]
    side: dict[str, Any] = {"errors": [one["error"] for one in outcomes if "error" in one]}
    for part, key in (("dev", "scores"), ("test", "test")):
        scores = [one[key][one["metric"]] for one in whole if one.get(key)]
        if scores:
            side[part] = {"mean": mean(scores), "spread": spread(scores), "scores": scores}
    side["seconds"] = [one["seconds"] for one in whole]
    return side | {"seeds": whole}


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    cells = [row["name"]]
    for side in SIDES:
        for part, values in row[side].items():
            if part in ("dev", "test"):
                cells.append(f"{side} {part} {values['mean']:.4f} ± {values['spread']:.4f}")
    if row["bertie"]["seeds"]:
        first = row["bertie"]["seeds"][0]
        majority = "none" if first["majority"] is None else f"{first['majority']:.4f}"
        cells += [first["metric"], f"majority {majority}"]
    if "is_not_worse" in row:
        cells.append("not worse" if row["is_not_worse"] else "WORSE")
    print(" | ".join(cells))


def write_result(path: Path, result: dict[str, Any]) -> None:
    """The whole file or the one before."""
    about = machine.describe("torch", "transformers", "numpy")
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"machine": about, "result": result}, indent=2) + "\n", "utf-8")
    draft.rename(path)


def choose_jobs(names: Sequence[str], num_seeds: int) -> list[Job]:
    known = {run.name for run in RUNS}
    if strange := sorted(set(names) - known):
        raise SystemExit(f"no run {strange[0]}; there are: {', '.join(sorted(known))}")
    return [
        Job(run=run, side=side, seed=seed)
        for run in RUNS
        if not names or run.name in names
        for side in (SIDES if run.has_peer else SIDES[:1])
        for seed in range(num_seeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the published sets")
    parser.add_argument("--models", type=Path, required=True, help="folder of minilm, m3e-small")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="rows of each file, for a try")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--job-seconds", type=float, default=400, help="that a job may take")
    parser.add_argument("--threads", type=int, default=1, help="of a job")
    options = parser.parse_args()
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "precision": PRECISION[device],
        "limit": options.limit,
        "parallel": options.parallel,
    }
    jobs, started_at = choose_jobs(options.only, options.seeds), time.monotonic()
    with TemporaryDirectory() as folder:
        place = Place(
            data=options.data.absolute(),
            models=options.models.absolute(),
            work=Path(folder),
            device=device,
            precision=PRECISION[device],
            limit=options.limit,
            threads=options.threads,
        )
        for name, path in SPLIT.items():
            split_titles(place.data / path, place.work / "splits" / name)

        def report() -> None:
            result["minutes"] = round((time.monotonic() - started_at) / 60, 2)
            result["runs"] = summarise(jobs, place)
            write_result(options.out, result)

        run_all(jobs, place, parallel=options.parallel, limit_s=options.job_seconds, report=report)
    for row in result["runs"]:
        show(row)


if __name__ == "__main__":
    main()
