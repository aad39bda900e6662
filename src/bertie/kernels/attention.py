"""Attention over sequences in a row, without padding, with dropout.

Scores are never stored. The backward pass makes them again from the queries and keys, and the
dropout mask from its hash. Up to BLOCK tokens, one program does all of a head of a sequence; longer
ones go block by block, once for the queries and once for the keys and values. So do sequences of
which only some rows ask: their queries lie apart, in the order of the sequences.
"""

# T tokens of all sequences in a row   N sequences   H heads   K head size   R rows that ask

from itertools import pairwise
from typing import NamedTuple

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
from bertie.kernels.launch import TileLaunch
from bertie.kernels.sums import add_rows, sum_tokens

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


def asking_launch(longest: int) -> TileLaunch:
    """Where only some rows ask: a sixth of them in pre-training, one in classification."""
    queries = min(64, max(16, block_of(longest) // 4))
    return TileLaunch(queries, keys=min(64, block_of(longest)), num_warps=4, num_stages=2)


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
def find_queries(asking, start, length, HEADS: tl.constexpr, IS_APART: tl.constexpr):
    """Where the queries of a program's sequence start, and how many there are."""
    if IS_APART:
        start, length, _head = find_sequence(asking, HEADS)
    return start, length


@triton.jit
def find_seed(seed):
    """Of a program's own sequence and head."""
    return mix(tl.load(seed).to(tl.uint32) + mix(tl.program_id(0).to(tl.uint32)))


@triton.jit
def attend_block(
    first_query,
    q,
    kv,
    asking,
    bounds,
    seed,
    out,
    log_sums,
    num_rows,
    scale,
    Q_ROW: tl.constexpr,
    KV_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_APART: tl.constexpr,
):
    """What QUERIES queries of a sequence find."""
    start, length, head = find_sequence(bounds, HEADS)
    q_start, num_queries = find_queries(asking, start, length, HEADS, IS_APART)
    WIDTH: tl.constexpr = HEADS * SIZE
    own_seed = find_seed(seed)
    parts = tl.arange(0, SIZE)[None, :]
    local_queries = tl.arange(0, QUERIES)[:, None]
    local_keys = tl.arange(0, KEYS)
    queries = first_query + local_queries
    is_query = queries < num_queries
    q_base = q + (q_start * Q_ROW + head * SIZE) + parts
    asked = tl.load(q_base + queries * Q_ROW, mask=is_query, other=0.0)
    base = kv + (start * KV_ROW + head * SIZE) + parts
    highest = tl.full((QUERIES, 1), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES, 1), tl.float32)
    mixed = tl.zeros((QUERIES, SIZE), tl.float32)
    for first_key in range(0, length, KEYS):
        keys = (first_key + local_keys)[:, None]
        rows = base + keys * KV_ROW
        k = tl.load(rows, mask=keys < length, other=0.0)
        v = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
        scores = tl.dot(asked, tl.trans(k))  # (QUERIES, KEYS)
        if first_key + KEYS > length:
            scores = tl.where((first_key + local_keys)[None, :] < length, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1, keep_dims=True) * scale)
        shares = tl.exp2(scores * scale - new_highest)
        fading = tl.exp2(highest - new_highest)
        total = total * fading + tl.sum(shares, 1, keep_dims=True)
        if NUM_DROPPED > 0:
            is_kept = find_kept_pairs(
                own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
            )
            shares = tl.where(is_kept, shares, 0.0)
        mixed = tl.dot(shares.to(v.dtype), v, mixed * fading)
        highest = new_highest
    mixed *= SCALE / total
    places = q_start * WIDTH + head * SIZE + queries * WIDTH + parts
    tl.store(out + places, mixed.to(out.dtype.element_ty), mask=is_query)
    sums = log_sums + head.to(tl.int64) * num_rows + q_start + queries
    tl.store(sums, highest + tl.log2(total), mask=is_query)


