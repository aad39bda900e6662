"""Reads Google's original BERT checkpoints (TensorFlow 1, `bert_model.ckpt.*`) without TensorFlow.

A checkpoint is a table of names, `PREFIX.index`, and the bytes of all tensors one after the other
in `PREFIX.data-00000-of-00001` and its like. The values of the table are protobuf messages: under
the empty name a header (number of data files, byte order), under every other name the type, shape,
place and checksum of that variable.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.checkpoint.crc32c import crc32c
from bertie.checkpoint.table import DAMAGED, Refused, mask, parse_table, parse_varint
from bertie.errors import UserError

DTYPES = {  # TensorFlow's number of the type -> its name
    1: "float32",
    2: "float64",
    3: "int32",
    7: "string",
    9: "int64",
    14: "bfloat16",
    19: "float16",
}
STORED_AS = {  # what can be read, and how it lies in the data file
    "float32": "<f4",
    "float64": "<f8",
    "int32": "<i4",
    "int64": "<i8",
    "bfloat16": "<u2",  # the upper half of a float32; NumPy has no such type
    "float16": "<f2",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A tensor of a checkpoint: what it is and where its bytes lie."""

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int  # in bytes, from the start of the shard
    size: int  # in bytes
    crc: int  # masked CRC32C of the bytes


class Index(NamedTuple):
    variables: dict[str, Variable]
    num_shards: int


class Shard(NamedTuple):
    path: Path
    octets: np.ndarray  # (B,) uint8, the mapped file


def read_checkpoint(prefix: Path, *, verify: bool = True) -> dict[str, np.ndarray]:
    """All tensors by their TensorFlow names, checksums verified, as views of the mapped data files.

    `prefix` is the path without `.index`, the index file, or a directory with one checkpoint in
    it. The views may be written to; the files do not change.
    """
    path = _find_index(prefix)
    index = _read_index(path)
    shards = _map_shards(path, index)
    return {
        name: _read_tensor(name, variable, shards[variable.shard], verify=verify)
        for name, variable in index.variables.items()
    }


def list_variables(prefix: Path) -> dict[str, Variable]:
    """The variables of a checkpoint by name; the index file alone is enough."""
    return _read_index(_find_index(prefix)).variables


def _find_index(prefix: Path) -> Path:
    if prefix.is_dir():
        found = sorted(prefix.glob("*.index"))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found)
            raise UserError(f"{prefix} holds {len(found)} checkpoints, name one: {names}")
        raise UserError(f"no TensorFlow checkpoint in {prefix}: it holds no file *.index")
    path = prefix if prefix.suffix == ".index" else prefix.with_name(prefix.name + ".index")
    if not path.is_file():
        raise UserError(
            f"no file {path}; a TensorFlow checkpoint is PREFIX.index and PREFIX.data-*-of-*, "
            "and is opened by PREFIX or by its directory"
        )
    return path


def _read_index(path: Path) -> Index:
    try:
        entries = dict(parse_table(path.read_bytes()))
        num_shards = _parse_header(entries.pop(b"", b""))
        # Only pieces of partitioned variables have names that are no text; those are refused.
        names = [key.decode("utf-8", "backslashreplace") for key in entries]
        variables = {
            name: _parse_variable(name, message)
            for name, message in zip(names, entries.values(), strict=True)
        }
        for name, variable in variables.items():
            if variable.shard >= num_shards:
                raise Refused(f"{name} is in data file {variable.shard} of {num_shards}; {DAMAGED}")
    except Refused as reason:
        raise UserError(f"cannot read {path}: {reason}") from None
    return Index(variables, num_shards)


def _map_shards(path: Path, index: Index) -> dict[int, Shard]:
    """Shard number -> its file, mapped into memory and long enough for all that lies in it."""
    num_bytes: dict[int, int] = {}
    for variable in index.variables.values():
        end = variable.offset + variable.size
        num_bytes[variable.shard] = max(num_bytes.get(variable.shard, 0), end)
    shards = {}
    for shard, expected in num_bytes.items():
        name = f"{path.stem}.data-{shard:05d}-of-{index.num_shards:05d}"
        shards[shard] = Shard(path.with_name(name), _map_file(path.with_name(name), expected))
    return shards


