"""Whether cuBLASLt knows a faster way for a layer's products than the one it suggests first.

    python benchmarks/tune_products.py                      # base and large, 65,536 tokens
    python benchmarks/tune_products.py --sizes 768 --rounds 12

The twelve products of a layer in training, each in all ways that the library suggests, and as the
layer does it now ("now": torch's own call, or the plan of bertie.kernels.products). A card under
load changes its clock within a second, by more than ways differ: so all ways of a product take
turns, round after round, and medians over the rounds are compared. Nothing is changed.
"""

# T tokens   I, O columns of rows that go in and come out

import argparse
from collections.abc import Callable
from ctypes import byref, c_float, c_int32, c_size_t, c_void_p
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import machine
from bertie.kernels.products import (
    ADD_BIAS,
    BFLOAT16,
    BIAS,
    FLOAT32,
    GELU_BIAS_SAVED,
    GELU_INPUT,
    GELU_SLOPE,
    NO_ENDING,
    WORKSPACE,
    Found,
    Plan,
    Product,
    forward_product,
    layout,
    library,
    plan_of,
)

MOST_WAYS = 24
TILE, SPLIT = 1, 2  # numbers of cublasLtMatmulAlgoConfigAttributes_t
REPEATS = 8


class Case(NamedTuple):
    """A product, its parts, and how the layer does it now."""

    name: str
    product: Product
    a: Tensor
    b: Tensor
    out: Tensor
    now: Callable[[], Any]
    is_added: bool = False  # to what is in `out`
    bias: Tensor | None = None
    wide: Tensor | None = None


