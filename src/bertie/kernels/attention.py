"""Attention over sequences in a row, without padding, with dropout.

Scores are never stored. The backward pass makes them again from the queries and keys, and the
dropout mask from its hash. Up to BLOCK tokens, one program does all of a head of a sequence; longer
ones go block by block, once for the queries and once for the keys and values.
"""

# T tokens of all sequences in a row   N sequences   H heads   K head size

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.chance import (
    chance_of,
    find_kept_pairs,
    find_kept_pairs_plain,
    mix,
    mix_plain,
)
from bertie.kernels.float8 import copy_rows
from bertie.kernels.launch import TileLaunch
from bertie.kernels.sums import sum_tokens

BLOCK = 128
LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)


def block_of(longest: int) -> int:
    """How many queries a program takes."""
    return min(BLOCK, max(16, int(triton.next_power_of_2(longest))))


def forward_launch(longest: int) -> TileLaunch:
    queries = block_of(longest)
    num_warps = 4 if queries < BLOCK else 8
    return TileLaunch(queries, keys=min(64, queries), num_warps=num_warps, num_stages=3)


def backward_launch(longest: int, size: int) -> TileLaunch:
    """Of sequences of at most BLOCK tokens, whose queries one program takes."""
    queries = block_of(longest)
    return TileLaunch(
        queries,
        keys=min(64, queries),
        num_warps=4 if queries < BLOCK else 8,
        num_stages=2,
        max_registers=128 if queries == BLOCK and size == 64 else None,
    )


QUERIES_LAUNCH = TileLaunch(queries=BLOCK, keys=64, num_warps=8, num_stages=3)


def keys_launch(size: int) -> TileLaunch:
    max_registers = 168 if size == 64 else None
    return TileLaunch(queries=64, keys=64, num_warps=4, num_stages=2, max_registers=max_registers)


def settings_of(launch: TileLaunch) -> dict[str, int | None]:
    """As kernels are given them."""
    return {
        "QUERIES": launch.queries,
        "KEYS": launch.keys,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "maxnreg": launch.max_registers,
    }


@triton.jit
def find_sequence(bounds, HEADS: tl.constexpr):
    """Where the sequence of a program starts, its length, and which head it is about."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(bounds + sequence).to(tl.int64)
    return start, (tl.load(bounds + sequence + 1) - start).to(tl.int32), head


@triton.jit
def find_seed(seed):
    """Of a program's own sequence and head."""
    return mix(tl.load(seed).to(tl.uint32) + mix(tl.program_id(0).to(tl.uint32)))


@triton.jit(do_not_specialize=["num_tokens"])
def attend_forward(
    qkv,
    bounds,
    seed,
    out,
    log_sums,
    copy,
    num_tokens,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_COPIED: tl.constexpr,
):
    """`scale` is that of the scores, in units of log2; `log_sums` (H, T) too."""
    start, length, head = find_sequence(bounds, HEADS)
    first_query = tl.program_id(1) * QUERIES
    if first_query < length:
        WIDTH: tl.constexpr = HEADS * SIZE
        own_seed = find_seed(seed)
        parts = tl.arange(0, SIZE)[None, :]
        local_queries = tl.arange(0, QUERIES)[:, None]
        local_keys = tl.arange(0, KEYS)
        base = qkv + start * (3 * WIDTH) + head * SIZE + parts
        queries = first_query + local_queries
        q = tl.load(base + queries * (3 * WIDTH), mask=queries < length, other=0.0)
        highest = tl.full((QUERIES, 1), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES, 1), tl.float32)
        mixed = tl.zeros((QUERIES, SIZE), tl.float32)
        for first_key in range(0, length, KEYS):
            keys = (first_key + local_keys)[:, None]
            rows = base + keys * (3 * WIDTH)
            k = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
            v = tl.load(rows + 2 * WIDTH, mask=keys < length, other=0.0)
            scores = tl.dot(q, tl.trans(k))  # (QUERIES, KEYS)
            if first_key + KEYS > length:
                scores = tl.where((first_key + local_keys)[None, :] < length, scores, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(scores, 1, keep_dims=True) * scale)
            shares = tl.exp2(scores * scale - new_highest)
            fading = tl.exp2(highest - new_highest)
            total = total * fading + tl.sum(shares, 1, keep_dims=True)
            if NUM_DROPPED > 0:
                is_kept = find_kept_pairs(
                    own_seed,
                    first_query,
                    local_queries,
                    first_key,
                    local_keys[None, :],
                    NUM_DROPPED,
                )
                shares = tl.where(is_kept, shares, 0.0)
            mixed = tl.dot(shares.to(v.dtype), v, mixed * fading)
            highest = new_highest
        mixed *= SCALE / total
        places = (start + queries) * WIDTH + head * SIZE + parts
        rounded = mixed.to(out.dtype.element_ty)
        tl.store(out + places, rounded, mask=queries < length)
        if IS_COPIED:
            tl.store(copy + places, copy_rows(rounded), mask=queries < length)
        sums = log_sums + head.to(tl.int64) * num_tokens + start + queries
        tl.store(sums, highest + tl.log2(total), mask=queries < length)


