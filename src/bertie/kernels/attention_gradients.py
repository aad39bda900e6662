"""The gradients of attention's programs, as bertie.kernels.attention_programs makes their mixes."""

# QUERIES, KEYS of a block   SIZE of a head (K)   WIDTH of a row (D = H * K)

import triton
import triton.language as tl

from bertie.kernels.attention_programs import find_end, find_queries, find_seed, find_sequence
from bertie.kernels.chance import find_kept_pairs

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def find_shares(
    q, k, log_sum, first_query, local_queries, first_key, local_keys, scale, IS_LEFT: tl.constexpr
):
    """The shares again, as they were before dropout. (QUERIES, KEYS)

    Queries behind the end of a sequence have none. Keys behind it are zeros, so their score is 0:
    where all others are far below, their share is no number. Who adds over keys must not let it in.
    """
    shares = tl.exp2(tl.dot(q, tl.trans(k)) * scale - log_sum)
    if IS_LEFT:
        is_seen = first_key + local_keys[None, :] <= first_query + local_queries
        shares = tl.where(is_seen, shares, 0.0)
    return shares


@triton.jit
def find_slopes(
    shares,
    g,
    v,
    level,
    own_seed,
    first_query,
    local_queries,
    first_key,
    local_keys,
    NUM_DROPPED: tl.constexpr,
):
    """What dropout left of the shares, and the gradient of the scores.

    Both without the factor SCALE of what was not dropped, which sums of them are given at their
    end; so `level` is without it, too.
    """
    d_shares = tl.dot(g, tl.trans(v))
    kept_shares = shares
    if NUM_DROPPED > 0:
        is_kept = find_kept_pairs(
            own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
        )
        kept_shares = tl.where(is_kept, shares, 0.0)
    d_scores = kept_shares * d_shares - shares * level
    return kept_shares.to(g.dtype), d_scores.to(g.dtype)


