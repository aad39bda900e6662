"""Lengths in, lengths out: what fits, and where windows begin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.text.sequences import (
    Pieces,
    assemble,
    fit,
    most_central,
    window_places,
    window_starts,
)

lengths = st.integers(0, 40)


@given(lengths, lengths, st.integers(0, 60), st.sampled_from(["longest", "first", "second"]))
def test_what_fits_is_full_and_no_longer_than_it_was(
    first: int, second: int, room: int, truncate: str
) -> None:
    a, b = fit(first, second, room, truncate)
    assert 0 <= a <= first and 0 <= b <= second
    if first + second <= room:
        assert (a, b) == (first, second)
    elif truncate == "longest":
        assert a + b == room
        assert abs(a - b) <= 1 or min(a, b) == min(first, second)


@given(st.integers(0, 200), st.integers(1, 30), st.integers(1, 30))
def test_windows_cover_everything_and_only_the_last_reaches_the_end(
    num_pieces: int, size: int, stride: int
) -> None:
    if stride > size:
        with pytest.raises(UserError, match="stride"):
            window_starts(num_pieces, size, stride)
        return
    starts = window_starts(num_pieces, size, stride)
    covered = {place for start in starts for place in range(start, start + size)}
    assert set(range(num_pieces)) <= covered
    assert all(start + size < num_pieces for start in starts[:-1])


@given(st.integers(0, 150), st.integers(1, 30), st.none() | st.integers(1, 60))
def test_each_piece_belongs_to_the_window_in_which_it_is_most_central(
    num_pieces: int, size: int, stride: int | None
) -> None:
    places = window_places(num_pieces, size, stride)
    assert all(0 < high - low <= size for low, high in places) or num_pieces == 0
    pieces = np.arange(num_pieces)
    context = np.array([np.minimum(pieces - low, high - 1 - pieces) for low, high in places])
    decided = context.argmax(0)  # of equal ones the first
    for number, own in enumerate(most_central(pieces, places)):
        np.testing.assert_array_equal(own, np.flatnonzero(decided == number))


def test_a_pair_has_its_segments_and_sources() -> None:
    def pieces(*ids: int) -> Pieces:
        places = np.arange(len(ids), dtype=np.int32)
        return Pieces(np.array(ids, np.int32), places, places + 1)

    pair = assemble(pieces(7, 8), pieces(9), cls_id=2, sep_id=3, num_cut=0)
    assert pair.ids.tolist() == [2, 7, 8, 3, 9, 3]
    assert pair.segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert pair.sources.tolist() == [-1, 0, 0, -1, 1, -1]
    assert pair.ends.tolist() == [0, 1, 2, 0, 1, 0]
