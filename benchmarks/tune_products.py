"""Whether cuBLASLt knows a faster way for a layer's products than the one it suggests first.

    python benchmarks/tune_products.py                      # base and large, 65,536 tokens
    python benchmarks/tune_products.py --sizes 768 --ways 24

The eight products of a layer that bertie.kernels.ways chooses ways for, of sixteen and of eight
bits, each in all ways that the library suggests, and as torch does it where it can.
All ways of a product take turns, as they do when one is chosen; "=" marks those that give the same
bits as the first, of which it is chosen.
"""

# T tokens   I, O columns of rows that go in and come out

import argparse
import math
from collections.abc import Callable
from ctypes import byref, c_int32, c_size_t
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import machine
from bertie.kernels.cublaslt import (
    ADD_BIAS,
    GELU_BIAS_SAVED,
    GELU_SLOPE,
    NO_ENDING,
    Plan,
    Product,
    Way,
    library,
)
from bertie.kernels.float8 import (
    cast_weight,
    find_scale,
    quantise,
    quantise_slope_plain,
    turn_weight,
)
from bertie.kernels.products import back_product, forward_product
from bertie.kernels.ways import list_equal, take_turns

# Numbers of cublasLtMatmulAlgoConfigAttributes_t.
CONFIG = {"algorithm": 0, "tile": 1, "split": 2, "swizzle": 4, "stages": 6, "cluster": 9}


class Case(NamedTuple):
    """A product and its parts; `torch` is how torch would do it, if it can."""

    name: str
    product: Product
    a: Tensor
    b: Tensor
    torch: Callable[[], Any] | None = None
    bias: Tensor | None = None
    wide: Tensor | None = None
    scale: Tensor | None = None

    def make_out(self) -> Tensor:
        """As the library writes it: what it counts as columns are rows here."""
        return draw(self.product.n, self.product.m).zero_()


def describe_way(number: int, way: Way) -> str:
    """Its place among the suggestions, and cuBLASLt's own numbers of what it is."""
    said = []
    for name, attribute in CONFIG.items():
        value, written = c_int32(), c_size_t()
        library().cublasLtMatmulAlgoConfigGetAttribute(
            byref(way), attribute, byref(value), c_size_t(4), byref(written)
        )
        said.append(f"{name} {value.value & 0xFFFF}")
    return f"{number} ({', '.join(said)})"


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def make_cases(size: int, num_tokens: int) -> list[Case]:
    widths = {"qkv": (size, 3 * size), "out": (size, size), "up": (size, 4 * size)}
    widths["down"] = (4 * size, size)
    cases = []
    for name, (i, o) in widths.items():
        x, gradient, weight = draw(num_tokens, i), draw(num_tokens, o), draw(o, i) * i**-0.5
        cases += [forward_case(name, x, weight), back_case(name, gradient, weight)]
        cases += eight_cases(name, x, gradient, weight)
    return cases


def eight_cases(name: str, x: Tensor, gradient: Tensor, weight: Tensor) -> list[Case]:
    """gelu and its slope are no part of these."""
    eight = cast_weight(weight)
    turned = turn_weight(eight)
    bias = draw(len(weight)) if name in ("qkv", "up") else None
    ahead = forward_product(quantise(x), eight, NO_ENDING if bias is None else ADD_BIAS)
    scale = find_scale(gradient)
    slope = quantise_slope_plain(gradient, scale)
    back = forward_product(slope, turned, NO_ENDING)._replace(is_added=name in ("qkv", "up"))
    return [
        Case(f"forward {name}, eight bits", ahead, eight, quantise(x), bias=bias),
        Case(f"back {name}, eight bits", back, turned, slope, scale=scale.inverse),
    ]


