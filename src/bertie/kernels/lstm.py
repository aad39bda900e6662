"""An LSTM over sequences in a row, one layer in one direction, without padding.

A program takes some sequences and reads them position by position: what it remembers stays in
registers, its weights in shared memory if there is room, and no kernel is launched for a position.
Torch's LSTM launches several: where other work waits for the same GPU, one step of a model took a
second (docs/log.md). What enters the gates is one product over all rows, made before; so are the
gradients of the weights, made afterwards.
"""

# T rows of all sequences   N sequences   H hidden size

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.kernels.launch import find_room
from bertie.kernels.products import matrix_gradient


class LstmLaunch(NamedTuple):
    """How the kernels lie over their work."""

    sequences: int  # of a program; at least 16, as products are
    num_warps: int
    num_stages: int  # 1: nothing is read ahead, which shared memory would have to hold


LAUNCH = LstmLaunch(sequences=16, num_warps=8, num_stages=1)
SPARE_BYTES = 24 * 1024  # of shared memory, for all but the weights


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def tanh(x):
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def find_sequences(bounds, num_sequences, SEQUENCES: tl.constexpr):
    """Where the sequences of a program begin and end, and how long they are."""
    numbers = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    start = tl.load(bounds + numbers, mask=numbers < num_sequences, other=0).to(tl.int64)
    end = tl.load(bounds + numbers + 1, mask=numbers < num_sequences, other=0).to(tl.int64)
    return start, end, (end - start).to(tl.int32)


@triton.jit
def find_rows(start, end, step, IS_BACK: tl.constexpr):
    """Of the sequences' step-th positions, from the front or from behind."""
    row = start + step
    if IS_BACK:
        row = end - 1 - step
    return row[:, None]


@triton.jit
def hold(matrix, IS_HELD: tl.constexpr):
    """What is at an address, or the address."""
    held = matrix
    if IS_HELD:
        held = tl.load(matrix)
    return held


@triton.jit
def hold_all(matrix, SIZE: tl.constexpr, IS_HELD: tl.constexpr):
    """Those of the four gates."""
    enters, forgets = hold(matrix, IS_HELD), hold(matrix + SIZE * SIZE, IS_HELD)
    new = hold(matrix + 2 * SIZE * SIZE, IS_HELD)
    shows = hold(matrix + 3 * SIZE * SIZE, IS_HELD)
    return enters, forgets, new, shows


@triton.jit
def fetch(held, IS_HELD: tl.constexpr):
    """What is at the address that was not held."""
    matrix = held
    if not IS_HELD:
        matrix = tl.load(held)
    return matrix


@triton.jit
def open_gate(before, held, entering, is_row, IS_HELD: tl.constexpr):
    """What enters a gate: of what is remembered, and of the row that is read."""
    entered = tl.dot(before, fetch(held, IS_HELD))
    return entered + tl.load(entering, mask=is_row, other=0.0)


@triton.jit(do_not_specialize=["num_sequences"])
def recur_forward(
    projected,
    weight,
    bounds,
    hidden,
    gates,
    cells,
    num_sequences,
    SIZE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    IS_BACK: tl.constexpr,
    IS_HELD: tl.constexpr,
):
    """Gates are torch's: input, forget, cell, output; what they became is kept in `gates`."""
    start, end, length = find_sequences(bounds, num_sequences, SEQUENCES)
    columns = tl.arange(0, SIZE)[None, :]
    matrix = weight + columns * SIZE + tl.arange(0, SIZE)[:, None]  # a gate's, transposed
    cell = tl.zeros((SEQUENCES, SIZE), tl.float32)
    of_enters, of_forgets, of_new, of_shows = hold_all(matrix, SIZE, IS_HELD)
    before = tl.zeros((SEQUENCES, SIZE), weight.dtype.element_ty)
    for step in range(tl.max(length, 0)):
        is_row = step < length[:, None]
        row = find_rows(start, end, step, IS_BACK)
        entering, kept = projected + row * (4 * SIZE) + columns, gates + row * (4 * SIZE) + columns
        enters = sigmoid(open_gate(before, of_enters, entering, is_row, IS_HELD))
        forgets = sigmoid(open_gate(before, of_forgets, entering + SIZE, is_row, IS_HELD))
        new = tanh(open_gate(before, of_new, entering + 2 * SIZE, is_row, IS_HELD))
        shows = sigmoid(open_gate(before, of_shows, entering + 3 * SIZE, is_row, IS_HELD))
        tl.store(kept, enters.to(gates.dtype.element_ty), mask=is_row)
        tl.store(kept + SIZE, forgets.to(gates.dtype.element_ty), mask=is_row)
        tl.store(kept + 2 * SIZE, new.to(gates.dtype.element_ty), mask=is_row)
        tl.store(kept + 3 * SIZE, shows.to(gates.dtype.element_ty), mask=is_row)
        cell = forgets * cell + enters * new
        tl.store(cells + row * SIZE + columns, cell, mask=is_row)
        before = (shows * tanh(cell)).to(weight.dtype.element_ty)
        tl.store(hidden + row * SIZE + columns, before, mask=is_row)