def _map_file(path: Path, expected: int) -> np.ndarray:  # -> (B,) uint8
    if not path.is_file():
        raise UserError(
            f"no file {path}; the index tells of {expected:,} bytes of tensors in it: "
            "fetch it and put it beside the index"
        )
    found = path.stat().st_size
    if found < expected:
        raise UserError(
            f"{path} has {found:,} bytes, the index tells of {expected:,}: "
            "it was cut short, fetch it again"
        )
    if not found:  # all tensors in it are empty; an empty file cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, mode="c"))


def _read_tensor(name: str, variable: Variable, shard: Shard, *, verify: bool) -> np.ndarray:
    if variable.dtype not in STORED_AS:
        raise UserError(
            f"{name} in {shard.path} is of type {variable.dtype}; those that can be read are "
            f"{', '.join(STORED_AS)}. Checkpoints of TensorFlow 2 must be saved anew by "
            "TensorFlow 1's Saver (tf.compat.v1.train.Saver)"
        )
    octets = shard.octets[variable.offset : variable.offset + variable.size]
    if verify and (crc := mask(crc32c(octets))) != variable.crc:
        raise UserError(
            f"{name} in {shard.path} is damaged: its checksum is {crc:#010x}, "
            f"the index says {variable.crc:#010x}; fetch the file again"
        )
    numbers = octets.view(STORED_AS[variable.dtype])  # (n,)
    if variable.dtype == "bfloat16":
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    # torch wants numbers on their natural boundaries; a copy is made only where they are not
    return np.require(numbers, requirements="A").reshape(variable.shape)


# --- protobuf: BundleHeaderProto, BundleEntryProto, TensorShapeProto ---


