"""`bertie serve` under load, beside servers that people write around `transformers`.

    python benchmarks/serving.py rate --model SST2_MODEL --texts dev.tsv --more imdb.jsonl
    python benchmarks/serving.py soak --model SST2_MODEL --texts dev.tsv --more imdb.jsonl
    python benchmarks/serving.py overload --model SST2_MODEL --texts dev.tsv --more imdb.jsonl

The model is a fine-tuned MiniLM; texts are the sentences of SST-2's dev set, and beginnings of
film reviews of up to 100 words, mixed, none longer than the model reads at once. Server and load
share the machine's cores. Every answer is compared with what the engine says to the same text.

- rate: 64 clients ask one text each, again and again; the servers take turns. Then bertie alone at
  70% of its rate, requests at random moments (Poisson).
- soak: valid, invalid, cancelled and huge requests, of several verbs; memory at the beginning and
  at the end.
- overload: five times as many requests as it can answer.
"""

import argparse
import asyncio
import csv
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import machine
from load import Ask, Seen, body, closed_loop, describe_seconds, open_loop

CLIENTS = 64
TOLERANCE, LOW_TOLERANCE = 1e-4, 0.01  # of numbers, in fp32 and below
WORDS = 100  # of the beginning of a review
EARLY = 5_000  # requests after which memory is looked at


# Texts and what the engine says to them.


