"""The micro-batch is as large as fits, never larger than useful, never smaller than two."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.train.memory import LARGEST, SAFE_SHARE, find_micro_tokens

CPU, CUDA = torch.device("cpu"), torch.device("cuda")  # a name only: no GPU is asked
AT_MOST = {"free_bytes": 1 << 40, "bytes_per_token": 1000.0, "least": 256}


@given(st.integers(0, 1 << 40), st.floats(1, 1e8), st.integers(1, 2048))
def test_it_fits_the_memory_or_is_the_least(free: int, each: float, least: int) -> None:
    tokens = find_micro_tokens(None, free_bytes=free, bytes_per_token=each, least=least, device=CPU)
    assert tokens >= least and tokens % least == 0
    assert tokens == least or tokens * each <= SAFE_SHARE["cpu"] * free
    assert tokens == least or tokens <= LARGEST["cpu"]


def test_on_a_cpu_nothing_is_tried_out() -> None:
    def refuse(tokens: int) -> None:
        raise AssertionError("tried out")

    assert find_micro_tokens(refuse, **AT_MOST, device=CPU) == LARGEST["cpu"]


@pytest.mark.parametrize("limit", [131_072, 100_000, 5_000, 300])
def test_on_a_gpu_it_shrinks_until_a_pass_succeeds(limit: int) -> None:
    tried = []

    def try_out(tokens: int) -> None:
        tried.append(tokens)
        if tokens > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")

    found = find_micro_tokens(try_out, **AT_MOST, device=CUDA)
    assert found <= max(limit, 256)
    assert found == 256 or found > 0.7 * limit - 256  # not much is given away
    assert tried == sorted(set(tried), reverse=True) and tried[0] == LARGEST["cuda"]


def test_an_error_that_is_not_about_memory_is_not_hidden() -> None:
    def broken(tokens: int) -> None:
        raise RuntimeError("device-side assert")

    with pytest.raises(RuntimeError, match="device-side"):
        find_micro_tokens(broken, **AT_MOST, device=CUDA)


def test_a_model_spread_over_gpus_is_only_estimated() -> None:
    assert find_micro_tokens(None, **AT_MOST, device=CUDA) == LARGEST["cuda"]