def _parse_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number of the field, its value) in the order they are written."""
    at = 0
    while at < len(message):
        tag, at = parse_varint(message, at)
        match tag & 7:
            case 0:
                number, at = parse_varint(message, at)
                yield tag >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, at = parse_varint(message, at)
            case 5:
                size = 4
            case kind:
                raise Refused(f"a field in it is of unknown kind {kind}; {DAMAGED}")
        value, at = message[at : at + size], at + size
        if at > len(message):
            raise Refused(f"a field in it is too long; {DAMAGED}")
        yield tag >> 3, value if tag & 7 == 2 else int.from_bytes(value, "little")


def _number(fields: Mapping[int, int | bytes], field: int) -> int:
    value = fields.get(field, 0)  # protobuf leaves zeros out
    if isinstance(value, bytes):
        raise Refused(f"its field {field} should be a number; {DAMAGED}")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Refused(f"it has the number {value} where a message should be; {DAMAGED}")
    return value


def _parse_header(message: bytes) -> int:
    """The number of data files."""
    fields = dict(_parse_fields(message))
    if _number(fields, 2):
        raise Refused(
            "it was written on a big-endian machine, and only little-endian tensors can be read; "
            "save the checkpoint anew on another machine"
        )
    num_shards = _number(fields, 1)
    if not num_shards:
        raise Refused(f"it has no header that tells the number of data files; {DAMAGED}")
    return num_shards


def _parse_variable(name: str, message: bytes) -> Variable:
    fields = dict(_parse_fields(message))
    if 7 in fields:
        raise Refused(
            f"{name} is partitioned into slices, and only whole variables can be read; "
            "save the checkpoint anew without a partitioner"
        )
    dtype = _number(fields, 1)
    variable = Variable(
        dtype=DTYPES.get(dtype, f"number {dtype}"),
        shape=_parse_shape(_message(fields.get(2, b""))),
        shard=_number(fields, 3),
        offset=_number(fields, 4),
        size=_number(fields, 5),
        crc=_number(fields, 6),
    )
    if stored_as := STORED_AS.get(variable.dtype):
        expected = math.prod(variable.shape) * np.dtype(stored_as).itemsize
        if variable.size != expected:
            raise Refused(
                f"{name} {variable.shape} of {variable.dtype} should have {expected:,} bytes, "
                f"it has {variable.size:,}; {DAMAGED}"
            )
    return variable


def _parse_shape(message: bytes) -> tuple[int, ...]:
    sizes = [
        _number(dict(_parse_fields(_message(dimension))), 1)
        for field, dimension in _parse_fields(message)
        if field == 2
    ]
    # NumPy's own limits, which hold for empty arrays too.
    if len(sizes) > 32 or math.prod(max(size, 1) for size in sizes) >= 1 << 60:
        raise Refused(f"it has a tensor of {len(sizes)} dimensions, {sizes}; {DAMAGED}")
    return tuple(sizes)


# --- names ---


class Row(NamedTuple):
    name: str  # bertie's
    shape: str  # one letter a dimension, as torch has it
    sources: tuple[str, ...]  # TensorFlow's, one below the other in the tensor of that name


# V vocabulary   P positions   S segments   D hidden size   F feed-forward size   C classes
EMBEDDINGS = (
    Row("embeddings.token.weight", "VD", ("bert/embeddings/word_embeddings",)),
    Row("embeddings.segment.weight", "SD", ("bert/embeddings/token_type_embeddings",)),
    Row("embeddings.position.weight", "PD", ("bert/embeddings/position_embeddings",)),
    Row("embeddings.norm.weight", "D", ("bert/embeddings/LayerNorm/gamma",)),
    Row("embeddings.norm.bias", "D", ("bert/embeddings/LayerNorm/beta",)),
)
SELF = "attention/self"
LAYER = (  # below layers.L and bert/encoder/layer_L
    Row(
        "attention.qkv.weight",
        "DD",
        (f"{SELF}/query/kernel", f"{SELF}/key/kernel", f"{SELF}/value/kernel"),
    ),
    Row(
        "attention.qkv.bias", "D", (f"{SELF}/query/bias", f"{SELF}/key/bias", f"{SELF}/value/bias")
    ),
    Row("attention.out.weight", "DD", ("attention/output/dense/kernel",)),
    Row("attention.out.bias", "D", ("attention/output/dense/bias",)),
    Row("attention_norm.weight", "D", ("attention/output/LayerNorm/gamma",)),
    Row("attention_norm.bias", "D", ("attention/output/LayerNorm/beta",)),
    Row("ffn.up.weight", "FD", ("intermediate/dense/kernel",)),
    Row("ffn.up.bias", "F", ("intermediate/dense/bias",)),
    Row("ffn.down.weight", "DF", ("output/dense/kernel",)),
    Row("ffn.down.bias", "D", ("output/dense/bias",)),
    Row("ffn_norm.weight", "D", ("output/LayerNorm/gamma",)),
    Row("ffn_norm.bias", "D", ("output/LayerNorm/beta",)),
)
HEADS = (  # each is there as a whole or not at all
    (
        Row("pooler.dense.weight", "DD", ("bert/pooler/dense/kernel",)),
        Row("pooler.dense.bias", "D", ("bert/pooler/dense/bias",)),
    ),
    (
        Row("masked_lm.dense.weight", "DD", ("cls/predictions/transform/dense/kernel",)),
        Row("masked_lm.dense.bias", "D", ("cls/predictions/transform/dense/bias",)),
        Row("masked_lm.norm.weight", "D", ("cls/predictions/transform/LayerNorm/gamma",)),
        Row("masked_lm.norm.bias", "D", ("cls/predictions/transform/LayerNorm/beta",)),
        Row("masked_lm.bias", "V", ("cls/predictions/output_bias",)),
    ),
    (
        Row("next_sentence.classifier.weight", "2D", ("cls/seq_relationship/output_weights",)),
        Row("next_sentence.classifier.bias", "2", ("cls/seq_relationship/output_bias",)),
    ),
    (  # from run_classifier.py
        Row("sequence.classifier.weight", "CD", ("output_weights",)),
        Row("sequence.classifier.bias", "C", ("output_bias",)),
    ),
    (  # from run_squad.py
        Row("span.classifier.weight", "2D", ("cls/squad/output_weights",)),
        Row("span.classifier.bias", "2", ("cls/squad/output_bias",)),
    ),
)
LEFTOVERS = {  # last parts of names that belong to the training, not to the model
    "global_step",
    "adam_m",  # Google's optimizer
    "adam_v",
    "Adam",  # TensorFlow's
    "Adam_1",
    "beta1_power",
    "beta2_power",
    "lamb_m",  # the LAMB written after it
    "lamb_v",
    "current_loss_scale",  # mixed precision
    "good_steps",
}
FACTORISED = "bert/encoder/embedding_hidden_mapping_in/kernel"


def rename(tensors: Mapping[str, np.ndarray], num_layers: int) -> dict[str, np.ndarray]:
    """The parameters by bertie's names, as new float32 arrays; every variable has its place."""
    tensors = {name: t for name, t in tensors.items() if name.split("/")[-1] not in LEFTOVERS}
    if FACTORISED in tensors:
        raise UserError(
            "not a plain BERT: its embeddings are narrower than its layers, as in ALBERT "
            f"({FACTORISED} {tensors[FACTORISED].shape} widens them); "
            "take a checkpoint without factorised embeddings"
        )
    rows = _choose_rows(tensors.keys(), num_layers)
    sources = [source for row in rows for source in row.sources]
    if missing := [source for source in sources if source not in tensors]:
        raise UserError(
            f"the checkpoint has no {missing[0]}, which a BERT of {num_layers} layers has "
            f"({len(missing)} missing in all); is its bert_config.json the right one?"
        )
    if surplus := sorted(tensors.keys() - sources):
        raise UserError(
            f"the checkpoint has {surplus[0]}, which a BERT of {num_layers} layers has not "
            f"({len(surplus)} such in all); is its bert_config.json the right one?"
        )
    sizes = {"2": 2}
    return {row.name: _convert(row, tensors, sizes) for row in rows}