def forward_case(name: str, x: Tensor, weight: Tensor) -> Case:  # (T, I), (O, I)
    bias = draw(len(weight))
    if name == "up":
        product, wide = forward_product(x, weight, GELU_BIAS_SAVED), draw(len(x), len(weight))
        return Case("forward up, gelu", product, weight, x, bias=bias, wide=wide)
    if name == "qkv":
        product = forward_product(x, weight, ADD_BIAS)
        run = partial(torch.addmm, bias, x, weight.T)
        return Case("forward qkv", product, weight, x, run, bias=bias)
    product = forward_product(x, weight, NO_ENDING)
    return Case(f"forward {name}", product, weight, x, partial(torch.mm, x, weight.T))


def back_case(name: str, gradient: Tensor, weight: Tensor) -> Case:  # (T, O), (O, I)
    """To the rows that went in."""
    if name == "down":
        product = back_product(gradient, weight, GELU_SLOPE)
        return Case("back down, gelu", product, weight, gradient, wide=draw(product.n, product.m))
    product = back_product(gradient, weight)
    if name == "out":
        return Case("back out", product, weight, gradient, partial(torch.mm, gradient, weight))
    out = draw(product.n, product.m)
    run = partial(out.addmm_, gradient, weight)
    return Case(f"back {name}", product._replace(is_added=True), weight, gradient, run)


def measure(case: Case, most: int) -> dict[str, float]:
    """Milliseconds by way, the fastest first."""
    plan = Plan(case.product)
    plan.point(case.bias, case.wide, case.scale)
    ways, out = plan.suggest(most), case.make_out()
    equal = {bytes(way) for way in list_equal(plan, case.a, case.b, out, case.wide, most)}
    runs: dict[str, Callable[[], Any]] = {} if case.torch is None else {"torch": case.torch}
    for number, way in enumerate(ways):
        if plan.launch(way, case.a, case.b, out.zero_()) == 0:
            name = "=" * (bytes(way) in equal) + describe_way(number, way)
            runs[name] = partial(plan.launch, way, case.a, case.b, out)
    taken = map(median, take_turns(list(runs.values())))
    return dict(sorted(zip(runs, taken, strict=True), key=lambda pair: pair[1]))


def read_place(name: str) -> float:
    """Of a way among the suggestions; torch's own comes last."""
    number = name.lstrip("=").partition(" ")[0]
    return int(number) if number.isdecimal() else math.inf


def show(case: Case, found: dict[str, float]) -> dict[str, Any]:
    """What torch and the library's first take, and the best, and the best of equal bits."""
    first = min(found.items(), key=lambda pair: read_place(pair[0]))[1]
    best = next(iter(found.values()))
    equal = {name: taken for name, taken in found.items() if name.startswith("=")}
    name, chosen = next(iter(equal.items()))
    rate = case.product.operations / chosen / 1e9
    said = f"torch {found['torch']:.4f}, " if "torch" in found else ""
    print(
        f"{case.name}: {said}first {first:.4f}, best {best:.4f}, best equal {chosen:.4f} ms", end=""
    )
    print(f", {rate:.0f} TFLOP/s, {first / chosen:.3f}x, {len(equal)} of {len(found)}: {name}")
    return {
        "product": case.name,
        "m_n_k": list(case.product[:3]),
        "first": first,
        "chosen": chosen,
        "milliseconds": {name: round(taken, 4) for name, taken in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[768, 1024])
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--ways", type=int, default=8, help="suggestions of the library")
    options = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "tokens": options.tokens}
    for size in options.sizes:
        print(f"hidden size {size}")
        cases = make_cases(size, options.tokens)
        rows = [show(case, measure(case, options.ways)) for case in cases]
        for kind, is_float8 in (("bf16", False), ("eight bits", True)):
            own = [
                row
                for case, row in zip(cases, rows, strict=True)
                if case.product.is_float8 is is_float8
            ]
            first, chosen = (sum(row[name] for row in own) for name in ("first", "chosen"))
            print(f"  a layer in {kind}: first {first:.3f} ms, chosen {chosen:.3f}")
        result[str(size)] = rows
    about = machine.describe("torch")
    print("saved", machine.save("tune-products-cuda", about, result))


if __name__ == "__main__":
    main()