class Ways(Plan):
    """A plan with all suggestions of the library."""

    def __init__(self, case: Case) -> None:
        self.case = case
        super().__init__(case.product)
        if case.bias is not None:
            self.set(BIAS, c_void_p(case.bias.data_ptr()))
        if case.wide is not None:
            self.set(GELU_INPUT, c_void_p(case.wide.data_ptr()))
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def find(self) -> Found | None:
        p, kind = self.case.product, FLOAT32 if self.case.out.dtype == torch.float32 else BFLOAT16
        self.out = layout(p.m, p.n, kind)
        self.ways = self.suggest(MOST_WAYS)
        return None

    def launch_way(self, way: Found) -> int:
        """The library's status: 0 where it could do it."""
        case = self.case
        status: int = library().cublasLtMatmul(
            c_void_p(torch.cuda.current_blas_handle()),
            self.description,
            byref(self.scale),
            c_void_p(case.a.data_ptr()),
            self.a,
            c_void_p(case.b.data_ptr()),
            self.b,
            byref(c_float(case.is_added)),
            c_void_p(case.out.data_ptr()),
            self.out,
            c_void_p(case.out.data_ptr()),
            self.out,
            byref(way),
            c_void_p(self.workspace.data_ptr()),
            c_size_t(WORKSPACE),
            c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return status


def describe_way(number: int, way: Found) -> str:
    """Its place among the suggestions, and cuBLASLt's numbers of its tile and its split."""
    values = []
    for attribute in (TILE, SPLIT):
        value, written = c_int32(), c_size_t()
        library().cublasLtMatmulAlgoConfigGetAttribute(
            byref(way), attribute, byref(value), c_size_t(4), byref(written)
        )
        values.append(value.value)
    return f"{number} (tile {values[0]}, split {values[1]})"


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def make_cases(size: int, num_tokens: int) -> list[Case]:
    widths = {"qkv": (size, 3 * size), "out": (size, size), "up": (size, 4 * size)}
    widths["down"] = (4 * size, size)
    return [
        case
        for name, (i, o) in widths.items()
        for case in (
            forward_case(name, draw(num_tokens, i), draw(o, i) * i**-0.5),
            back_case(name, draw(num_tokens, o), draw(o, i) * o**-0.5),
            weight_case(name, draw(num_tokens, o), draw(num_tokens, i)),
        )
    ]


def forward_case(name: str, x: Tensor, weight: Tensor) -> Case:  # (T, I), (O, I)
    bias, out = draw(len(weight)), x.new_empty(len(x), len(weight))
    if name == "up":
        product, wide = forward_product(x, weight, GELU_BIAS_SAVED), torch.empty_like(out)
        plan = plan_of(product)
        return Case(
            "forward up, gelu", product, weight, x, out,
            lambda: plan.run(weight, x, out, bias=bias, wide=wide), bias=bias, wide=wide,
        )  # fmt: skip
    if name == "qkv":
        product = forward_product(x, weight, ADD_BIAS)
        return Case(
            "forward qkv", product, weight, x, out,
            lambda: torch.addmm(bias, x, weight.T), bias=bias,
        )  # fmt: skip
    product = forward_product(x, weight, NO_ENDING)
    return Case(f"forward {name}", product, weight, x, out, lambda: x @ weight.T)


def back_case(name: str, gradient: Tensor, weight: Tensor) -> Case:  # (T, O), (O, I)
    """To the rows that went in."""
    out = gradient.new_zeros(len(gradient), weight.shape[1])
    product = Product(
        m=weight.shape[1],
        n=len(gradient),
        k=len(weight),
        is_a_transposed=False,
        is_b_transposed=False,
        ending=GELU_SLOPE if name == "down" else NO_ENDING,
        device=0,
    )
    given = product, weight, gradient, out
    if name == "down":
        wide, plan = torch.randn_like(out), plan_of(product)
        return Case(
            "back down, gelu", *given, lambda: plan.run(weight, gradient, out, wide=wide), wide=wide
        )
    if name == "out":
        return Case("back out", *given, lambda: gradient @ weight)
    return Case(f"back {name}", *given, lambda: out.addmm_(gradient, weight), is_added=True)


def weight_case(name: str, gradient: Tensor, x: Tensor) -> Case:  # (T, O), (T, I)
    """To the matrix, in float32."""
    out = torch.empty(gradient.shape[1], x.shape[1], device="cuda")
    product = Product(
        m=x.shape[1],
        n=gradient.shape[1],
        k=len(x),
        is_a_transposed=False,
        is_b_transposed=True,
        ending=NO_ENDING,
        device=0,
    )

    def now() -> Tensor:
        return torch.mm(gradient.T, x, out_dtype=torch.float32)

    return Case(f"weight {name}", product, x, gradient, out, now)


def time_once(run: Callable[[], Any]) -> float:
    """Milliseconds of one, over some in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPEATS):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPEATS


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every round, by way."""
    ways = Ways(case)
    runs: dict[str, Callable[[], Any]] = {"now": case.now}
    for number, way in enumerate(ways.ways):
        if ways.launch_way(way) == 0:
            runs[describe_way(number, way)] = lambda way=way: ways.launch_way(way)
    case.out.zero_()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        names = list(runs)[turn % len(runs) :] + list(runs)[: turn % len(runs)]
        for name in names:
            taken_ms = time_once(runs[name])
            if turn:  # the first is to get warm
                found[name].append(taken_ms)
    return found


def show(case: Case, found: dict[str, list[float]]) -> dict[str, Any]:
    p = case.product
    medians = {name: median(taken) for name, taken in found.items()}
    best = sorted(medians, key=lambda name: medians[name])
    flops = 2.0 * p.m * p.n * p.k
    print(f"{case.name}: now {medians['now']:.4f} ms", end="")
    for name in best[:3]:
        ratio = median(n / o for n, o in zip(found["now"], found[name], strict=True))
        rate = flops / medians[name] / 1e9
        print(f"; {name} {medians[name]:.4f} ms, {rate:.0f} TFLOP/s, {ratio:.3f}x", end="")
    print(flush=True)
    return {
        "product": case.name,
        "m_n_k": [p.m, p.n, p.k],
        "milliseconds": {name: round(medians[name], 4) for name in best},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[768, 1024])
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "tokens": options.tokens}
    for size in options.sizes:
        print(f"hidden size {size}")
        cases = make_cases(size, options.tokens)
        result[str(size)] = [show(case, measure(case, options.rounds)) for case in cases]
        now = sum(one["milliseconds"]["now"] for one in result[str(size)])
        least = sum(min(one["milliseconds"].values()) for one in result[str(size)])
        print(f"  a layer: now {now:.3f} ms, the best of each {least:.3f}")
    about = machine.describe("torch")
    print("saved", machine.save("tune-products-cuda", about, result))


if __name__ == "__main__":
    main()
