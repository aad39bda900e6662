"""cuBLASLt as we call it: what a way is in memory, and plans of products."""

import ctypes

import pytest
import torch

from bertie.kernels.cublaslt import NO_ENDING, Plan, Product, Way, library
from tests.kernels.conftest import needs_cublaslt

PRODUCT = Product(m=64, n=40, k=128, is_a_transposed=True, ending=NO_ENDING, device=0)


def test_a_way_is_as_large_as_the_librarys():
    """cublasLtMatmulHeuristicResult_t: the library fills arrays of it; first its algorithm."""
    assert ctypes.sizeof(Way) == 96 and Way.workspace.offset == 64


def test_operations_are_counted_as_the_benchmarks_do():
    assert PRODUCT.operations == 2 * 64 * 40 * 128


@needs_cublaslt
def test_every_way_that_is_suggested_does_the_product():
    weight, x = torch.randn(64, 128).cuda().bfloat16(), torch.randn(40, 128).cuda().bfloat16()
    plan, wanted = Plan(PRODUCT), (x.double() @ weight.double().T).float()
    ways = plan.suggest(4)
    assert 0 < len(ways) <= 4
    for way in ways:
        out = x.new_full((40, 64), torch.nan)
        assert plan.launch(way, weight, x, out) == 0
        torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=2e-1)


@needs_cublaslt
def test_a_way_of_another_number_of_tokens_is_adopted():
    plan, other = Plan(PRODUCT), Plan(PRODUCT._replace(n=48))
    way = other.suggest(1)[0]
    adopted = plan.adopt(way)
    assert adopted is not None and list(adopted.algorithm) == list(way.algorithm)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has the library here")
def test_without_the_library_there_is_none():
    assert library() is None