def _choose_rows(names: Collection[str], num_layers: int) -> list[Row]:
    rows = list(EMBEDDINGS)
    for layer in range(num_layers):
        for name, shape, sources in LAYER:
            below = tuple(f"bert/encoder/layer_{layer}/{source}" for source in sources)
            rows.append(Row(f"layers.{layer}.{name}", shape, below))
    for head in HEADS:
        if any(source in names for row in head for source in row.sources):
            rows.extend(head)
    return rows


def _convert(row: Row, tensors: Mapping[str, np.ndarray], sizes: dict[str, int]) -> np.ndarray:
    """The tensor of one row; `sizes` learns what each letter stands for."""
    parts = []
    for source in row.sources:
        part, is_kernel = tensors[source], source.endswith("/kernel")
        letters = row.shape[::-1] if is_kernel else row.shape
        if part.dtype.kind != "f":
            raise UserError(f"{source} holds {part.dtype}, not the floating-point numbers of BERT")
        if not _fits(part.shape, letters, sizes):
            expected = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
            raise UserError(
                f"{source} has the shape {part.shape}; beside the rest of the checkpoint it "
                f"should be ({expected}): not a plain BERT, or put together from two"
            )
        parts.append(part.T if is_kernel else part)  # (in, out) -> (out, in)
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.float32)
    return np.concatenate(parts, out=whole, casting="same_kind")


def _fits(shape: tuple[int, ...], letters: str, sizes: dict[str, int]) -> bool:
    return len(shape) == len(letters) and all(
        sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=True)
    )
