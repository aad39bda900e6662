"""Writes TensorFlow 1 checkpoints, so that reading can be tested without TensorFlow."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bertie.checkpoint.crc32c import crc32c
from bertie.checkpoint.table import mask

MAGIC = bytes.fromhex("57fb808b247547db")
# NumPy has no bfloat16: here an array of uint16 stands for its bits.
NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "uint16": 14, "float16": 19}


def varint(number: int) -> bytes:
    octets = []
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def header(num_shards: int, *, endianness: int = 0) -> bytes:
    return field(1, num_shards) + field(2, endianness) + field(3, field(1, 1))


def variable(dtype: int, shape: tuple[int, ...], shard: int, offset: int, data: bytes) -> bytes:
    dimensions = b"".join(field(2, field(1, size)) for size in shape)
    place = field(3, shard) + field(4, offset) + field(5, len(data))
    crc = varint(6 << 3 | 5) + struct.pack("<I", mask(crc32c(data)))
    return field(1, dtype) + field(2, dimensions) + place + crc


def block(entries: Mapping[bytes, bytes], *, restart_every: int = 3, compression: int = 0) -> bytes:
    """Entries with shared prefixes, restart offsets, compression byte and checksum."""
    body, restarts, last = b"", [], b""
    for count, (key, value) in enumerate(entries.items()):
        if count % restart_every == 0:
            restarts.append(len(body))
            last = b""
        shared = 0
        while shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        lengths = varint(shared) + varint(len(key) - shared) + varint(len(value))
        body += lengths + key[shared:] + value
        last = key
    restarts = restarts or [0]
    body += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + bytes([compression])
    return body + struct.pack("<I", mask(crc32c(body)))


def table(entries: Mapping[bytes, bytes], *, per_block: int = 4, compression: int = 0) -> bytes:
    """A whole index file with `per_block` entries in each data block."""
    data, index, keys = b"", {}, sorted(entries)
    for start in range(0, len(keys), per_block):
        chosen = keys[start : start + per_block]
        made = block({key: entries[key] for key in chosen}, compression=compression)
        index[chosen[-1]] = varint(len(data)) + varint(len(made) - 5)
        data += made
    footer = b""
    for made in (block({}), block(index, restart_every=1)):  # the metaindex, the index
        footer += varint(len(data)) + varint(len(made) - 5)
        data += made
    return data + footer.ljust(40, b"\0") + MAGIC


def write_checkpoint(
    prefix: Path, tensors: Mapping[str, np.ndarray], *, num_shards: int = 1, per_block: int = 4
) -> None:
    """PREFIX.index and its data files; the tensors are dealt out to them in turn."""
    entries = {b"": header(num_shards)}
    paths = [Path(f"{prefix}.data-{i:05d}-of-{num_shards:05d}") for i in range(num_shards)]
    for path in paths:
        path.write_bytes(b"")
    for count, name in enumerate(sorted(tensors)):
        tensor, shard = tensors[name], count % num_shards
        with paths[shard].open("ab") as file:
            data = tensor.tobytes()
            number = NUMBERS[tensor.dtype.name]
            entries[name.encode()] = variable(number, tensor.shape, shard, file.tell(), data)
            file.write(data)
    Path(f"{prefix}.index").write_bytes(table(entries, per_block=per_block))


def bert_tensors(
    rng: np.random.Generator,
    *,
    vocab: int = 11,
    positions: int = 9,
    hidden: int = 4,
    ffn: int = 6,
    num_layers: int = 2,
) -> dict[str, np.ndarray]:
    """Random weights under the names of Google's code: encoder, pooler, pre-training heads."""
    norm = {"LayerNorm/beta": (hidden,), "LayerNorm/gamma": (hidden,)}
    square = {"kernel": (hidden, hidden), "bias": (hidden,)}
    layer = {
        **{
            f"attention/self/{n}/{k}": s
            for n in ("query", "key", "value")
            for k, s in square.items()
        },
        **{f"attention/output/dense/{k}": s for k, s in square.items()},
        **{f"attention/output/{k}": s for k, s in norm.items()},
        "intermediate/dense/kernel": (hidden, ffn),
        "intermediate/dense/bias": (ffn,),
        "output/dense/kernel": (ffn, hidden),
        "output/dense/bias": (hidden,),
        **{f"output/{k}": s for k, s in norm.items()},
    }
    shapes = {
        "bert/embeddings/word_embeddings": (vocab, hidden),
        "bert/embeddings/token_type_embeddings": (2, hidden),
        "bert/embeddings/position_embeddings": (positions, hidden),
        **{f"bert/embeddings/{k}": s for k, s in norm.items()},
        **{f"bert/encoder/layer_{n}/{k}": s for n in range(num_layers) for k, s in layer.items()},
        **{f"bert/pooler/dense/{k}": s for k, s in square.items()},
        **{f"cls/predictions/transform/dense/{k}": s for k, s in square.items()},
        **{f"cls/predictions/transform/{k}": s for k, s in norm.items()},
        "cls/predictions/output_bias": (vocab,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
