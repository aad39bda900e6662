"""What tune_kernels.py measures: each kernel on the shapes of a training step, with its launches.

The first launch of a case is the one that the kernel takes by itself.
"""

# T tokens   D hidden size   U feed-forward size   V pieces   H heads   K head size

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from bertie.kernels import attention, cross_entropy, embeddings, gelu, norm, sums
from bertie.kernels.float8 import Slope, find_scale
from bertie.kernels.launch import BlockLaunch, RowLaunch, TileLaunch

DROPOUT, EPS, HEAD_SIZE, MULTIPROCESSORS = 0.1, 1e-12, 64, 132


Launch = RowLaunch | BlockLaunch | TileLaunch
OneKind = TypeVar("OneKind", bound=Launch)
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


def own_first(own: OneKind, others: Iterable[OneKind]) -> tuple[OneKind, ...]:
    return (own, *(launch for launch in dict.fromkeys(others) if launch != own))


EIGHT = ", copied to eight bits"


def in_eight(make: Callable[..., Run]) -> Callable[[Place], Run]:
    return partial(make, is_float8=True)


def as_is(make: Callable[..., Run]) -> Callable[[Place], Run]:
    return make


# --- kernels of whole rows ---


def row_launches(size: int, own: RowLaunch, *, is_backward: bool) -> tuple[RowLaunch, ...]:
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


def flatten(found: Iterable[Tensor | Slope | None]) -> tuple[Tensor, ...]:
    """Tensors alone, of gradients both forms."""
    parts = [one[:2] if isinstance(one, Slope) else (one,) for one in found]
    return tuple(tensor for part in parts for tensor in part if tensor is not None)