@triton.jit
def make_shares(
    q,
    k,
    v,
    g,
    log_sum,
    level,
    own_seed,
    first_query,
    local_queries,
    first_key,
    local_keys,
    scale,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The shares again, with what dropout left of them, and the gradient of the scores.

    Rows behind the end of a sequence are zeros: what is made of them is never stored.
    """
    shares = tl.exp2(tl.dot(q, tl.trans(k)) * scale - log_sum)  # (QUERIES, KEYS)
    d_shares = tl.dot(g, tl.trans(v))
    kept_shares = shares
    if NUM_DROPPED > 0:
        is_kept = find_kept_pairs(
            own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
        )
        kept_shares = tl.where(is_kept, shares * SCALE, 0.0)
        d_shares = tl.where(is_kept, d_shares * SCALE, 0.0)
    d_scores = (shares * (d_shares - level)).to(q.dtype)
    return kept_shares.to(g.dtype), d_scores


@triton.jit(do_not_specialize=["num_tokens"])
def attend_backward(
    gradient,
    qkv,
    bounds,
    seed,
    out,
    log_sums,
    d_qkv,
    num_tokens,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Of sequences of at most QUERIES tokens."""
    start, length, head = find_sequence(bounds, HEADS)
    WIDTH: tl.constexpr = HEADS * SIZE
    own_seed = find_seed(seed)
    parts = tl.arange(0, SIZE)[None, :]
    queries = tl.arange(0, QUERIES)[:, None]
    local_keys = tl.arange(0, KEYS)
    is_query = queries < length
    first_place = start * (3 * WIDTH) + head * SIZE
    base, d_base = qkv + first_place + parts, d_qkv + first_place + parts
    places = start * WIDTH + head * SIZE + queries * WIDTH + parts
    q = tl.load(base + queries * (3 * WIDTH), mask=is_query, other=0.0)
    g = tl.load(gradient + places, mask=is_query, other=0.0)
    o = tl.load(out + places, mask=is_query, other=0.0)
    level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True)  # (QUERIES, 1)
    sums = log_sums + head.to(tl.int64) * num_tokens + start + queries
    log_sum = tl.load(sums, mask=is_query, other=float("inf"))
    d_q = tl.zeros((QUERIES, SIZE), tl.float32)
    for first_key in range(0, length, KEYS):
        keys = (first_key + local_keys)[:, None]
        rows = base + keys * (3 * WIDTH)
        k = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
        v = tl.load(rows + 2 * WIDTH, mask=keys < length, other=0.0)
        shares, d_scores = make_shares(
            q, k, v, g, log_sum, level, own_seed, 0, queries, first_key, local_keys, scale,
            NUM_DROPPED, SCALE,
        )  # fmt: skip
        d_rows = d_base + keys * (3 * WIDTH)
        d_v = tl.dot(tl.trans(shares), g)
        tl.store(d_rows + 2 * WIDTH, d_v.to(d_qkv.dtype.element_ty), mask=keys < length)
        d_k = tl.dot(tl.trans(d_scores), q) * (scale * LN_2)
        tl.store(d_rows + WIDTH, d_k.to(d_qkv.dtype.element_ty), mask=keys < length)
        d_q = tl.dot(d_scores, k, d_q)
    d_q *= scale * LN_2
    tl.store(d_base + queries * (3 * WIDTH), d_q.to(d_qkv.dtype.element_ty), mask=is_query)


