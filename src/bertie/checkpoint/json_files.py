"""JSON objects in files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertie.errors import UserError
from bertie.text.disk import read_object, write_text


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        within = path.parent / "model"  # of a run
        hint = "a model directory has config.json and model.safetensors"
        if (within / path.name).is_file():
            hint = f"the model is in {within}"
        raise UserError(f"no file {path}; {hint}")
    return read_object(path)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a draft and renames it, so that no kill leaves half of a file."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