@triton.jit(do_not_specialize=["num_rows"])
def attend_forward(
    q,
    kv,
    asking,
    bounds,
    seed,
    out,
    log_sums,
    num_rows,
    scale,
    Q_ROW: tl.constexpr,
    KV_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_APART: tl.constexpr,
):
    """`scale` is that of the scores, in units of log2; `log_sums` (H, R) too.

    Where queries lie apart, how many a sequence has is known to `asking` alone: a program takes one
    block of them after the other. Else the grid has a program for each block.
    """
    _, num_queries, _ = find_sequence(asking, HEADS)
    if IS_APART:
        for first_query in range(0, num_queries, QUERIES):
            attend_block(
                first_query, q, kv, asking, bounds, seed, out, log_sums, num_rows, scale,
                Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE, IS_APART,
            )  # fmt: skip
    else:
        first_query = tl.program_id(1) * QUERIES
        if first_query < num_queries:
            attend_block(
                first_query, q, kv, asking, bounds, seed, out, log_sums, num_rows, scale,
                Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE, IS_APART,
            )  # fmt: skip


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


@triton.jit
def walk_back_block(
    first_query,
    gradient,
    q,
    kv,
    asking,
    bounds,
    seed,
    out,
    log_sums,
    levels,
    d_q,
    num_rows,
    scale,
    Q_ROW: tl.constexpr,
    KV_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_APART: tl.constexpr,
):
    """The gradient of QUERIES queries of a sequence, and their levels."""
    start, length, head = find_sequence(bounds, HEADS)
    q_start, num_queries = find_queries(asking, start, length, HEADS, IS_APART)
    WIDTH: tl.constexpr = HEADS * SIZE
    own_seed = find_seed(seed)
    parts = tl.arange(0, SIZE)[None, :]
    local_queries = tl.arange(0, QUERIES)[:, None]
    local_keys = tl.arange(0, KEYS)
    queries = first_query + local_queries
    is_query = queries < num_queries
    base = kv + (start * KV_ROW + head * SIZE) + parts
    q_first = q_start * Q_ROW + head * SIZE
    places = q_start * WIDTH + head * SIZE + queries * WIDTH + parts
    asked = tl.load(q + q_first + parts + queries * Q_ROW, mask=is_query, other=0.0)
    g = tl.load(gradient + places, mask=is_query, other=0.0)
    o = tl.load(out + places, mask=is_query, other=0.0)
    level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True)
    own = head.to(tl.int64) * num_rows + q_start + queries
    tl.store(levels + own, level, mask=is_query)
    log_sum = tl.load(log_sums + own, mask=is_query, other=float("inf"))
    slope = tl.zeros((QUERIES, SIZE), tl.float32)
    for first_key in range(0, length, KEYS):
        keys = (first_key + local_keys)[:, None]
        rows = base + keys * KV_ROW
        k = tl.load(rows, mask=keys < length, other=0.0)
        v = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
        _shares, d_scores = make_shares(
            asked, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
            local_keys, scale, NUM_DROPPED, SCALE,
        )  # fmt: skip
        slope = tl.dot(d_scores, k, slope)
    slope *= scale * LN_2
    d_places = d_q + q_first + queries * Q_ROW + parts
    tl.store(d_places, slope.to(d_q.dtype.element_ty), mask=is_query)