@triton.jit
def store_keys(
    d_base,
    q,
    g,
    shares,
    d_scores,
    first_key,
    local_keys,
    num_keys,
    scale,
    WIDTH: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The gradients of a block of keys and of their values."""
    keys = (first_key + local_keys)[:, None]
    rows = d_base + keys * (3 * WIDTH)
    d_v = tl.dot(tl.trans(shares), g) * SCALE
    tl.store(rows + 2 * WIDTH, d_v.to(d_base.dtype.element_ty), mask=keys < num_keys)
    d_k = tl.dot(tl.trans(d_scores), q) * (scale * LN_2 * SCALE)
    tl.store(rows + WIDTH, d_k.to(d_base.dtype.element_ty), mask=keys < num_keys)


@triton.jit
def walk_back_short(
    gradient,
    out,
    sums,
    base,
    d_base,
    own_seed,
    length,
    queries,
    local_keys,
    scale,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    IS_LEFT: tl.constexpr,
    HAS_TWO: tl.constexpr,
):
    """Of a sequence of one block of keys, or of two.

    Everything is loaded at first, so that no load waits for another: a loop would ask for keys when
    the queries are there, and for the second block when the first one is done.
    """
    is_query, is_key = queries < length, local_keys[:, None] < length
    rows = base + local_keys[:, None] * (3 * WIDTH)
    q = tl.load(base + queries * (3 * WIDTH), mask=is_query, other=0.0)
    k = tl.load(rows + WIDTH, mask=is_key, other=0.0)
    v = tl.load(rows + 2 * WIDTH, mask=is_key, other=0.0)
    g = tl.load(gradient, mask=is_query, other=0.0)
    o = tl.load(out, mask=is_query, other=0.0)
    if HAS_TWO:
        is_other = KEYS + local_keys[:, None] < length
        other_rows = rows + KEYS * (3 * WIDTH)
        other_k = tl.load(other_rows + WIDTH, mask=is_other, other=0.0)
        other_v = tl.load(other_rows + 2 * WIDTH, mask=is_other, other=0.0)
    level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True) / SCALE  # (QUERIES, 1)
    log_sum = tl.load(sums, mask=is_query, other=float("inf"))
    # No share is above one, so this is for keys behind the end alone.
    shares = find_shares(q, k, log_sum, 0, queries, 0, local_keys, scale, IS_LEFT)
    shares, d_scores = find_slopes(
        tl.minimum(shares, 1.0), g, v, level, own_seed, 0, queries, 0, local_keys, NUM_DROPPED
    )
    # Before anything is stored, or ptxas waits for each product by itself (its message C7515).
    d_q = tl.dot(d_scores, k)
    store_keys(d_base, q, g, shares, d_scores, 0, local_keys, length, scale, WIDTH, SCALE)
    if HAS_TWO:
        shares = find_shares(q, other_k, log_sum, 0, queries, KEYS, local_keys, scale, IS_LEFT)
        shares, d_scores = find_slopes(
            tl.minimum(shares, 1.0), g, other_v, level, own_seed, 0, queries, KEYS, local_keys,
            NUM_DROPPED,
        )  # fmt: skip
        d_q = tl.dot(d_scores, other_k, d_q)
        store_keys(d_base, q, g, shares, d_scores, KEYS, local_keys, length, scale, WIDTH, SCALE)
    d_q *= scale * LN_2 * SCALE
    tl.store(d_base + queries * (3 * WIDTH), d_q.to(d_base.dtype.element_ty), mask=is_query)


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
    IS_LEFT: tl.constexpr,
):
    """Of sequences of at most QUERIES tokens, which are KEYS or twice as many."""
    start, length, head = find_sequence(bounds, HEADS)
    WIDTH: tl.constexpr = HEADS * SIZE
    own_seed = find_seed(seed)
    parts = tl.arange(0, SIZE)[None, :]
    queries = tl.arange(0, QUERIES)[:, None]
    local_keys = tl.arange(0, KEYS)
    first_place = start * (3 * WIDTH) + head * SIZE
    base, d_base = qkv + first_place + parts, d_qkv + first_place + parts
    places = start * WIDTH + head * SIZE + queries * WIDTH + parts
    sums = log_sums + head.to(tl.int64) * num_tokens + start + queries
    if KEYS < QUERIES and length > KEYS:
        walk_back_short(
            gradient + places, out + places, sums, base, d_base, own_seed, length, queries,
            local_keys, scale, WIDTH, KEYS, NUM_DROPPED, SCALE, IS_LEFT, True,
        )  # fmt: skip
    else:
        walk_back_short(
            gradient + places, out + places, sums, base, d_base, own_seed, length, queries,
            local_keys, scale, WIDTH, KEYS, NUM_DROPPED, SCALE, IS_LEFT, False,
        )  # fmt: skip


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
    IS_LEFT: tl.constexpr,
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
    level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True) / SCALE
    own = head.to(tl.int64) * num_rows + q_start + queries
    tl.store(levels + own, level, mask=is_query)
    log_sum = tl.load(log_sums + own, mask=is_query, other=float("inf"))
    slope = tl.zeros((QUERIES, SIZE), tl.float32)
    for first_key in range(0, find_end(first_query, length, QUERIES, IS_LEFT), KEYS):
        keys = (first_key + local_keys)[:, None]
        rows = base + keys * KV_ROW
        k = tl.load(rows, mask=keys < length, other=0.0)
        v = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
        shares = find_shares(
            asked, k, log_sum, first_query, local_queries, first_key, local_keys, scale, IS_LEFT
        )
        if first_key + KEYS > length:
            shares = tl.where(first_key + local_keys[None, :] < length, shares, 0.0)
        _shares, d_scores = find_slopes(
            shares, g, v, level, own_seed, first_query, local_queries, first_key, local_keys,
            NUM_DROPPED,
        )  # fmt: skip
        slope = tl.dot(d_scores, k, slope)
    slope *= scale * LN_2 * SCALE
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
    IS_LEFT: tl.constexpr,
):
    """Of longer sequences, or queries that lie apart; and `levels` (H, R) for the other kernel."""
    _, num_queries, _ = find_sequence(asking, HEADS)
    if IS_APART:
        for first_query in range(0, num_queries, QUERIES):
            walk_back_block(
                first_query, gradient, q, kv, asking, bounds, seed, out, log_sums, levels, d_q,
                num_rows, scale, Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE,
                IS_APART, IS_LEFT,
            )  # fmt: skip
    else:
        first_query = tl.program_id(1) * QUERIES
        if first_query < num_queries:
            walk_back_block(
                first_query, gradient, q, kv, asking, bounds, seed, out, log_sums, levels, d_q,
                num_rows, scale, Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE,
                IS_APART, IS_LEFT,
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
    IS_LEFT: tl.constexpr,
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
        first_asking = first_key - first_key % QUERIES if IS_LEFT else 0
        for first_query in range(first_asking, num_queries, QUERIES):
            queries = first_query + local_queries
            is_query = queries < num_queries
            asked = tl.load(q_base + queries * Q_ROW, mask=is_query, other=0.0)
            g = tl.load(g_base + queries * WIDTH, mask=is_query, other=0.0)
            level = tl.load(levels + own + queries, mask=is_query, other=0.0)
            log_sum = tl.load(log_sums + own + queries, mask=is_query, other=float("inf"))
            shares = find_shares(
                asked, k, log_sum, first_query, local_queries, first_key, local_keys, scale, IS_LEFT
            )
            shares, d_scores = find_slopes(
                shares, g, v, level, own_seed, first_query, local_queries, first_key, local_keys,
                NUM_DROPPED,
            )  # fmt: skip
            d_v = tl.dot(tl.trans(shares), g, d_v)
            d_k = tl.dot(tl.trans(d_scores), asked, d_k)
        d_k *= scale * LN_2 * SCALE
        d_v *= SCALE
        d_rows = d_kv + first_place + keys * KV_ROW + parts
        tl.store(d_rows, d_k.to(d_kv.dtype.element_ty), mask=keys < length)
        tl.store(d_rows + WIDTH, d_v.to(d_kv.dtype.element_ty), mask=keys < length)
