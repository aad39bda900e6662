"""Vectors of texts on disk: `.npy`, or Parquet with the texts beside them; row by row."""

# D hidden size

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bertie.errors import UserError
from bertie.infer.draft import finish, locked

HEADER_BYTES = 128  # of .npy, wherever it ends; long enough for any number of rows
ROWS = 1024  # of a row group
Row = tuple[str, np.ndarray]  # a text and its vector (D,)


def write_vectors(rows: Iterable[Row], out: Path, *, size: int) -> Iterator[int]:
    """Writes vectors of `size` numbers to a new file; gives how many there are."""
    if out.suffix.lower() not in WRITERS:
        raise UserError(f"{out} is of an unknown kind; there are: {', '.join(WRITERS)}")
    draft = out.with_name(f".{out.name}.draft")
    with locked(draft, out) as file:
        try:
            file.truncate(0)
            yield from WRITERS[out.suffix.lower()](rows, file, size)
            finish(file, draft, out)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def write_npy(rows: Iterable[Row], file: BinaryIO, size: int) -> Iterator[int]:
    """float32, (N, D); N is filled in at the end."""
    num_rows = 0
    write_header(file, 0, size)
    for _, vector in rows:
        file.write(vector.astype("<f4").tobytes())
        num_rows += 1
        yield num_rows
    file.seek(0)
    write_header(file, num_rows, size)


def write_header(file: BinaryIO, num_rows: int, size: int) -> None:
    shape = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {size}), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    file.write(start + shape.encode().ljust(HEADER_BYTES - 11) + b"\n")


def write_parquet(rows: Iterable[Row], file: BinaryIO, size: int) -> Iterator[int]:
    """The columns text and vector."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet files need a package: pip install 'bertie[parquet]'") from None
    kind = pa.list_(pa.float32(), size)
    schema = pa.schema([("text", pa.string()), ("vector", kind)])
    num_rows = 0
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(left, ROWS)):
            texts, vectors = zip(*group, strict=True)
            flat = pa.array(np.concatenate(vectors), pa.float32())
            columns = [pa.array(texts), pa.FixedSizeListArray.from_arrays(flat, size)]
            writer.write_table(pa.table(columns, schema=schema))
            num_rows += len(group)
            yield num_rows


WRITERS = {".npy": write_npy, ".parquet": write_parquet}