@triton.jit(do_not_specialize=["num_rows"])
def attend_backward_queries(
    gradient,
    q,
    kv,
    asking,
    bounds,
    seed,
    out,
    log_sums,
    levels,
    d_q,
    num_rows,
    scale,
    Q_ROW: tl.constexpr,
    KV_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_APART: tl.constexpr,
):
    """Of longer sequences, or queries that lie apart; and `levels` (H, R) for the other kernel."""
    _, num_queries, _ = find_sequence(asking, HEADS)
    if IS_APART:
        for first_query in range(0, num_queries, QUERIES):
            walk_back_block(
                first_query, gradient, q, kv, asking, bounds, seed, out, log_sums, levels, d_q,
                num_rows, scale, Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE,
                IS_APART,
            )  # fmt: skip
    else:
        first_query = tl.program_id(1) * QUERIES
        if first_query < num_queries:
            walk_back_block(
                first_query, gradient, q, kv, asking, bounds, seed, out, log_sums, levels, d_q,
                num_rows, scale, Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE,
                IS_APART,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def attend_backward_keys(
    gradient,
    q,
    kv,
    asking,
    bounds,
    seed,
    log_sums,
    levels,
    d_kv,
    num_rows,
    scale,
    Q_ROW: tl.constexpr,
    KV_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_APART: tl.constexpr,
):
    """The keys and values of a block."""
    start, length, head = find_sequence(bounds, HEADS)
    first_key = tl.program_id(1) * KEYS
    if first_key < length:
        q_start, num_queries = find_queries(asking, start, length, HEADS, IS_APART)
        WIDTH: tl.constexpr = HEADS * SIZE
        own_seed = find_seed(seed)
        parts = tl.arange(0, SIZE)[None, :]
        local_queries = tl.arange(0, QUERIES)[:, None]
        local_keys = tl.arange(0, KEYS)
        keys = (first_key + local_keys)[:, None]
        first_place = start * KV_ROW + head * SIZE
        base = kv + first_place + parts
        q_base = q + (q_start * Q_ROW + head * SIZE) + parts
        g_base = gradient + q_start * WIDTH + head * SIZE + parts
        own = head.to(tl.int64) * num_rows + q_start
        k = tl.load(base + keys * KV_ROW, mask=keys < length, other=0.0)
        v = tl.load(base + WIDTH + keys * KV_ROW, mask=keys < length, other=0.0)
        d_k = tl.zeros((KEYS, SIZE), tl.float32)
        d_v = tl.zeros((KEYS, SIZE), tl.float32)
        for first_query in range(0, num_queries, QUERIES):
            queries = first_query + local_queries
            is_query = queries < num_queries
            asked = tl.load(q_base + queries * Q_ROW, mask=is_query, other=0.0)
            g = tl.load(g_base + queries * WIDTH, mask=is_query, other=0.0)
            level = tl.load(levels + own + queries, mask=is_query, other=0.0)
            log_sum = tl.load(log_sums + own + queries, mask=is_query, other=float("inf"))
            shares, d_scores = make_shares(
                asked, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
                local_keys, scale, NUM_DROPPED, SCALE,
            )  # fmt: skip
            d_v = tl.dot(tl.trans(shares), g, d_v)
            d_k = tl.dot(tl.trans(d_scores), asked, d_k)
        d_k *= scale * LN_2
        d_rows = d_kv + first_place + keys * KV_ROW + parts
        tl.store(d_rows, d_k.to(d_kv.dtype.element_ty), mask=keys < length)
        tl.store(d_rows + WIDTH, d_v.to(d_kv.dtype.element_ty), mask=keys < length)


class Asked(NamedTuple):
    """Who asks whom: queries, in the order of their sequences, and the sequences' own rows."""

    q: Tensor  # (R, H, K)
    kv: Tensor  # (T, 2, H, K)
    asking: Tensor  # (N + 1,) whose queries they are, as bounds say whose rows
    bounds: Tensor  # (N + 1,)
    longest: int
    is_apart: bool  # not every row asks

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5 * LOG2_E)

    @property
    def num_programs(self) -> int:
        return (len(self.bounds) - 1) * self.q.shape[1]

    def num_blocks(self, launch: TileLaunch) -> int:
        """Programs for the queries of a sequence."""
        return 1 if self.is_apart else int(triton.cdiv(self.longest, launch.queries))

    def shape(self) -> dict[str, int]:
        """As kernels are given it."""
        heads, size = self.q.shape[1:]
        rows = {"Q_ROW": self.q.stride(0), "KV_ROW": self.kv.stride(0)}
        return rows | {"HEADS": heads, "SIZE": size}


def ask_all(qkv: Tensor, bounds: Tensor, longest: int) -> Asked:  # (T, 3, H, K), (N + 1,)
    return Asked(qkv[:, 0], qkv[:, 1:], bounds, bounds, longest, is_apart=False)


