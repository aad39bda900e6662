"""Named tensors in files: safetensors read and written, PyTorch's pickles only read, and safely.

Weights in eight bits are `packed.py`'s.
"""

import json
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertie.checkpoint.json_files import read_json
from bertie.checkpoint.packed import PACKED, read_packed
from bertie.errors import UserError

SINGLE, LISTED = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_LISTED = "pytorch_model.bin", "pytorch_model.bin.index.json"
SUFFIXES = (".safetensors", ".bin")  # of files of weights
FOREIGN = ("tf_model.h5", "flax_model.msgpack", "model.onnx", "rust_model.ot")


def has_weights(directory: Path) -> bool:
    names = (SINGLE, LISTED, PACKED, PICKLED, PICKLED_LISTED)
    return any((directory / name).is_file() for name in names)


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of a directory by their names, mapped into memory where the format allows it."""
    if (directory / SINGLE).is_file():
        return _read_safetensors(directory / SINGLE)
    if (directory / LISTED).is_file():
        return _read_shards(directory / LISTED, _read_safetensors)
    if (directory / PACKED).is_file():
        return read_packed(directory / PACKED)
    if (directory / PICKLED).is_file():
        return _read_pickle(directory / PICKLED)
    if (directory / PICKLED_LISTED).is_file():
        return _read_shards(directory / PICKLED_LISTED, _read_pickle)
    foreign = [name for name in FOREIGN if (directory / name).is_file()]
    found = f" (it has {foreign[0]}, which bertie does not read)" if foreign else ""
    raise UserError(f"no weights in {directory}{found}; expected {SINGLE} or {PICKLED}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file, damaged or cut short ({error}); fetch it again"
        ) from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Weights-only: a pickle is a program, and nothing but making tensors is allowed in it."""
    try:
        with warnings.catch_warnings():  # torch's own use of storages it calls deprecated
            warnings.simplefilter("ignore")
            is_zip = zipfile.is_zipfile(path)  # files of torch before 1.6 cannot be mapped
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a pickle that is damaged can fail in any way there is
        if strange := re.search(r"GLOBAL (\w+(\.\w+)+) ", str(error)):
            raise UserError(
                f"{path} is not opened: it would run {strange[1]}, and weights need no such thing; "
                f"get the model as {SINGLE}"
            ) from None
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise UserError(
            f"{path} is not a weights file, damaged or cut short ({reason}); fetch it again"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise UserError(f"{path} holds more than a table of names and tensors; save a state_dict")
    for name, weight in found.items():
        if not isinstance(name, str) or weight.layout != torch.strided or weight.is_meta:
            raise UserError(
                f"{path}: {name!r} is not a plain tensor with a name ({weight.layout}, on "
                f"{weight.device}); save a state_dict of dense weights"
            )
    return dict(found)


def _read_shards(path: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The files that an index lists; each must hold what the index says, and nothing else."""
    file_of = read_json(path).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(v, str) for v in file_of.values()):
        raise UserError(f"{path} is not an index of weights: it has no weight_map of names")
    names = sorted(set(file_of.values()))
    weights: dict[str, Tensor] = {}
    for name in names:
        shard = path.parent / name
        if Path(name).name != name:
            raise UserError(f"{path} names a file outside its folder: {name}")
        if not shard.is_file():
            raise UserError(
                f"no file {shard}, one of {len(names)} that {path.name} lists; fetch it"
            )
        found = read(shard)
        listed = {weight for weight, file in file_of.items() if file == name}
        if strange := sorted(listed ^ found.keys()):
            where = "lists" if strange[0] in listed else "does not list"
            raise UserError(
                f"{path} and {name} do not belong together: the index {where} {strange[0]}"
            )
        weights |= found
    return weights


def write_weights(directory: Path, weights: Mapping[str, Tensor], shard_bytes: int) -> None:
    """One safetensors file, or several of at most `shard_bytes` (or one tensor) with an index."""
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, weight in weights.items():
        if weight.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = weight
        room -= weight.nbytes
    if len(shards) == 1:
        save_file(shards[0], directory / SINGLE, {"format": "pt"})
        return
    file_of: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, {"format": "pt"})
        file_of |= dict.fromkeys(shard, file)
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": file_of}
    (directory / LISTED).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
