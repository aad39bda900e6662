"""The model that ships with bertie: an English BERT that bertie pre-trained itself.

It lies in `english/`, a model directory with its weights in eight bits and a model card.
"""

import os
from pathlib import Path

from bertie.errors import UserError

NAME = "embedded"  # what it is called where a model directory is asked for
VARIABLE = "BERTIE_MODEL"  # a directory to take in its place
FOLDER = Path(__file__).parent / "english"


def find_model(directory: Path | str | None = None, *, option: str = "") -> Path:
    """The model directory that is named, perhaps by an option; else, or `embedded`, what ships.

    >>> find_model("my_run/model")
    PosixPath('my_run/model')
    """
    if directory is not None and (str(directory) != NAME or Path(directory).is_dir()):
        return Path(directory)
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if not has_embedded():
        how = f" with {option}" if option else ""
        raise UserError(
            f"this bertie ships without its embedded model; name a model directory{how}, or set "
            f"{VARIABLE} to one. `bertie quickstart` makes a small one, `bertie import` takes "
            "those of others"
        )
    return FOLDER


def has_embedded() -> bool:
    """Whether there is a model for those who name none."""
    return bool(os.environ.get(VARIABLE)) or (FOLDER / "config.json").is_file()