@triton.jit(do_not_specialize=["num_sequences"])
def recur_backward(
    gradient,
    weight,
    bounds,
    gates,
    cells,
    d_gates,
    num_sequences,
    SIZE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    IS_BACK: tl.constexpr,
    IS_HELD: tl.constexpr,
):
    """The gradients of what entered the gates. Behind its end, those of a sequence are zeros."""
    start, end, length = find_sequences(bounds, num_sequences, SEQUENCES)
    columns = tl.arange(0, SIZE)[None, :]
    matrix = weight + tl.arange(0, SIZE)[:, None] * SIZE + columns
    DTYPE: tl.constexpr = weight.dtype.element_ty
    d_hidden = tl.zeros((SEQUENCES, SIZE), tl.float32)
    d_cell = tl.zeros((SEQUENCES, SIZE), tl.float32)
    of_enters, of_forgets, of_new, of_shows = hold_all(matrix, SIZE, IS_HELD)
    longest = tl.max(length, 0)
    for number in range(longest):
        step = longest - 1 - number
        is_row = step < length[:, None]
        row = find_rows(start, end, step, IS_BACK)
        row_before = find_rows(start, end, step - 1, IS_BACK)
        kept, found = gates + row * (4 * SIZE) + columns, d_gates + row * (4 * SIZE) + columns
        enters = tl.load(kept, mask=is_row, other=0.0).to(tl.float32)
        forgets = tl.load(kept + SIZE, mask=is_row, other=0.0).to(tl.float32)
        new = tl.load(kept + 2 * SIZE, mask=is_row, other=0.0).to(tl.float32)
        shows = tl.load(kept + 3 * SIZE, mask=is_row, other=0.0).to(tl.float32)
        cell = tl.load(cells + row * SIZE + columns, mask=is_row, other=0.0)
        cell_before = tl.load(
            cells + row_before * SIZE + columns, mask=is_row & (step > 0), other=0.0
        )
        given = tl.load(gradient + row * SIZE + columns, mask=is_row, other=0.0).to(tl.float32)
        d_hidden += given
        bent = tanh(cell)
        d_cell += d_hidden * shows * (1 - bent * bent)
        d_enters = (d_cell * new * enters * (1 - enters)).to(DTYPE)
        d_forgets = (d_cell * cell_before * forgets * (1 - forgets)).to(DTYPE)
        d_new = (d_cell * enters * (1 - new * new)).to(DTYPE)
        d_shows = (d_hidden * bent * shows * (1 - shows)).to(DTYPE)
        tl.store(found, d_enters, mask=is_row)
        tl.store(found + SIZE, d_forgets, mask=is_row)
        tl.store(found + 2 * SIZE, d_new, mask=is_row)
        tl.store(found + 3 * SIZE, d_shows, mask=is_row)
        d_hidden = tl.dot(d_enters, fetch(of_enters, IS_HELD))
        d_hidden = tl.dot(d_forgets, fetch(of_forgets, IS_HELD), d_hidden)
        d_hidden = tl.dot(d_new, fetch(of_new, IS_HELD), d_hidden)
        d_hidden = tl.dot(d_shows, fetch(of_shows, IS_HELD), d_hidden)
        d_cell *= forgets


def recur(
    projected: Tensor, weight: Tensor, bounds: Tensor, *, is_back: bool
) -> Tensor:  # (T, 4H), (4H, H), (N + 1,) -> (T, H)
    """Hidden rows, of what enters the gates; from the end of each sequence if `is_back`."""
    hidden: Tensor = Recur.apply(projected, weight, bounds, is_back)
    return hidden


class Recur(torch.autograd.Function):
    """In the precision of what enters the gates; sums are float32, and so is weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, bounds: Tensor, is_back: bool
    ) -> Tensor:
        projected, inner = projected.contiguous(), weight.to(projected.dtype).contiguous()
        size = weight.shape[1]
        hidden = projected.new_empty(len(projected), size)
        gates, cells = torch.empty_like(projected), torch.empty_like(hidden, dtype=torch.float32)
        launch(recur_forward, projected, inner, bounds, hidden, gates, cells, is_back=is_back)
        ctx.save_for_backward(inner, bounds, hidden, gates, cells)
        ctx.is_back = is_back
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inner, bounds, hidden, gates, cells = ctx.saved_tensors
        gradient, d_gates = gradients[0].contiguous(), torch.empty_like(gates)
        launch(recur_backward, gradient, inner, bounds, gates, cells, d_gates, is_back=ctx.is_back)
        before = shift(hidden, bounds, is_back=ctx.is_back)
        return d_gates, matrix_gradient(d_gates, before), None, None


def launch(
    kernel: Any, first: Tensor, inner: Tensor, bounds: Tensor, *others: Any, is_back: bool
) -> None:
    num_sequences = len(bounds) - 1
    kernel[(triton.cdiv(num_sequences, LAUNCH.sequences),)](
        first,
        inner,
        bounds,
        *others,
        num_sequences,
        SIZE=inner.shape[1],
        SEQUENCES=LAUNCH.sequences,
        IS_BACK=is_back,
        IS_HELD=can_hold(inner),
        num_warps=LAUNCH.num_warps,
        num_stages=LAUNCH.num_stages,
    )


def can_hold(inner: Tensor) -> bool:  # (4H, H)
    """Whether a program's shared memory has room for the weights: 128 KiB of H = 128."""
    return inner.nbytes + SPARE_BYTES <= find_room(inner.device)


def shift(hidden: Tensor, bounds: Tensor, *, is_back: bool) -> Tensor:  # (T, H) -> (T, H)
    """What was remembered when a row was read; zeros where nothing had been read yet."""
    rows = hidden.new_zeros(len(hidden) + 1, hidden.shape[1])
    if is_back:
        rows[:-1] = hidden
        rows[bounds[1:]] = 0
        return rows[1:]
    rows[1:] = hidden
    rows[bounds[:-1]] = 0
    return rows[:-1]
