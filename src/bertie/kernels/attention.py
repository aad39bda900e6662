"""Attention over sequences in a row, without padding, with dropout.

Scores are never stored. The backward pass makes them again from the queries and keys, and the
dropout mask from its hash. Up to BLOCK tokens, one program does all of a head of a sequence; longer
ones go block by block, once for the queries and once for the keys and values. So do sequences of
which only some rows ask: their queries lie apart, in the order of the sequences.

Launches are measured for an H200, whose products read shared memory. Older and smaller GPUs have
less of it, and what a product reads lies in registers, which do not hold as much: there all blocks
are of half the size (`find_block`), chosen by what the compiler says alone.
"""

# T tokens of all sequences in a row   N sequences   H heads   K head size   R rows that ask

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from bertie.kernels.attention_gradients import (
    attend_backward,
    attend_backward_keys,
    attend_backward_queries,
)
from bertie.kernels.attention_programs import attend_forward
from bertie.kernels.chance import chance_of, find_kept_pairs_plain, mix_plain
from bertie.kernels.launch import LARGE_ROOM, TileLaunch, find_room
from bertie.kernels.sums import add_rows

BLOCK = 128
LOG2_E = 1.4426950408889634


def find_block(device: torch.device) -> int:
    """How many queries a program takes there, at most."""
    return BLOCK if find_room(device) >= LARGE_ROOM else BLOCK // 2


def block_of(longest: int, most: int = BLOCK) -> int:
    """How many queries a program takes."""
    return min(most, max(16, int(triton.next_power_of_2(longest))))


def most_registers(queries: int, size: int) -> int | None:
    """With 128, two programs of eight warps share a multiprocessor, or four of four."""
    return 128 if queries >= 64 and size == 64 else None


def forward_launch(longest: int, size: int, most: int = BLOCK) -> TileLaunch:
    queries = block_of(longest, most)
    if most < BLOCK:
        return TileLaunch(queries, keys=queries, num_warps=4, num_stages=2)
    return TileLaunch(
        queries,
        keys=min(64, queries),
        num_warps=4 if queries < BLOCK else 8,
        num_stages=3,
        max_registers=most_registers(queries, size),
    )


def backward_launch(longest: int, size: int, most: int = BLOCK) -> TileLaunch:
    """Of sequences of at most `most` tokens, whose queries one program takes."""
    return forward_launch(longest, size, most)._replace(num_stages=2)


def queries_launch(size: int, most: int = BLOCK) -> TileLaunch:
    if most < BLOCK:
        return TileLaunch(most, keys=most // 2, num_warps=4, num_stages=2)
    return forward_launch(BLOCK, size)


def keys_launch(size: int, dropout: float, most: int = BLOCK) -> TileLaunch:
    """With 168 registers three programs share a multiprocessor.

    Without dropout and with two stages, ptxas would wait for each product by itself (C7512).
    """
    if most < BLOCK:
        return TileLaunch(most, keys=most, num_warps=8, num_stages=2)
    max_registers = 168 if size == 64 else None
    num_stages = 2 if dropout else 3
    return TileLaunch(64, keys=64, num_warps=4, num_stages=num_stages, max_registers=max_registers)


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


class Inquiry(NamedTuple):
    """Who asks whom: queries, in the order of their sequences, and the sequences' own rows."""

    q: Tensor  # (R, H, K)
    kv: Tensor  # (T, 2, H, K)
    asking: Tensor  # (N + 1,) whose queries they are, as bounds say whose rows
    bounds: Tensor  # (N + 1,)
    longest: int
    is_apart: bool  # not every row asks
    is_left: bool = False  # a query sees its own key and those before it; then every row asks

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
        seen = {"IS_APART": self.is_apart, "IS_LEFT": self.is_left}
        return rows | {"HEADS": heads, "SIZE": size} | seen


def ask_all(
    qkv: Tensor, bounds: Tensor, longest: int, *, is_left: bool = False
) -> Inquiry:  # (T, 3, H, K), (N + 1,)
    return Inquiry(qkv[:, 0], qkv[:, 1:], bounds, bounds, longest, is_apart=False, is_left=is_left)


def attend_kernel_forward(
    asked: Inquiry,
    seed: Tensor,
    dropout: float,
    *,
    launch: TileLaunch | None = None,
) -> tuple[Tensor, Tensor]:  # -> (R, H, K), (H, R)
    """Each query's mix of the values of its own sequence; and the logarithms of its sums."""
    q = asked.q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log_sums = torch.empty(q.shape[1], len(q), dtype=torch.float32, device=q.device)
    most, own = find_block(q.device), asking_launch(asked.longest)
    launch = launch or (own if asked.is_apart else forward_launch(asked.longest, q.shape[-1], most))
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
    is_left: bool = False,
    launch: TileLaunch | None = None,
    key_launch: TileLaunch | None = None,
) -> Tensor:  # (T, H, K), (T, 3, H, K), ... -> (T, 3, H, K)
    """Gradients of the queries, keys and values.

    Sequences of more than a block need two kernels; the second has a launch of its own.
    """
    num_tokens, _, heads, size = qkv.shape
    d_qkv, most = torch.empty_like(qkv), find_block(qkv.device)
    if longest > most:
        walk_back_apart(
            gradient,
            ask_all(qkv, bounds, longest, is_left=is_left),
            seed,
            out,
            log_sums,
            dropout,
            slopes=(d_qkv[:, 0], d_qkv[:, 1:]),
            launch=launch or queries_launch(size, most),
            key_launch=key_launch or keys_launch(size, dropout, most),
        )
        return d_qkv
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
        IS_LEFT=is_left,
        **chance_of(dropout),
        **settings_of(launch or backward_launch(longest, size, most)),
    )
    return d_qkv


def attend_apart_backward(
    gradient: Tensor, asked: Inquiry, seed: Tensor, out: Tensor, log_sums: Tensor, dropout: float
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
    asked: Inquiry,
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
    settings = {**asked.shape(), **chance_of(dropout)}
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
    asked: Inquiry, seed: Tensor, dropout: float
) -> Tensor:  # (R, H, K), (T, 2, H, K) -> (R, H, K)
    """The twin: sequence by sequence, with torch's own operations and the same chance."""
    chance, heads, device = chance_of(dropout), asked.q.shape[1], asked.q.device
    mixed = []
    owners = zip(pairwise(asked.asking.tolist()), pairwise(asked.bounds.tolist()), strict=True)
    for number, ((first, last), (start, end)) in enumerate(owners):
        query = asked.q[first:last].transpose(0, 1)  # (H, queries, K)
        key, value = asked.kv[start:end].permute(1, 2, 0, 3)  # (H, W, K)
        scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
        if asked.is_left:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        shares = scores.softmax(-1)
        if chance["NUM_DROPPED"]:
            programs = torch.arange(number * heads, (number + 1) * heads, device=device)
            seeds = mix_plain((seed + mix_plain(programs)) & 0xFFFFFFFF)[:, None, None]
            is_kept = find_kept_pairs_plain(
                seeds,
                torch.arange(last - first, device=device)[:, None],
                torch.arange(end - start, device=device)[None, :],
                int(chance["NUM_DROPPED"]),
            )
            shares = torch.where(is_kept, shares * chance["SCALE"], 0.0)
        mixed.append((shares @ value).transpose(0, 1))
    return torch.cat(mixed)
