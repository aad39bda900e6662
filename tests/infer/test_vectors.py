"""Vectors come back from disk as they were."""

from pathlib import Path

import numpy as np
import pytest

from bertie.errors import UserError
from bertie.infer.vectors import ROWS, write_vectors

VECTORS = np.random.default_rng(0).normal(size=(ROWS + 5, 7)).astype(np.float32)


@pytest.mark.parametrize("num_rows", [0, 1, len(VECTORS)])
def test_npy_is_read_by_numpy(num_rows: int, tmp_path: Path) -> None:
    rows = (("", vector) for vector in VECTORS[:num_rows])
    assert len(list(write_vectors(rows, tmp_path / "a" / "v.npy", size=7))) == num_rows
    for mode in (None, "r"):
        found = np.load(tmp_path / "a" / "v.npy", mmap_mode=mode)
        if num_rows or mode is None:
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, VECTORS[:num_rows])
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["v.npy"]


def test_parquet_holds_texts_and_vectors(tmp_path: Path) -> None:
    from pyarrow import parquet

    rows = ((f"text {n}", vector) for n, vector in enumerate(VECTORS))
    assert list(write_vectors(rows, tmp_path / "v.parquet", size=7))[-1] == len(VECTORS)
    table = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["text"][3] == "text 3"
    np.testing.assert_array_equal(np.array(table["vector"], np.float32), VECTORS)


def test_an_unknown_kind_and_a_failure_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"an unknown kind; there are: \.npy, \.parquet"):
        list(write_vectors([], tmp_path / "v.csv", size=7))
    with pytest.raises(ZeroDivisionError):
        list(
            write_vectors((("", VECTORS[0] / (1 // n)) for n in (1, 0)), tmp_path / "v.npy", size=7)
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
def test_a_second_run_is_refused_and_harms_nothing(name: str, tmp_path: Path) -> None:
    rows = [("", vector) for vector in VECTORS]
    first, second = (write_vectors(rows, tmp_path / name, size=7) for _ in range(2))
    next(first)
    with pytest.raises(UserError, match=f"another run is writing .*{name}"):
        next(second)
    assert list(first)[-1] == len(VECTORS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    out.write_text("the input, it may be")
    with pytest.raises(UserError, match=r"v\.npy exists; remove it, or write to another file"):
        list(write_vectors([], out, size=7))
    assert out.read_text() == "the input, it may be"
