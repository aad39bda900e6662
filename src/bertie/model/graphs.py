"""The encoder recorded once for each shape and played again: no Python between its kernels.

A step of a few hundred tokens takes a GPU a few milliseconds, and Python twenty to ask for it:
fine-tuning waits for Python. CUDA graphs ask once. A graph has a fixed shape, so sequences in a row
are filled up to one of a few shapes by others of [PAD], which no head reads and no loss counts.
"""

# T tokens of all sequences in a row   N sequences   D hidden size
# R rows that are read: all T, or those that are kept

from collections import Counter
from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

MOST_TOKENS = 16_384  # if nothing else is asked for: beyond, a GPU has enough to do
MOST_GRAPHS = 32
TIMES_SEEN = 2  # before a shape is recorded


class Shape(NamedTuple):
    """What a graph is recorded for."""

    num_tokens: int
    num_sequences: int
    longest: int
    num_kept: int  # rows of the last layer; 0: all


class Flat(NamedTuple):
    """Sequences in a row, as bertie.model.bert.Packed has them."""

    ids: Tensor  # (T,)
    segments: Tensor  # (T,)
    positions: Tensor  # (T,)
    bounds: Tensor  # (N + 1,)


def choose_shape(
    num_tokens: int, num_sequences: int, longest: int, most: int, num_kept: int = 0
) -> Shape:
    """The next larger of a few shapes: at most an eighth more tokens, and 64.

    Of rows that are kept, which only the last layer has, a quarter: else there would be too many.
    `most` is how long a sequence can be at all.
    """
    rounded = min(most, 1 << max(4, (longest - 1).bit_length()))
    step = max(64, 1 << max(0, num_tokens.bit_length() - 4))
    tokens = -(-num_tokens // step) * step
    kept_step = max(64, 1 << max(0, num_kept.bit_length() - 3))
    kept = -(-num_kept // kept_step) * kept_step
    return Shape(tokens, num_sequences + -(-step // rounded), rounded, kept)


def fill(flat: Flat, shape: Shape) -> Flat:
    """The same in this shape: behind the last sequence come others of id 0, then empty ones."""
    num_tokens, num_sequences = len(flat.ids), len(flat.bounds) - 1
    num_more, device = shape.num_tokens - num_tokens, flat.ids.device
    more = torch.arange(num_more, device=device)
    ends = torch.arange(1, shape.num_sequences - num_sequences + 1, device=device) * shape.longest
    zeros = torch.zeros_like(more)
    return Flat(
        ids=torch.cat([flat.ids, zeros]),
        segments=torch.cat([flat.segments, zeros]),
        positions=torch.cat([flat.positions, more % shape.longest]),
        bounds=torch.cat([flat.bounds, (num_tokens + ends).clamp(max=shape.num_tokens)]),
    )


def fill_kept(kept: Tensor, shape: Shape) -> Tensor:  # (R,) -> (num_kept,)
    """With other rows behind, whose gradients will be zeros; not one row again and again, whose
    gradient they would all wait for."""
    more = torch.arange(shape.num_kept - len(kept), device=kept.device)
    return torch.cat([kept, more % shape.num_tokens])


class Encode(Protocol):
    """Embeddings and layers, in one call: rows (R, D)."""

    def __call__(
        self,
        ids: Tensor,
        segments: Tensor,
        positions: Tensor,
        bounds: Tensor,
        longest: int,
        *,
        kept: Tensor | None = None,
    ) -> Tensor: ...


class Given(NamedTuple):
    """What a graph reads, filled up to its shape."""

    flat: Flat
    kept: Tensor | None  # (R,)

    def parts(self) -> list[Tensor]:
        return [*self.flat] if self.kept is None else [*self.flat, self.kept]

    def clone(self) -> "Given":
        kept = None if self.kept is None else self.kept.clone()
        return Given(Flat(*(part.clone() for part in self.flat)), kept)


class Shared(NamedTuple):
    """What all graphs of an encoder have in common: they are played one after the other."""

    pool: Any  # of memory for what is made on the way
    parameters: tuple[nn.Parameter, ...]
    found: tuple[Tensor, ...]  # gradients, as the parameters are


class Recorded:
    """Forward and backward pass of one shape, as graphs with fixed places for what goes in."""

    def __init__(self, encode: Encode, shared: Shared, given: Given, longest: int) -> None:
        self.given = given.clone()
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()

        def run() -> Tensor:
            # A weight's cast that autocast has cached would be played, and not made, again.
            is_on, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            with torch.autocast("cuda", dtype, enabled=is_on, cache_enabled=False):
                return encode(*self.given.flat, longest=longest, kept=self.given.kept)

        def walk_back(rows: Tensor, gradient: Tensor) -> None:
            with torch.autocast("cuda", enabled=False):  # which would round the sums of biases
                found = torch.autograd.grad(
                    rows, shared.parameters, gradient, materialize_grads=True
                )
            torch._foreach_copy_(list(shared.found), list(found))

        chance = torch.cuda.get_rng_state()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # kernels are compiled, workspaces made
            for _ in range(2):
                rows = run()
                self.gradient = torch.randn_like(rows)  # zeros would tell nothing of products
                walk_back(rows, self.gradient)
                del rows  # or what is recorded would wait for this stream
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.set_rng_state(chance)  # a step drops the same whether it records or not
        # Other threads may use the GPU meanwhile: one of the loader's gets memory that is pinned.
        recording = partial(torch.cuda.graph, pool=shared.pool, capture_error_mode="thread_local")
        with recording(self.forward):
            rows = run()
        with recording(self.backward):
            walk_back(rows, self.gradient)
        self.rows = rows.detach()


class Turn:
    """Of a pass that was played; it lives as long as autograd can walk that pass back."""

    is_over = False


class Play(torch.autograd.Function):
    """A recorded encoder, as autograd sees it: rows of the flat sequences, gradients of weights."""

    @staticmethod
    def forward(
        ctx: Any,
        graphs: "Graphs",
        recorded: Recorded,
        given: Given,
        num_rows: int,
        *parameters: Tensor,
    ) -> Tensor:
        torch._foreach_copy_(recorded.given.parts(), given.parts())
        recorded.forward.replay()
        ctx.turn = Turn()
        graphs.turn = ref(ctx.turn)
        ctx.graphs, ctx.recorded, ctx.num_rows = graphs, recorded, num_rows
        return recorded.rows[:num_rows].clone()  # the next replay writes to the same place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        recorded, num_rows = ctx.recorded, ctx.num_rows
        assert not ctx.turn.is_over, "played once: what the pass has kept is used up"
        recorded.gradient[:num_rows] = gradient
        recorded.gradient[num_rows:] = 0
        recorded.backward.replay()
        ctx.turn.is_over = True
        return None, None, None, None, *torch._foreach_mul(list(ctx.graphs.shared.found), 1.0)


class Graphs:
    """The recorded shapes of one encoder in training, on one GPU."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        max_positions: int,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self.max_positions, self.most_tokens = max_positions, most_tokens
        self.parameters = tuple(p for p in parameters if p.requires_grad)
        self.recorded: dict[Shape, Recorded] = {}
        self.times_seen: Counter[Shape] = Counter()
        self.turn: ReferenceType[Turn] | None = None  # of what was played last

    @cached_property
    def shared(self) -> Shared:
        """Made when the first shape is recorded: most runs have none that is small enough."""
        found = tuple(torch.empty_like(p) for p in self.parameters)
        return Shared(torch.cuda.graph_pool_handle(), self.parameters, found)

    @property
    def is_waiting(self) -> bool:
        """Whether what was played last may still be walked back: until then its memory is taken."""
        turn = None if self.turn is None else self.turn()
        return turn is not None and not turn.is_over

    def play(
        self, encode: Encode, flat: Flat, longest: int, kept: Tensor | None
    ) -> Tensor | None:  # (R, D)
        """All rows or the `kept` ones; none where this shape is not recorded, and not to be."""
        num_tokens, num_kept = len(flat.ids), 0 if kept is None else len(kept)
        is_nothing = kept is not None and num_kept == 0
        if num_tokens > self.most_tokens or self.is_waiting or is_nothing:
            return None
        num_sequences = len(flat.bounds) - 1
        shape = choose_shape(num_tokens, num_sequences, longest, self.max_positions, num_kept)
        self.times_seen[shape] += 1
        if self.times_seen[shape] < TIMES_SEEN:
            return None
        if shape not in self.recorded and len(self.recorded) == MOST_GRAPHS:
            return None
        filled = Given(fill(flat, shape), None if kept is None else fill_kept(kept, shape))
        if shape not in self.recorded:
            self.recorded[shape] = Recorded(encode, self.shared, filled, shape.longest)
        rows: Tensor = Play.apply(  # type: ignore[no-untyped-call]
            self, self.recorded[shape], filled, num_kept or num_tokens, *self.parameters
        )
        return rows
