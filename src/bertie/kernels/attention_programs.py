"""Attention's programs: what runs on a GPU, for a head of a sequence and a block of its tokens.

Where IS_LEFT, a query sees its own key and those before it; then its number is that of its token,
and queries do not lie apart. Which programs are launched, and over what: bertie.kernels.attention.
"""

# QUERIES, KEYS of a block   SIZE of a head (K)   WIDTH of a row (D = H * K)

import triton
import triton.language as tl

from bertie.kernels.chance import find_kept_pairs, mix

LN_2 = tl.constexpr(0.6931471805599453)


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
def find_end(first_query, length, QUERIES: tl.constexpr, IS_LEFT: tl.constexpr):
    """Behind the last key that a block of queries may see."""
    end = length
    if IS_LEFT:
        end = tl.minimum(length, first_query + QUERIES)
    return end


@triton.jit
def find_whole(first_query, length, KEYS: tl.constexpr, IS_LEFT: tl.constexpr):
    """Behind the last block of keys that all queries of a block see whole."""
    end = length
    if IS_LEFT:
        end = tl.minimum(length, first_query + 1)
    return end // KEYS * KEYS


@triton.jit
def find_seed(seed):
    """Of a program's own sequence and head."""
    return mix(tl.load(seed).to(tl.uint32) + mix(tl.program_id(0).to(tl.uint32)))


@triton.jit
def add_keys(
    mixed,
    total,
    highest,
    asked,
    base,
    queries,
    length,
    own_seed,
    first_query,
    local_queries,
    first_key,
    local_keys,
    scale,
    KV_ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    NUM_DROPPED: tl.constexpr,
    IS_LEFT: tl.constexpr,
    IS_PART: tl.constexpr,
):
    """What a block of keys adds; IS_PART: some queries do not see some of them."""
    keys = (first_key + local_keys)[:, None]
    rows = base + keys * KV_ROW
    if IS_PART:
        k = tl.load(rows, mask=keys < length, other=0.0)
        v = tl.load(rows + WIDTH, mask=keys < length, other=0.0)
    else:
        k, v = tl.load(rows), tl.load(rows + WIDTH)
    scores = tl.dot(asked, tl.trans(k))  # (QUERIES, KEYS)
    if IS_PART:
        is_seen = (first_key + local_keys)[None, :] < length
        if IS_LEFT:  # the first block has a key for every query: no maximum is that of nothing
            is_seen &= (first_key + local_keys)[None, :] <= queries
        scores = tl.where(is_seen, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1, keep_dims=True) * scale)
    shares = tl.exp2(scores * scale - new_highest)
    fading = tl.exp2(highest - new_highest)
    total = total * fading + tl.sum(shares, 1, keep_dims=True)
    if NUM_DROPPED > 0:
        is_kept = find_kept_pairs(
            own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
        )
        shares = tl.where(is_kept, shares, 0.0)
    return tl.dot(shares.to(v.dtype), v, mixed * fading), total, new_highest


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
    IS_LEFT: tl.constexpr,
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
    # Most blocks are seen whole: of these, nothing is asked of each number.
    whole = find_whole(first_query, length, KEYS, IS_LEFT)
    for first_key in range(0, whole, KEYS):
        mixed, total, highest = add_keys(
            mixed, total, highest, asked, base, queries, length, own_seed, first_query,
            local_queries, first_key, local_keys, scale,
            KV_ROW, WIDTH, NUM_DROPPED, IS_LEFT, False,
        )  # fmt: skip
    for first_key in range(whole, find_end(first_query, length, QUERIES, IS_LEFT), KEYS):
        mixed, total, highest = add_keys(
            mixed, total, highest, asked, base, queries, length, own_seed, first_query,
            local_queries, first_key, local_keys, scale,
            KV_ROW, WIDTH, NUM_DROPPED, IS_LEFT, True,
        )  # fmt: skip
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
    IS_LEFT: tl.constexpr,
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
                IS_LEFT,
            )  # fmt: skip
    else:
        first_query = tl.program_id(1) * QUERIES
        if first_query < num_queries:
            attend_block(
                first_query, q, kv, asking, bounds, seed, out, log_sums, num_rows, scale,
                Q_ROW, KV_ROW, HEADS, SIZE, QUERIES, KEYS, NUM_DROPPED, SCALE, IS_APART,
                IS_LEFT,
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
    IS_LEFT: tl.constexpr,
):
    """The shares again, with what dropout left of them, and the gradient of the scores.

    Both without the factor SCALE of what was not dropped, which sums of them are given at their
    end; so `level` is without it, too. Rows behind the end of a sequence are zeros: what is made of
    them is never stored.
    """
    shares = tl.exp2(tl.dot(q, tl.trans(k)) * scale - log_sum)  # (QUERIES, KEYS)
    if IS_LEFT:
        is_seen = first_key + local_keys[None, :] <= first_query + local_queries
        shares = tl.where(is_seen, shares, 0.0)
    d_shares = tl.dot(g, tl.trans(v))
    kept_shares = shares
    if NUM_DROPPED > 0:
        is_kept = find_kept_pairs(
            own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
        )
        kept_shares = tl.where(is_kept, shares, 0.0)
    d_scores = kept_shares * d_shares - shares * level
    return kept_shares.to(g.dtype), d_scores.to(q.dtype)


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
    level = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1, keep_dims=True) / SCALE  # (QUERIES, 1)
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
            NUM_DROPPED, IS_LEFT,
        )  # fmt: skip
        d_rows = d_base + keys * (3 * WIDTH)
        d_v = tl.dot(tl.trans(shares), g) * SCALE
        tl.store(d_rows + 2 * WIDTH, d_v.to(d_qkv.dtype.element_ty), mask=keys < length)
        d_k = tl.dot(tl.trans(d_scores), q) * (scale * LN_2 * SCALE)
        tl.store(d_rows + WIDTH, d_k.to(d_qkv.dtype.element_ty), mask=keys < length)
        d_q = tl.dot(d_scores, k, d_q)
    d_q *= scale * LN_2 * SCALE
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
        _shares, d_scores = make_shares(
            asked, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
            local_keys, scale, NUM_DROPPED, IS_LEFT,
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
            shares, d_scores = make_shares(
                asked, k, v, g, log_sum, level, own_seed, first_query, local_queries, first_key,
                local_keys, scale, NUM_DROPPED, IS_LEFT,
            )  # fmt: skip
            d_v = tl.dot(tl.trans(shares), g, d_v)
            d_k = tl.dot(tl.trans(d_scores), asked, d_k)
        d_k *= scale * LN_2 * SCALE
        d_v *= SCALE
        d_rows = d_kv + first_place + keys * KV_ROW + parts
        tl.store(d_rows, d_k.to(d_kv.dtype.element_ty), mask=keys < length)
        tl.store(d_rows + WIDTH, d_v.to(d_kv.dtype.element_ty), mask=keys < length)