def norm_cases(size: int, place: Place) -> list[Case]:
    def draw(here: Place) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, columns = here.draw(here.num_tokens, size), here.draw(size, dtype=torch.float32)
        return rows, rows.flip(0), columns, columns, columns, here.seed()

    def forward(here: Place) -> Run:
        given = draw(here)
        return lambda launch: norm.add_norm_forward(
            *given, DROPOUT, EPS, is_saved=True, launch=launch
        )

    def backward(here: Place, *, is_float8: bool = False) -> Run:
        given = draw(here)
        _, summed, statistics = norm.add_norm_forward(*given, DROPOUT, EPS, is_saved=True)
        needed = (given[0], summed, statistics, given[3], given[5], DROPOUT)
        scale = find_scale(given[0]) if is_float8 else None
        return lambda launch: flatten(norm.add_norm_backward(*needed, scale=scale, launch=launch))

    shape, moved = f"{place.num_tokens:,} x {size:,}", 8.0 * place.num_tokens * size
    there = row_launches(size, norm.launch_of(size), is_backward=False)
    back, copied = (
        row_launches(size, norm.backward_launch(size, is_copied=is_copied), is_backward=True)
        for is_copied in (False, True)
    )
    return [
        Case("norm backward", shape, back, backward, moved, "GB/s"),
        Case(f"norm backward{EIGHT}", shape, copied, in_eight(backward), 1.125 * moved, "GB/s"),
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
        TileLaunch(queries, keys, num_warps, num_stages, max_registers=most or None)
        for row in rows
        for queries, keys, num_warps, num_stages, most in product(*row)
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
        qkv, bounds, longest, seed = draw(here)
        asked = attention.ask_all(qkv, bounds, longest)
        return lambda launch: attention.attend_kernel_forward(asked, seed, DROPOUT, launch=launch)

    def backward(here: Place, which: str) -> Run:
        given = draw(here)
        found = attention.attend_kernel_forward(attention.ask_all(*given[:3]), given[3], DROPOUT)
        gradient = found[0].flip(0)
        needed = (gradient, *given, *found, DROPOUT)
        return lambda launch: (attention.attend_kernel_backward(*needed, **{which: launch}),)

    shape = f"{place.num_tokens:,} in {length}s, {place.num_heads} x {HEAD_SIZE}"
    once = 4.0 * place.num_tokens * length * place.num_heads * HEAD_SIZE
    has_gpu = torch.cuda.is_available()
    most = attention.find_block(torch.device(place.device if has_gpu else "cpu"))
    there = own_first(attention.forward_launch(length, HEAD_SIZE, most), FORWARD_TILES)
    cases = [Case("attention forward", shape, there, forward, once, "TFLOP/s")]
    if length <= most:
        own = attention.backward_launch(length, HEAD_SIZE, most)
        ways = [("attention backward", own, SHORT_TILES, "launch")]
    else:  # both kernels run each time; what differs is one of them
        ways = [
            (
                "attention backward, keys",
                attention.keys_launch(HEAD_SIZE, DROPOUT, most),
                KEY_TILES,
                "key_launch",
            ),
            (
                "attention backward, queries",
                attention.queries_launch(HEAD_SIZE, most),
                QUERY_TILES,
                "launch",
            ),
        ]
    for name, own, others, which in ways:

        def run(here: Place, which: str = which) -> Run:
            return backward(here, which)

        cases.append(Case(name, shape, own_first(own, others), run, 2.5 * once, "TFLOP/s"))
    return cases


# --- kernels of blocks ---


def block_launches(own: BlockLaunch, *, columns: tuple[int, ...]) -> tuple[BlockLaunch, ...]:
    return own_first(
        own,
        (
            BlockLaunch(rows, count, num_warps, own.max_programs * share // 2)
            for rows, count, num_warps, share in product((8, 16, 32), columns, (4, 8), (1, 2, 4))
            if rows * count <= 64 * 32 * num_warps
        ),
    )


def gelu_cases(width: int, place: Place) -> list[Case]:
    def forward(here: Place, *, is_float8: bool = False) -> Run:
        x, bias = here.draw(here.num_tokens, width), here.draw(width, dtype=torch.float32)
        return lambda launch: (
            gelu.bias_gelu_forward(x, bias, False, is_float8=is_float8, launch=launch),
        )

    def backward(here: Place, *, is_float8: bool = False) -> Run:
        x, bias = here.draw(here.num_tokens, width), here.draw(width, dtype=torch.float32)
        needed = (x.flip(0), x, bias, False)
        scale = find_scale(x) if is_float8 else None
        return lambda launch: flatten(gelu.bias_gelu_backward(*needed, scale=scale, launch=launch))

    shape, numbers = f"{place.num_tokens:,} x {width:,}", 1.0 * place.num_tokens * width
    cases = []
    for ahead, own, is_float8 in (
        (gelu.LAUNCH, gelu.LAUNCH, False),
        (gelu.AHEAD8, gelu.BACK8, True),
    ):
        back = block_launches(own, columns=(128, 256, 512))
        there = own_first(ahead, (one for one in back if one.max_programs == own.max_programs))
        name, bytes_there, bytes_back = (EIGHT, 3, 9) if is_float8 else ("", 4, 6)
        make = in_eight if is_float8 else as_is
        cases += [
            Case(f"gelu backward{name}", shape, back, make(backward), bytes_back * numbers, "GB/s"),
            Case(f"gelu forward{name}", shape, there, make(forward), bytes_there * numbers, "GB/s"),
        ]
    return cases


def sum_cases(size: int, place: Place) -> list[Case]:
    """The gradient of the bias of queries and values; and a copy of all in eight bits."""

    def make(here: Place, *, is_float8: bool = False) -> Run:
        d_qkv = here.draw(here.num_tokens, 3, size // HEAD_SIZE, HEAD_SIZE)
        scale = find_scale(d_qkv) if is_float8 else None
        return lambda launch: flatten(sums.sum_and_copy(d_qkv, scale, launch=launch))

    shape, numbers = f"{place.num_tokens:,} x {size:,}", 1.0 * place.num_tokens * size
    alone = (BlockLaunch(*one) for one in product((32, 64, 128), (64, 128), (4, 8), (32, 64, 128)))
    copied = (BlockLaunch(*one) for one in product((8, 16, 32), (128, 256), (4, 8), (64, 128, 256)))
    there, back = own_first(sums.LAUNCH, alone), own_first(sums.COPY_LAUNCH, copied)
    return [
        Case("sums of tokens", shape, there, make, 4 * numbers, "GB/s"),
        Case(f"sums of tokens{EIGHT}", shape, back, in_eight(make), 9 * numbers, "GB/s"),
    ]


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


def make_cases(place: Place) -> list[Case]:
    """What matters most comes first."""
    return [
        *norm_cases(1024, place),
        *attention_cases(512, place),
        *attention_cases(128, place),
        *norm_cases(768, place),
        *sum_cases(768, place),
        *embedding_cases(768, place),
        loss_case(place),
        *norm_cases(512, place),
        *gelu_cases(3072, place),
        *sum_cases(1024, place),
        *gelu_cases(4096, place),
        *embedding_cases(1024, place),
    ]