def attend_kernel_forward(
    asked: Asked,
    seed: Tensor,
    dropout: float,
    *,
    launch: TileLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # -> (R, H, K), (H, R)
    """Each query's mix of the values of its own sequence; and the logarithms of its sums."""
    q = asked.q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log_sums = torch.empty(q.shape[1], len(q), dtype=torch.float32, device=q.device)
    own = asking_launch if asked.is_apart else forward_launch
    launch = launch or own(asked.longest)
    attend_forward[(asked.num_programs, asked.num_blocks(launch))](
        q,
        asked.kv,
        asked.asking,
        asked.bounds,
        seed,
        out,
        log_sums,
        len(q),
        asked.scale,
        IS_APART=asked.is_apart,
        **asked.shape(),
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
    if longest > BLOCK:
        walk_back_apart(
            gradient,
            ask_all(qkv, bounds, longest),
            seed,
            out,
            log_sums,
            dropout,
            slopes=(d_qkv[:, 0], d_qkv[:, 1:]),
            launch=launch or QUERIES_LAUNCH,
            key_launch=key_launch or keys_launch(size),
        )
        return d_qkv, sum_tokens(d_qkv)
    attend_backward[((len(bounds) - 1) * heads,)](
        gradient,
        qkv,
        bounds,
        seed,
        out,
        log_sums,
        d_qkv,
        num_tokens,
        size**-0.5 * LOG2_E,
        HEADS=heads,
        SIZE=size,
        **chance_of(dropout),
        **settings_of(launch or backward_launch(longest, size)),
    )
    return d_qkv, sum_tokens(d_qkv)


def attend_apart_backward(
    gradient: Tensor, asked: Asked, seed: Tensor, out: Tensor, log_sums: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:  # (R, H, K), ... -> (R, H, K), (T, 2, H, K), (3, H, K)
    """The same where queries lie apart."""
    d_q, d_kv = torch.empty_like(asked.q), torch.empty_like(asked.kv)
    launch = asking_launch(asked.longest)
    walk_back_apart(
        gradient,
        asked,
        seed,
        out,
        log_sums,
        dropout,
        slopes=(d_q, d_kv),
        launch=launch,
        key_launch=launch,
    )
    of_queries, of_values = add_rows(d_q), add_rows(d_kv[:, 1])
    return d_q, d_kv, torch.stack([of_queries, torch.zeros_like(of_queries), of_values])


def walk_back_apart(
    gradient: Tensor,
    asked: Asked,
    seed: Tensor,
    out: Tensor,
    log_sums: Tensor,
    dropout: float,
    *,
    slopes: tuple[Tensor, Tensor],
    launch: TileLaunch,
    key_launch: TileLaunch,
) -> None:
    """Writes the gradients of queries and of keys and values, each by a kernel of its own.

    `slopes` lie in memory as what they are the gradients of.
    """
    levels = torch.empty_like(log_sums)
    given = asked.q, asked.kv, asked.asking, asked.bounds, seed
    settings = {"IS_APART": asked.is_apart, **asked.shape(), **chance_of(dropout)}
    num_rows, scale = len(asked.q), asked.scale
    attend_backward_queries[(asked.num_programs, asked.num_blocks(launch))](
        gradient,
        *given,
        out,
        log_sums,
        levels,
        slopes[0],
        num_rows,
        scale,
        **settings,
        **settings_of(launch),
    )
    attend_backward_keys[(asked.num_programs, triton.cdiv(asked.longest, key_launch.keys))](
        gradient,
        *given,
        log_sums,
        levels,
        slopes[1],
        num_rows,
        scale,
        **settings,
        **settings_of(key_launch),
    )


def attend_plain(
    asked: Asked, seed: Tensor, dropout: float
) -> Tensor:  # (R, H, K), (T, 2, H, K) -> (R, H, K)
    """The twin: sequence by sequence, with torch's own operations and the same chance."""
    chance, heads = chance_of(dropout), asked.q.shape[1]
    mixed = []
    owners = zip(pairwise(asked.asking.tolist()), pairwise(asked.bounds.tolist()), strict=True)
    for number, ((first, last), (start, end)) in enumerate(owners):
        query = asked.q[first:last].transpose(0, 1)  # (H, queries, K)
        key, value = asked.kv[start:end].permute(1, 2, 0, 3)  # (H, W, K)
        shares = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)
        if chance["NUM_DROPPED"]:
            program = mix_plain(torch.arange(number * heads, (number + 1) * heads))
            seeds = mix_plain((seed + program) & 0xFFFFFFFF)[:, None, None]
            is_kept = find_kept_pairs_plain(
                seeds,
                torch.arange(last - first)[:, None],
                torch.arange(end - start)[None, :],
                int(chance["NUM_DROPPED"]),
            )
            shares = torch.where(is_kept, shares * chance["SCALE"], 0.0)
        mixed.append((shares @ value).transpose(0, 1))
    return torch.cat(mixed)
