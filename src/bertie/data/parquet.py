"""A column of a Parquet file to documents; needs pyarrow (the extra `parquet`)."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bertie.data.blocks import Problems, decode
from bertie.data.formats import EMPTY, Wanted, find_field, missing_field
from bertie.errors import UserError

ROWS = 1024  # read at once


def open_parquet(path: Path, file: BinaryIO | None = None) -> Any:
    """The file, or what was unpacked from it, as a `pyarrow.parquet.ParquetFile`."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet files need a package: pip install 'bertie[parquet]'") from None
    try:
        return parquet.ParquetFile(file or path, buffer_size=1 << 20)  # streams within row groups
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; is it complete?") from None


def group_starts(file: Any) -> list[int]:
    """The first byte of each row group."""
    firsts = (file.metadata.row_group(n).column(0) for n in range(file.num_row_groups))
    return [min(c.dictionary_page_offset or c.data_page_offset, c.data_page_offset) for c in firsts]


def unpack_to_file(chunks: Iterable[bytes]) -> BinaryIO:
    """A temporary file: Parquet is read from its end."""
    file = tempfile.TemporaryFile()  # noqa: SIM115, the caller closes it
    for chunk in chunks:
        file.write(chunk)
    file.seek(0)
    return file


def read_parquet(
    file: Any, unit: tuple[Path, int, int], wanted: Wanted, problems: Problems
) -> Iterator[str]:
    """Texts of the row groups that begin in the unit: a path, from which byte on, up to which."""
    import pyarrow as pa

    path, start, end = unit

    def place(number: int) -> str:
        return f"{path}, row {number}"

    select = column_reader(file, wanted.field, path)
    for name in wanted.without:
        find_type(file, name, path, setting="corpus.without")
    outer = split_field(file, wanted.field)[0]
    others = list(dict.fromkeys(split_field(file, name)[0] for name in wanted.without))
    columns = list(dict.fromkeys([wanted.field, *wanted.without]))
    row = 1
    try:
        for group, first_byte in enumerate(group_starts(file)):
            if not start <= first_byte < end:
                row += file.metadata.row_group(group).num_rows
                continue
            for batch in file.iter_batches(ROWS, [group], columns, use_threads=False):
                reasons = find_reasons(batch, others, wanted, problems)
                texts = select(batch.column(outer))
                for number, (data, reason) in enumerate(zip(texts, reasons, strict=True), row):
                    text = decode(data or b"", problems, place, number)
                    if not text or text.isspace():
                        problems.add(EMPTY, place, number)
                    elif reason:
                        problems.add(reason, place, number)
                    else:
                        yield text
                row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; is it complete?") from None


def find_reasons(
    batch: Any, columns: list[str], wanted: Wanted, problems: Problems
) -> list[str | None]:
    """Of each row, why it is left out, or none."""
    if not columns:
        return [None] * int(batch.num_rows)
    rows = batch.select(columns).to_pylist()
    return [wanted.find_reason(partial(find_field, row), problems) for row in rows]


def split_field(file: Any, field: str) -> list[str]:
    """A column, and the fields inside it."""
    return [field] if field in file.schema_arrow.names else field.split(".")


def find_type(file: Any, field: str, path: Path, *, setting: str = "corpus.field") -> Any:
    """What the column `field` holds, or `a.b` inside `a`."""
    import pyarrow as pa

    names, schema = split_field(file, field), file.schema_arrow
    if names[0] not in schema.names:
        raise missing_field(path, field, schema.names, setting=setting)
    kind = schema.field(names[0]).type
    for name in names[1:]:
        inside = [part.name for part in kind] if pa.types.is_struct(kind) else []
        if name not in inside:
            raise missing_field(path, field, inside, setting=setting)
        kind = kind.field(name).type
    return kind


def column_reader(file: Any, field: str, path: Path) -> Callable[[Any], list[bytes | None]]:
    """Turns what is read of the column `field`, or of `a.b` inside `a`, into bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names, kind = split_field(file, field), find_type(file, field, path)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not any(str(kind).endswith(text) for text in ("string", "binary", "_view")):
        raise UserError(
            f"the column {field!r} of {path} holds {kind}, not text; there are: "
            f"{', '.join(file.schema_arrow.names)}. Name one: --set corpus.field=NAME"
        )

    def select(column: Any) -> list[bytes | None]:
        values = pc.struct_field(column, names[1:]) if names[1:] else column
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        found: list[bytes | None] = values.cast(pa.large_binary()).to_pylist()
        return found

    return select
