"""Attention's programs: what runs on a GPU, for a head of a sequence and a block of its tokens.

Those of the gradients: bertie.kernels.attention_gradients.

Where IS_LEFT, a query sees its own key and those before it; then its number is that of its token,
and queries do not lie apart. Which programs are launched, and over what: bertie.kernels.attention.
"""

# QUERIES, KEYS of a block   SIZE of a head (K)   WIDTH of a row (D = H * K)

import triton
import triton.language as tl

from bertie.kernels.chance import find_kept_pairs, mix


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
    IS_FOLLOWED: tl.constexpr,
):
    """What a block of keys adds; IS_PART: some queries do not see some of them.

    `highest` is what scores are compared with: the first block's maximum or, if IS_FOLLOWED, that
    of all blocks so far.
    """
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
    if IS_FOLLOWED:
        new_highest = tl.maximum(highest, tl.max(scores, 1, keep_dims=True) * scale)
        fading = tl.exp2(highest - new_highest)
        total, mixed, highest = total * fading, mixed * fading, new_highest
    elif first_key == 0:
        highest = tl.max(scores, 1, keep_dims=True) * scale
    shares = tl.exp2(scores * scale - highest)
    total += tl.sum(shares, 1, keep_dims=True)
    if NUM_DROPPED > 0:
        is_kept = find_kept_pairs(
            own_seed, first_query, local_queries, first_key, local_keys[None, :], NUM_DROPPED
        )
        # A zero that the compiler does not know: it would select behind the rounding, at twice the
        # instructions.
        shares = tl.where(is_kept, shares, scale - scale)
    return tl.dot(shares.to(v.dtype), v, mixed), total, highest


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
    end = find_end(first_query, length, QUERIES, IS_LEFT)
    for first_key in range(0, whole, KEYS):
        mixed, total, highest = add_keys(
            mixed, total, highest, asked, base, queries, length, own_seed, first_query,
            local_queries, first_key, local_keys, scale,
            KV_ROW, WIDTH, NUM_DROPPED, IS_LEFT, False, False,
        )  # fmt: skip
    for first_key in range(whole, end, KEYS):
        mixed, total, highest = add_keys(
            mixed, total, highest, asked, base, queries, length, own_seed, first_query,
            local_queries, first_key, local_keys, scale,
            KV_ROW, WIDTH, NUM_DROPPED, IS_LEFT, True, False,
        )  # fmt: skip
    # Scores so far above those of the first block that no sum holds them are rare: then once more.
    MOST: tl.constexpr = 2.0**15 if out.dtype.element_ty == tl.float16 else 2.0**100
    if tl.max(tl.max(total, 1), 0) > MOST:
        highest = tl.full((QUERIES, 1), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES, 1), tl.float32)
        mixed = tl.zeros((QUERIES, SIZE), tl.float32)
        for first_key in range(0, end, KEYS):
            mixed, total, highest = add_keys(
                mixed, total, highest, asked, base, queries, length, own_seed, first_query,
                local_queries, first_key, local_keys, scale,
                KV_ROW, WIDTH, NUM_DROPPED, IS_LEFT, True, True,
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
