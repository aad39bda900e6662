"""What tune_kernels.py measures: each kernel on the shapes of a training step, with its launches.

The first launch of a case is the one that the kernel takes by itself.
"""

# T tokens   D hidden size   U feed-forward size   V pieces   H heads   K head size

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from bertie.kernels import attention, cross_entropy, embeddings, gelu, norm, sums
from bertie.kernels.cublaslt import ADD_BIAS, GELU_BIAS_SAVED, NO_ENDING
from bertie.kernels.float8 import cast_weight, quantise
from bertie.kernels.launch import BlockLaunch, RowLaunch, TileLaunch
from bertie.kernels.products import forward_product, plan_of

DROPOUT, EPS, HEAD_SIZE, MULTIPROCESSORS = 0.1, 1e-12, 64, 132


class ProductWay(NamedTuple):
    """How a product of the forward pass is done."""

    num_bits: int
    is_fast: bool  # sums of fewer bits; for eight alone


Launch = RowLaunch | BlockLaunch | TileLaunch | ProductWay
Run = Callable[..., tuple[Tensor, ...]]  # of a launch; what is found


class Place(NamedTuple):
    """Where, in what precision and on how much is measured."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    num_tokens: int = 65_536
    num_heads: int = 12  # of attention
    num_pieces: int = 30_522
    num_predicted: int = 8_192  # a block of logits

    def draw(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Of a normal distribution; equal shapes, equal numbers."""
        generator = torch.Generator(self.device).manual_seed(0)
        drawn = torch.randn(*shape, generator=generator, device=self.device)
        return drawn.to(dtype or self.dtype)

    def seed(self) -> Tensor:
        return torch.tensor([7], device=self.device)


class Case(NamedTuple):
    """A kernel on a shape."""

    name: str
    shape: str
    launches: tuple[Launch, ...]
    make: Callable[[Place], Run]
    work: float  # bytes that must be moved, or operations
    unit: str  # GB/s or TFLOP/s
    furthest: float = 2e-2  # of an error's norm; blocks of another size round differently


def distinct_code(launches: tuple[Launch, ...]) -> list[int]:
    """Places of launches that are compiled apart: how many programs there are is no part of it."""
    codes = [one[:-1] if isinstance(one, RowLaunch | BlockLaunch) else one for one in launches]
    return [place for place, code in enumerate(codes) if code not in codes[:place]]


def own_first(own: Launch, others: Iterable[Launch]) -> tuple[Launch, ...]:
    return (own, *(launch for launch in dict.fromkeys(others) if launch != own))


# --- kernels of whole rows ---