def read_texts(dev: Path, reviews: Path | None) -> list[str]:
    """Three of four are sentences."""
    with dev.open(encoding="utf-8", newline="") as file:
        sentences = [row[0] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    if reviews is None:
        return sentences
    lines = reviews.read_text(encoding="utf-8").split("\n")[: len(sentences) // 3]
    rng = random.Random(3)
    cut = [" ".join(json.loads(line)["text"].split()[: rng.randint(20, WORDS)]) for line in lines]
    texts = [*sentences, *cut]
    rng.shuffle(texts)
    return texts


class Known:
    """Texts with the engine's answers."""

    def __init__(self, model: Path, texts: list[str], precision: str) -> None:
        import bertie

        self.tolerance = TOLERANCE if precision == "fp32" else LOW_TOLERANCE
        engine = bertie.load(model, device="cpu", precision=precision, show=False)
        room = engine.task.max_length if engine.task else engine.max_length
        lengths = [len(engine.tokenizer.encode(text).ids) for text in texts]
        kept = [n for n, length in enumerate(lengths) if length <= room]
        self.texts = [texts[n] for n in kept]
        self.lengths = [lengths[n] for n in kept]
        self.classes = engine.classify(self.texts)
        self.vectors = engine.embed(self.texts)

    def classify(self, number: int) -> Ask:
        number %= len(self.texts)
        wanted, tolerance = self.classes[number], self.tolerance

        def check(status: int, found: bytes) -> bool:
            if status != 200:
                return False
            answer = json.loads(found)
            # Of a text on the fence, a lower precision may see the other side.
            is_clear = max(wanted.scores.values()) > 0.5 + tolerance
            return (answer["label"] == wanted.label or not is_clear) and all(
                abs(answer["scores"][label] - score) < tolerance
                for label, score in wanted.scores.items()
            )

        return Ask(path="/v1/m/classify", body=body(texts=self.texts[number]), check=check)

    def embed(self, number: int) -> Ask:
        numbers = [(number + n) % len(self.texts) for n in range(number % 5 + 1)]

        def check(status: int, found: bytes) -> bool:
            if status != 200:
                return False
            rows = json.loads(found)
            return len(rows) == len(numbers) and all(
                max(abs(self.vectors[n] - row)) < self.tolerance
                for n, row in zip(numbers, rows, strict=True)
            )

        texts = [self.texts[n] for n in numbers]
        return Ask(path="/v1/m/embed", body=body(texts=texts), check=check)

    def describe(self) -> dict[str, float]:
        return {
            "texts": len(self.texts),
            "median_tokens": median(self.lengths),
            "longest_tokens": max(self.lengths),
        }


# Servers.


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(kind: str, model: Path, threads: int, *more: str) -> Iterator[tuple[int, int]]:
    """A server of this kind; its port and process id."""
    port = free_port()
    if kind == "bertie":
        command = ["-m", "bertie", "serve", f"m={model}", *more]
    else:
        command = [str(Path(__file__).with_name("peer_servers.py")), kind, str(model)]
    command = [sys.executable, *command, "--port", str(port), "--threads", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server died"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


def cpu_seconds(pid: int) -> float:
    """That a process has computed for; other work on the machine hardly changes it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


# What is measured.


def measure_rate(known: Known, options: argparse.Namespace) -> dict[str, Any]:
    """Requests a second of each server, in turns that rotate."""
    kinds = ["bertie", "plain", "padded"]
    exact = known if options.precision == "fp32" else Known(options.model, known.texts, "fp32")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    latencies: dict[str, list[float]] = {kind: [] for kind in kinds}
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(options.turns):
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
            more = ("--precision", options.precision) if kind == "bertie" else ()
            with serving(kind, options.model, options.threads, *more) as (port, pid):
                count = options.requests // (1 if kind == "bertie" else 3)
                make = (known if kind == "bertie" else exact).classify
                asyncio.run(closed_loop(port, CLIENTS, CLIENTS * 2, make))  # to warm up
                before = cpu_seconds(pid)
                seen, seconds = asyncio.run(closed_loop(port, CLIENTS, count, make))
                computed = cpu_seconds(pid) - before
            check_all(seen, kind, count)
            rates[kind].append(count / seconds)
            costs[kind].append(1000 * computed / count)
            latencies[kind] += seen.seconds
            print(
                f"{kind:8} {count / seconds:7.1f} requests/s, {costs[kind][-1]:.1f} ms of CPU each",
                flush=True,
            )
    best = {kind: median(found) for kind, found in rates.items()}
    ratios = {
        kind: [ours / theirs for ours, theirs in zip(rates["bertie"], rates[kind], strict=True)]
        for kind in ("plain", "padded")
    }
    return {
        "requests_per_s": {k: [round(one, 1) for one in v] for k, v in rates.items()},
        "median_requests_per_s": {kind: round(one, 1) for kind, one in best.items()},
        "cpu_ms_per_request": {k: round(median(v), 2) for k, v in costs.items()},
        "latency": {kind: describe_seconds(found) for kind, found in latencies.items()},
        "bertie_is_times_as_fast_as": {k: round(median(v), 2) for k, v in ratios.items()},
        "at_70_percent": measure_latency(known, options, best["bertie"] * 0.7),
    }


def measure_latency(known: Known, options: argparse.Namespace, rate: float) -> dict[str, Any]:
    rng = random.Random(5)
    waits = [rng.expovariate(rate) for _ in range(options.requests)]
    more = ("--precision", options.precision)
    with serving("bertie", options.model, options.threads, *more) as (port, _):
        asyncio.run(closed_loop(port, CLIENTS, CLIENTS * 2, known.classify))
        seen, seconds = asyncio.run(open_loop(port, waits, known.classify))
    check_all(seen, "bertie", len(waits))
    found = describe_seconds(seen.seconds)
    return found | {
        "requests_per_s": round(len(waits) / seconds, 1),
        "p99_to_median": round(found["p99_ms"] / found["p50_ms"], 2),
    }


def check_all(seen: Seen, kind: str, count: int) -> None:
    assert not seen.wrong, f"{kind}: {len(seen.wrong)} wrong answers, first {seen.wrong[0]}"
    assert seen.statuses == {200: count}, f"{kind}: {seen.statuses}"


def soak_mix(known: Known) -> Callable[[int], Ask]:
    """Request n of a soak, a function of n alone."""

    def refused(status: int) -> Callable[[int, bytes], bool]:
        return lambda found, answer: found == status and b'"message"' in answer

    huge = body(texts="x" * 1_100_000)
    wrong = [
        Ask(path="/v1/m/classify", body=b'{"texts": ', check=refused(400)),
        Ask(path="/v1/m/classify", body=body(texts=[1, 2]), check=refused(422)),
        Ask(path="/v1/m/classify", body=body(text="a slip"), check=refused(422)),
        Ask(path="/v1/nope/classify", body=body(texts="a"), check=refused(404)),
        Ask(path="/v1/m/tag", body=body(texts="a"), check=refused(404)),
        Ask(path="/v1/m/classify", body=body(texts=["a"] * 257), check=refused(413)),
        Ask(path="/v1/m/classify", body=body(texts="y" * 20_001), check=refused(413)),
        Ask(path="/v1/m/classify", body=b"", check=refused(405), method="PUT"),
    ]

    def make(number: int) -> Ask:
        rng = random.Random(number)
        kind = rng.random()
        if kind < 0.70:
            return known.classify(rng.randrange(10**6))
        if kind < 0.80:
            return known.embed(rng.randrange(10**6))
        if kind < 0.90:
            return wrong[rng.randrange(len(wrong))]
        if kind < 0.995:
            usual = known.classify(rng.randrange(10**6))
            after_s = rng.uniform(0.0, 0.05)
            return Ask(path=usual.path, body=usual.body, check=usual.check, leaves_after_s=after_s)
        return Ask(path="/v1/m/classify", body=huge, check=refused(413))

    return make


def counted_from(start: int, make: Callable[[int], Ask]) -> Callable[[int], Ask]:
    return lambda number: make(start + number)


def measure_soak(known: Known, options: argparse.Namespace) -> dict[str, Any]:
    make = soak_mix(known)
    with serving("bertie", options.model, options.threads) as (port, pid):
        asyncio.run(closed_loop(port, 1, 1, known.classify))
        idle = resident_mb(pid)
        seen, _ = asyncio.run(closed_loop(port, CLIENTS, EARLY, make))
        early, parts, seconds = resident_mb(pid), [seen], 0.0
        for start in range(EARLY, options.requests, EARLY):
            seen, part_s = asyncio.run(closed_loop(port, CLIENTS, EARLY, counted_from(start, make)))
            parts.append(seen)
            seconds += part_s
            print(f"{start + EARLY:,} requests, {resident_mb(pid):.0f} MB", flush=True)
        end = resident_mb(pid)
    statuses = sum((one.statuses for one in parts), parts[0].statuses.__class__())
    return {
        "requests": len(parts) * EARLY,
        "statuses": dict(sorted(statuses.items())),
        "left_before_the_answer": sum(one.left for one in parts),
        "wrong_or_lost": [text for one in parts for text in one.wrong][:10],
        "memory_mb": {"idle": round(idle), "after_5000": round(early), "end": round(end)},
        "memory_end_to_early": round(end / early, 3),
        "requests_per_s": round((len(parts) - 1) * EARLY / seconds, 1) if seconds else None,
    }


def measure_overload(known: Known, options: argparse.Namespace) -> dict[str, Any]:
    with serving("bertie", options.model, options.threads) as (port, _):
        asyncio.run(closed_loop(port, CLIENTS, CLIENTS * 2, known.classify))
        seen, seconds = asyncio.run(closed_loop(port, CLIENTS, options.requests, known.classify))
        rate = options.requests / seconds
        count = int(rate * 5 * options.seconds)
        waits = [1 / (rate * 5)] * count
        seen, seconds = asyncio.run(open_loop(port, waits, known.classify))
        after, after_s = asyncio.run(closed_loop(port, CLIENTS, options.requests, known.classify))
    check_all(after, "after the overload", options.requests)
    return {
        "capacity_requests_per_s": round(rate, 1),
        "asked_per_s": round(rate * 5, 1),
        "seconds": round(seconds, 1),
        "statuses": dict(sorted(seen.statuses.items())),
        "accepted": describe_seconds(seen.seconds),
        "refused": describe_seconds(seen.refused),
        "wrong_or_lost": seen.wrong[:10],
        "requests_per_s_afterwards": round(options.requests / after_s, 1),
    }


MEASURES = {"rate": measure_rate, "soak": measure_soak, "overload": measure_overload}
USUAL = {"rate": 6_000, "soak": 100_000, "overload": 2_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=tuple(MEASURES))
    parser.add_argument("--model", type=Path, required=True, help="fine-tuned on SST-2")
    parser.add_argument("--texts", type=Path, required=True, help="dev.tsv of SST-2")
    parser.add_argument("--more", type=Path, help="reviews, JSON Lines with the field text")
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--precision", default="fp32", help="of bertie, for the rate")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of a turn, or of the soak")
    parser.add_argument("--seconds", type=float, default=20, help="of the overload")
    parser.add_argument("--try", dest="is_try", action="store_true", help="save nothing")
    options = parser.parse_args()
    options.requests = options.requests or USUAL[options.what]
    known = Known(options.model, read_texts(options.texts, options.more), options.precision)
    about = machine.describe("torch", "transformers", "fastapi", "uvicorn", "numpy")
    found = MEASURES[options.what](known, options)
    fixed = {"clients": CLIENTS, "threads": options.threads, "precision": options.precision}
    result = {**fixed, "texts": known.describe(), **found}
    print(json.dumps(result, indent=2))
    if not options.is_try:
        print("saved", machine.save(f"serving-{options.what}", about, result))


if __name__ == "__main__":
    main()
