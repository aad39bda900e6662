"""Which launch of each kernel is the fastest on this GPU, beside the one it takes by itself.

    python benchmarks/tune_kernels.py                       # ends after --seconds 180
    python benchmarks/tune_kernels.py --only norm attention

A launch is how many rows, columns, queries or keys a program takes, on how many warps and with how
many registers (src/bertie/kernels/launch.py). Each is measured as the median over 50 ms with an
empty cache, and its result compared with that of the kernel's own launch: what is further away than
rounding can explain is not counted. Launches are compiled by several processes at once, before they
are measured. Nothing is changed: a better launch is for a person to write down.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.errors import TritonError
from triton.testing import do_bench

import machine
from kernel_cases import Case, Launch, Place, Run, distinct_code, make_cases

REFUSED = (TritonError, RuntimeError)  # too many registers or too much shared memory


class Measured(NamedTuple):
    """One launch of a case."""

    launch: Launch
    milliseconds: float
    error: float  # relative to the kernel's own launch
    is_right: bool


def error_of(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    """The largest of the norms of the differences, as shares of what is wanted."""
    shares = [
        ((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30)).item()
        for one, other in zip(found, wanted, strict=True)
    ]
    return max(shares) if all(share == share for share in shares) else float("inf")


def compile_one(job: tuple[int, int]) -> None:
    """In a process of its own: what is compiled stays in Triton's folder for the one that measures.

    What cannot be compiled is found out again by the one that measures, who says so.
    """
    number, place_in_case = job
    case = make_cases(Place())[number]
    try:
        case.make(Place())(case.launches[place_in_case])
        torch.cuda.synchronize()
    except REFUSED:
        pass
    torch.cuda.empty_cache()


def measure(case: Case, until: float) -> list[Measured]:
    """The kernel's own launch first; those that are refused, or come too late, are left out."""
    run = case.make(Place())
    wanted = tuple(part.clone() for part in run(case.launches[0]))
    measured: list[Measured] = []
    for launch in case.launches:
        if measured and time.monotonic() > until:
            left = len(case.launches) - case.launches.index(launch)
            print(f"    out of time: {left} launches not measured")
            break
        try:
            found = measure_launch(case, run, launch, wanted)
        except REFUSED as error:
            print(f"    refused: {launch}: {str(error).splitlines()[0][:90]}")
            continue
        measured.append(found)
    return measured


def measure_launch(case: Case, run: Run, launch: Launch, wanted: tuple[Tensor, ...]) -> Measured:
    error = error_of(run(launch), wanted)
    taken_ms = do_bench(lambda: run(launch), warmup=15, rep=50, return_mode="median")
    return Measured(launch, taken_ms, error, error < case.furthest)


def rate_of(case: Case, milliseconds: float) -> str:
    scale = {"GB/s": 1e9, "TFLOP/s": 1e12}[case.unit]
    return f"{case.work / (milliseconds / 1000) / scale:,.0f} {case.unit}"


def show(case: Case, measured: list[Measured], num_best: int = 3) -> None:
    own = measured[0]
    print(f"{case.name}, {case.shape}:")
    print(f"  now  {own.milliseconds:7.4f} ms {rate_of(case, own.milliseconds):>14}  {own.launch}")
    right = sorted((m for m in measured if m.is_right), key=lambda m: m.milliseconds)
    for found in right[:num_best]:
        ratio = own.milliseconds / found.milliseconds
        print(
            f"  best {found.milliseconds:7.4f} ms {rate_of(case, found.milliseconds):>14}", end=""
        )
        print(f"  {found.launch}  ({ratio:.2f}x, error {found.error:.1e})")
    for found in measured:
        if not found.is_right:
            print(f"  WRONG by {found.error:.1e}: {found.launch}")
    sys.stdout.flush()


def describe(case: Case, measured: list[Measured]) -> dict[str, Any]:
    right = [m for m in measured if m.is_right]
    best = min(right, key=lambda m: m.milliseconds)
    return {
        "kernel": case.name,
        "shape": case.shape,
        "now": {
            "milliseconds": round(measured[0].milliseconds, 4),
            "launch": str(case.launches[0]),
        },
        "best": {"milliseconds": round(best.milliseconds, 4), "launch": str(best.launch)},
        "all": {str(m.launch): round(m.milliseconds, 4) for m in measured},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="words of the kernels' names")
    parser.add_argument("--seconds", type=float, default=180, help="after that, what is due ends")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile; 0: none")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    cases = [
        (number, case)
        for number, case in enumerate(make_cases(Place()))
        if not options.only or any(word in case.name for word in options.only)
    ]
    rows: list[dict[str, Any]] = []
    result = {"device": torch.cuda.get_device_name(), "kernels": rows}
    about = machine.describe("torch", "triton")
    pool = ProcessPoolExecutor(options.workers, get_context("spawn")) if options.workers else None
    for number, case in cases:
        if time.monotonic() > until:
            print(f"out of time: {case.name}, {case.shape} not measured")
            continue
        if pool is not None:
            compile_all(pool, number, case)
        measured = measure(case, until)
        show(case, measured)
        rows.append(describe(case, measured))
        path = machine.save("tune-kernels-cuda", about, result)
    if rows:
        print("saved", path)
    if pool is not None:
        pool.shutdown()


def compile_all(pool: ProcessPoolExecutor, number: int, case: Case) -> None:
    try:
        list(pool.map(compile_one, [(number, place) for place in distinct_code(case.launches)]))
    except BrokenProcessPool:
        print("    a compiling process ended; the rest is compiled as it is measured")


if __name__ == "__main__":
    main()