@triton.jit(do_not_specialize=["num_tokens"])
def attend_backward_queries(
    gradient,
    qkv,
    bounds,
    seed,
    out,
    log_sums,
    levels,
    d_qkv,
    num_tokens,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Of longer sequences, the queries of a block; and `levels` (H, T) for the other kernel."""
    start, length, head = find_sequence(bounds, HEADS)
    first_query = tl.program_id(1) * QUERIES
    if first_query < length:
        WIDTH: tl.constexpr = HEADS * SIZE
        own_seed = find_seed(seed)
        parts = tl.arange(0, SIZE)[None, :]
        local_queries = tl.arange(0, QUERIES)[:, None]
        local_keys = tl.arange(0, KEYS)
        queries = first_query + local_queries
        is_query = queries < length
        first_place = start * (3 * WIDTH) + head * SIZE
        base = qkv + first_place + parts
        places = start * WIDTH + head * SIZE + queries * WIDTH + parts
        q = tl.load(base + queries * (3 * WIDTH), mask=is_query, other=0.0)
        g = tl.load(gradient + places, mask=is_query, other=0.0)
        o = tl.load(out + places, mask=is_query, other=0.0)
        level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True)
        own = head.to(tl.int64) * num_tokens + start + queries
        tl.store(levels + own, level, mask=is_query)
        log_sum = tl.load(log_sums + own, mask=is_query, other=float("inf"))
        d_q = tl.zeros((QUERIES, SIZE), tl.float32)
        for first_key in range(0, length, KEYS):
            keys = (first_key + local_keys)[:, None]
            rows = base + keys * (3 * WIDTH)
            k = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
            v = tl.load(rows + 2 * WIDTH, mask=keys < length, other=0.0)
            _, d_scores = make_shares(
                q, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
                local_keys, scale, NUM_DROPPED, SCALE,
            )  # fmt: skip
            d_q = tl.dot(d_scores, k, d_q)
        d_q *= scale * LN_2
        d_places = d_qkv + first_place + queries * (3 * WIDTH) + parts
        tl.store(d_places, d_q.to(d_qkv.dtype.element_ty), mask=is_query)


@triton.jit(do_not_specialize=["num_tokens"])
def attend_backward_keys(
    gradient,
    qkv,
    bounds,
    seed,
    log_sums,
    levels,
    d_qkv,
    num_tokens,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Of longer sequences, the keys and values of a block."""
    start, length, head = find_sequence(bounds, HEADS)
    first_key = tl.program_id(1) * KEYS
    if first_key < length:
        WIDTH: tl.constexpr = HEADS * SIZE
        own_seed = find_seed(seed)
        parts = tl.arange(0, SIZE)[None, :]
        local_queries = tl.arange(0, QUERIES)[:, None]
        local_keys = tl.arange(0, KEYS)
        keys = (first_key + local_keys)[:, None]
        first_place = start * (3 * WIDTH) + head * SIZE
        base = qkv + first_place + parts
        rows_at = gradient + start * WIDTH + head * SIZE + parts
        own = head.to(tl.int64) * num_tokens + start
        k = tl.load(base + WIDTH + keys * (3 * WIDTH), mask=keys < length, other=0.0)
        v = tl.load(base + 2 * WIDTH + keys * (3 * WIDTH), mask=keys < length, other=0.0)
        d_k = tl.zeros((KEYS, SIZE), tl.float32)
        d_v = tl.zeros((KEYS, SIZE), tl.float32)
        for first_query in range(0, length, QUERIES):
            queries = first_query + local_queries
            is_query = queries < length
            q = tl.load(base + queries * (3 * WIDTH), mask=is_query, other=0.0)
            g = tl.load(rows_at + queries * WIDTH, mask=is_query, other=0.0)
            level = tl.load(levels + own + queries, mask=is_query, other=0.0)
            log_sum = tl.load(log_sums + own + queries, mask=is_query, other=float("inf"))
            shares, d_scores = make_shares(
                q, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
                local_keys, scale, NUM_DROPPED, SCALE,
            )  # fmt: skip
            d_v = tl.dot(tl.trans(shares), g, d_v)
            d_k = tl.dot(tl.trans(d_scores), q, d_k)
        d_k *= scale * LN_2
        d_rows = d_qkv + first_place + keys * (3 * WIDTH) + parts
        tl.store(d_rows + WIDTH, d_k.to(d_qkv.dtype.element_ty), mask=keys < length)
        tl.store(d_rows + 2 * WIDTH, d_v.to(d_qkv.dtype.element_ty), mask=keys < length)


def attend_kernel_forward(
    qkv: Tensor,
    bounds: Tensor,
    longest: int,
    seed: Tensor,
    dropout: float,
    *,
    copy: Tensor | None = None,
    launch: TileLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # (T, 3, H, K), (N + 1,) -> (T, H, K), (H, T)
    """Each token's mix of the values of its own sequence; and the logarithms of its sums.

    Where a place for a `copy` of the mixes in eight bits is given, it is written too.
    """
    num_tokens, _, heads, size = qkv.shape
    out = torch.empty(num_tokens, heads, size, dtype=qkv.dtype, device=qkv.device)
    log_sums = torch.empty(heads, num_tokens, dtype=torch.float32, device=qkv.device)
    launch = launch or forward_launch(longest)
    grid = ((len(bounds) - 1) * heads, triton.cdiv(longest, launch.queries))
    attend_forward[grid](
        qkv,
        bounds,
        seed,
        out,
        log_sums,
        out if copy is None else copy,
        num_tokens,
        size**-0.5 * LOG2_E,
        HEADS=heads,
        SIZE=size,
        IS_COPIED=copy is not None,
        **chance_of(dropout),
        **settings_of(launch),
    )
    return out, log_sums


def attend_kernel_backward(
    gradient: Tensor,
    qkv: Tensor,
    bounds: Tensor,
    longest: int,
    seed: Tensor,
    out: Tensor,
    log_sums: Tensor,
    dropout: float,
    *,
    launch: TileLaunch | None = None,
    key_launch: TileLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # (T, H, K), (T, 3, H, K), ... -> (T, 3, H, K), (3, H, K)
    """Gradients of the queries, keys and values, and their sums over the tokens.

    Sequences of more than BLOCK tokens need two kernels; the second has a launch of its own.
    """
    num_tokens, _, heads, size = qkv.shape
    d_qkv = torch.empty_like(qkv)
    num_programs = (len(bounds) - 1) * heads
    scale = size**-0.5 * LOG2_E
    settings = {"HEADS": heads, "SIZE": size, **chance_of(dropout)}
    if longest <= BLOCK:
        launch = launch or backward_launch(longest, size)
        attend_backward[(num_programs,)](
            gradient,
            qkv,
            bounds,
            seed,
            out,
            log_sums,
            d_qkv,
            num_tokens,
            scale,
            **settings,
            **settings_of(launch),
        )
        return d_qkv, sum_tokens(d_qkv)
    levels = torch.empty_like(log_sums)
    launch, key_launch = launch or QUERIES_LAUNCH, key_launch or keys_launch(size)
    attend_backward_queries[(num_programs, triton.cdiv(longest, launch.queries))](
        gradient,
        qkv,
        bounds,
        seed,
        out,
        log_sums,
        levels,
        d_qkv,
        num_tokens,
        scale,
        **settings,
        **settings_of(launch),
    )
    attend_backward_keys[(num_programs, triton.cdiv(longest, key_launch.keys))](
        gradient,
        qkv,
        bounds,
        seed,
        log_sums,
        levels,
        d_qkv,
        num_tokens,
        scale,
        **settings,
        **settings_of(key_launch),
    )
    return d_qkv, sum_tokens(d_qkv)


def attend_plain(
    qkv: Tensor, bounds: Tensor, seed: Tensor, dropout: float
) -> Tensor:  # (T, 3, H, K), (N + 1,) -> (T, H, K)
    """The twin: sequence by sequence, with torch's own operations and the same chance."""
    chance, heads = chance_of(dropout), qkv.shape[2]
    mixed = []
    ends = bounds.tolist()
    for number, (start, end) in enumerate(pairwise(ends)):
        query, key, value = qkv[start:end].permute(1, 2, 0, 3)  # (H, W, K)
        shares = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)
        if chance["NUM_DROPPED"]:
            program = mix_plain(torch.arange(number * heads, (number + 1) * heads))
            seeds = mix_plain((seed + program) & 0xFFFFFFFF)[:, None, None]
            places = torch.arange(end - start)
            is_kept = find_kept_pairs_plain(
                seeds, places[:, None], places[None, :], int(chance["NUM_DROPPED"])
            )
            shares = torch.where(is_kept, shares * chance["SCALE"], 0.0)
        mixed.append((shares @ value).transpose(0, 1))
    return torch.cat(mixed)