def row_launches(size: int, own: RowLaunch, *, is_backward: bool) -> tuple[Launch, ...]:
    """At most 64 numbers of a row for each thread: beyond, they would not fit the registers."""
    programs = (4, 8, 12, 16, 24, 32) if is_backward else (own.max_programs // MULTIPROCESSORS,)
    return own_first(
        own,
        (
            RowLaunch(rows, num_warps, MULTIPROCESSORS * count)
            for rows, num_warps, count in product((1, 2, 4), (1, 2, 4, 8), programs)
            if rows * norm.width_of(size) <= 64 * 32 * num_warps
        ),
    )


def norm_cases(size: int, place: Place) -> list[Case]:
    def draw(here: Place) -> tuple[Tensor, ...]:
        rows, columns = here.draw(here.num_tokens, size), here.draw(size, dtype=torch.float32)
        return rows, rows.flip(0), columns, columns, columns, here.seed()

    def forward(here: Place) -> Run:
        given = draw(here)
        return lambda launch: norm.add_norm_forward(
            *given, DROPOUT, EPS, is_saved=True, launch=launch
        )

    def backward(here: Place) -> Run:
        given = draw(here)
        _, summed, statistics = norm.add_norm_forward(*given, DROPOUT, EPS, is_saved=True)
        return lambda launch: norm.add_norm_backward(
            given[0], summed, statistics, given[3], given[5], DROPOUT, launch=launch
        )

    shape, moved = f"{place.num_tokens:,} x {size:,}", 8.0 * place.num_tokens * size
    there = row_launches(size, norm.launch_of(size), is_backward=False)
    back = row_launches(size, norm.backward_launch(size), is_backward=True)
    return [
        Case("norm backward", shape, back, backward, moved, "GB/s"),
        Case("norm forward", shape, there, forward, moved, "GB/s"),
    ]


def embedding_cases(size: int, place: Place) -> list[Case]:
    def draw(here: Place) -> tuple[embeddings.Places, embeddings.EmbeddingWeights]:
        numbers = torch.arange(here.num_tokens, device=here.device)
        tables = (
            here.draw(count, size, dtype=torch.float32) for count in (here.num_pieces, 2, 512)
        )
        norms = here.draw(2, size, dtype=torch.float32)
        places = embeddings.Places(numbers * 7919 % here.num_pieces, numbers % 2, numbers % 512)
        return places, embeddings.EmbeddingWeights(*tables, *norms)

    def forward(here: Place) -> Run:
        (places, weights), seed = draw(here), here.seed()
        return lambda launch: embeddings.embed_rows(
            places, seed, DROPOUT, EPS, here.dtype, weights, launch=launch
        )

    def backward(here: Place) -> Run:
        (places, weights), seed = draw(here), here.seed()
        rows, statistics = embeddings.embed_rows(places, seed, DROPOUT, EPS, here.dtype, weights)
        return lambda launch: embeddings.embed_slopes(
            rows, places, seed, DROPOUT, statistics, weights, launch=launch
        )

    shape, numbers = f"{place.num_tokens:,} x {size:,}", 1.0 * place.num_tokens * size
    own = norm.launch_of(size, embeddings.NUM_WARPS)
    there = row_launches(size, own, is_backward=False)
    back = row_launches(size, own, is_backward=True)
    return [
        Case("embeddings backward", shape, back, backward, 10 * numbers, "GB/s"),
        Case("embeddings forward", shape, there, forward, 6 * numbers, "GB/s"),
    ]


# --- attention ---


def tiles(*rows: tuple[tuple[int, ...], ...]) -> list[TileLaunch]:
    """All of each row's choices: queries, keys, warps, stages and registers (0: as many as any)."""
    return [
        TileLaunch(*numbers[:4], max_registers=numbers[4] or None)
        for row in rows
        for numbers in product(*row)
    ]


FORWARD_TILES = tiles(
    ((128,), (64,), (4, 8), (2, 3, 4), (0,)),
    ((128,), (128,), (4, 8), (2, 3), (0,)),
    ((64,), (64, 128), (4,), (2, 3, 4), (0,)),
    ((128,), (64,), (8,), (2, 3), (128,)),
)
SHORT_TILES = tiles(  # of the backward pass of up to 128 tokens: all queries at once
    ((128,), (64,), (8,), (1, 2, 3), (0, 128)),
    ((128,), (32,), (8,), (1, 2, 3), (0, 128)),
    ((128,), (64,), (4,), (1, 2), (0,)),
    ((128,), (128,), (8,), (1,), (0, 128)),
)
QUERY_TILES = tiles(
    ((128,), (64,), (8,), (2, 3, 4), (0, 128)),
    ((128,), (32,), (8,), (2, 3), (0, 128)),
    ((128,), (128,), (8,), (2,), (0,)),
    ((64,), (64,), (4,), (2, 3), (0, 128, 168)),
    ((64,), (32,), (4,), (2, 3), (0, 128)),
)
KEY_TILES = tiles(
    ((64,), (64,), (4,), (1, 2, 3), (0, 128, 168)),
    ((32,), (64,), (4,), (2, 3), (0, 128, 168)),
    ((64,), (128,), (8,), (1, 2), (0, 128)),
    ((32,), (128,), (8,), (2, 3), (0, 128)),
    ((64,), (64,), (8,), (2,), (0, 128)),
    ((128,), (64,), (8,), (1, 2), (0, 128)),
)


def attention_cases(length: int, place: Place) -> list[Case]:
    def draw(here: Place) -> tuple[Tensor, Tensor, int, Tensor]:
        qkv = here.draw(here.num_tokens, 3, here.num_heads, HEAD_SIZE)
        bounds = torch.arange(0, here.num_tokens + 1, length, device=here.device)
        return qkv, bounds, length, here.seed()

    def forward(here: Place) -> Run:
        *sequences, seed = draw(here)
        asked = attention.ask_all(*sequences)
        return lambda launch: attention.attend_kernel_forward(asked, seed, DROPOUT, launch=launch)

    def backward(here: Place, which: str) -> Run:
        given = draw(here)
        found = attention.attend_kernel_forward(attention.ask_all(*given[:3]), given[3], DROPOUT)
        gradient = found[0].flip(0)
        return lambda launch: attention.attend_kernel_backward(
            gradient, *given, *found, DROPOUT, **{which: launch}
        )

    shape = f"{place.num_tokens:,} in {length}s, {place.num_heads} x {HEAD_SIZE}"
    once = 4.0 * place.num_tokens * length * place.num_heads * HEAD_SIZE
    there = own_first(attention.forward_launch(length), FORWARD_TILES)
    cases = [Case("attention forward", shape, there, forward, once, "TFLOP/s")]
    if length <= attention.BLOCK:
        own = attention.backward_launch(length, HEAD_SIZE)
        ways = [("attention backward", own, SHORT_TILES, "launch")]
    else:  # both kernels run each time; what differs is one of them
        ways = [
            ("attention backward, keys", attention.keys_launch(HEAD_SIZE), KEY_TILES, "key_launch"),
            ("attention backward, queries", attention.QUERIES_LAUNCH, QUERY_TILES, "launch"),
        ]
    for name, own, others, which in ways:

        def run(here: Place, which: str = which) -> Run:
            return backward(here, which)

        cases.append(Case(name, shape, own_first(own, others), run, 2.5 * once, "TFLOP/s"))
    return cases


# --- kernels of blocks ---


def block_launches(own: BlockLaunch, *, columns: tuple[int, ...]) -> tuple[Launch, ...]:
    return own_first(
        own,
        (
            BlockLaunch(rows, count, num_warps, own.max_programs * share // 2)
            for rows, count, num_warps, share in product((8, 16, 32), columns, (4, 8), (1, 2, 4))
            if rows * count <= 64 * 32 * num_warps
        ),
    )


def gelu_cases(width: int, place: Place) -> list[Case]:
    def forward(here: Place) -> Run:
        x, bias = here.draw(here.num_tokens, width), here.draw(width, dtype=torch.float32)
        return lambda launch: (gelu.bias_gelu_forward(x, bias, False, launch=launch),)

    def backward(here: Place) -> Run:
        x, bias = here.draw(here.num_tokens, width), here.draw(width, dtype=torch.float32)
        gradient = x.flip(0)
        return lambda launch: gelu.bias_gelu_backward(gradient, x, bias, False, launch=launch)

    shape, numbers = f"{place.num_tokens:,} x {width:,}", 1.0 * place.num_tokens * width
    back = block_launches(gelu.LAUNCH, columns=(128, 256, 512))
    there = own_first(gelu.LAUNCH, (one for one in back if one[3] == gelu.LAUNCH.max_programs))
    return [
        Case("gelu backward", shape, back, backward, 6 * numbers, "GB/s"),
        Case("gelu forward", shape, there, forward, 4 * numbers, "GB/s"),
    ]


def sum_case(size: int, place: Place) -> Case:
    """The gradient of the bias of queries and values."""

    def make(here: Place) -> Run:
        d_qkv = here.draw(here.num_tokens, 3, size // HEAD_SIZE, HEAD_SIZE)
        return lambda launch: (sums.sum_tokens(d_qkv, launch=launch),)

    own = sums.LAUNCH
    launches = own_first(
        own,
        (
            BlockLaunch(rows, columns, num_warps, count)
            for rows, columns, num_warps, count in product(
                (32, 64, 128), (64, 128), (4, 8), (32, 64, 128)
            )
        ),
    )
    moved = 4.0 * place.num_tokens * size
    return Case("sums of tokens", f"{place.num_tokens:,} x {size:,}", launches, make, moved, "GB/s")


def loss_case(place: Place) -> Case:
    """With a copy of the logits, which become gradients in place."""

    def make(here: Place) -> Run:
        width = -(-here.num_pieces // cross_entropy.ALIGNED) * cross_entropy.ALIGNED
        kept = here.draw(here.num_predicted, width)
        logits, bias = torch.empty_like(kept), here.draw(here.num_pieces, dtype=torch.float32)
        labels = torch.arange(here.num_predicted, device=here.device) % here.num_pieces

        def run(launch: BlockLaunch) -> tuple[Tensor, ...]:
            losses, _ = cross_entropy.score_block(
                logits.copy_(kept), bias, labels, -100, launch=launch
            )
            return losses, logits

        return run

    own = cross_entropy.LAUNCH
    launches = own_first(
        own,
        (
            BlockLaunch(1, columns, num_warps, 0)
            for columns, num_warps in product((1024, 2048, 4096, 8192), (4, 8, 16))
        ),
    )
    shape, moved = f"{place.num_predicted:,} x {place.num_pieces:,}", 8.0 * place.num_predicted
    return Case("loss and a copy", shape, launches, make, moved * place.num_pieces, "GB/s")


# --- products, which cuBLASLt launches: of eight bits beside those of sixteen ---

WAYS = (ProductWay(16, False), ProductWay(8, True), ProductWay(8, False))
ENDINGS = {"qkv": ADD_BIAS, "out": NO_ENDING, "up": GELU_BIAS_SAVED, "up without gelu": ADD_BIAS}


def product_case(name: str, size: int, width: int, place: Place) -> Case:
    def make(here: Place) -> Run:
        x, bias = here.draw(here.num_tokens, size), here.draw(width)
        half, eight = cast_weight(here.draw(width, size, dtype=torch.float32) / size**0.5, x.dtype)
        given = {16: (x, half), 8: (quantise(x), eight)}
        out, wide = x.new_empty(2, here.num_tokens, width)

        def run(way: ProductWay) -> tuple[Tensor, ...]:
            rows, weight = given[way.num_bits]
            product = forward_product(rows, weight, ENDINGS[name])._replace(is_fast=way.is_fast)
            has_bias, has_gelu = product.ending != NO_ENDING, product.ending == GELU_BIAS_SAVED
            plan_of(product).run(
                weight,
                rows,
                out,
                bias=bias if has_bias else None,
                wide=wide if has_gelu else None,
            )
            return (out, wide) if has_gelu else (out,)

        return run

    work = 2.0 * place.num_tokens * size * width
    shape = f"{place.num_tokens:,} x {size:,} x {width:,}"
    return Case(f"product {name}", shape, WAYS, make, work, "TFLOP/s", furthest=0.08)


def product_cases(size: int, place: Place) -> list[Case]:
    widths = {"qkv": 3 * size, "out": size, "up": 4 * size, "up without gelu": 4 * size}
    return [product_case(name, size, width, place) for name, width in widths.items()]


def make_cases(place: Place) -> list[Case]:
    """What matters most comes first."""
    products = [case for size in (768, 1024) for case in product_cases(size, place)]
    return [
        *norm_cases(1024, place),
        *attention_cases(512, place),
        *(products if place.device == "cuda" else ()),  # cuBLASLt's
        *attention_cases(128, place),
        *norm_cases(768, place),
        sum_case(768, place),
        *embedding_cases(768, place),
        loss_case(place),
        *norm_cases(512, place),
        *gelu_cases(3072, place),
        sum_case(1024, place),
        *embedding_cases(1024, place),
    ]
