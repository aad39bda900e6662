"""What the tuner measures: a kernel's own launch first, and all launches find the same."""

import importlib
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton; Linux only)")

import tests.kernels.conftest  # mends Triton's interpreter

pytestmark = pytest.mark.gpu
HAS_GPU = tests.kernels.conftest.HAS_GPU


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("kernel_cases")


def make_place(cases, num_tokens):
    """Small: in Triton's interpreter a program takes as long as a kernel on a GPU."""
    device, dtype = ("cuda", torch.bfloat16) if HAS_GPU else ("cpu", torch.float16)
    return cases.Place(device, dtype, num_tokens, num_heads=1, num_pieces=700, num_predicted=6)


def test_the_kernels_own_launch_comes_first_and_none_twice(cases):
    for case in cases.make_cases(cases.Place()):
        assert len(set(case.launches)) == len(case.launches) > 2, case.name
        codes = cases.distinct_code(case.launches)
        assert codes[0] == 0 and len(codes) <= len(case.launches)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities are meant
def test_the_first_and_the_last_launch_find_the_same(cases):
    """The last: with as many rows, warps or keys as any."""
    small, whole = make_place(cases, 21), make_place(cases, 256)
    halves = cases.attention_cases(256, whole)  # in two blocks of queries
    for place, case in [(small, c) for c in cases.make_cases(small)] + [(whole, c) for c in halves]:
        if place is small and "attention" in case.name:
            continue  # no whole sequence
        run = case.make(place)
        wanted = [part.clone() for part in run(case.launches[0])]
        for one, other in zip(run(case.launches[-1]), wanted, strict=True):
            error = (one.float() - other.float()).norm() / other.float().norm()
            assert float(error) < case.furthest, case.name
