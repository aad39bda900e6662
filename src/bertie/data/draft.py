"""The folder a store is made in, until it is whole: whose it is, and what in it is ours.

`OUT.draft` may be the name of somebody's own folder: nothing is removed but files of our names.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertie.data.store import FILES, HELD_OUT, MANIFEST, TOKENIZER
from bertie.errors import UserError
from bertie.text.disk import write_text
from bertie.text.files import VOCAB
from bertie.text.hugging_face import SETTINGS

PLAN, STORE = "plan.json", "store"
STORES = (STORE, f"{STORE}/{HELD_OUT}")
# Those inside others first: each is removed when it is empty.
FOLDERS = (*(f"{place}/{TOKENIZER}" for place in STORES), *reversed(STORES), TOKENIZER, ".")
PART = re.compile(r"part-\d{6,}\.(ids|words|sentences|documents|json)")
NAMES = frozenset(
    [
        PLAN,
        *(f"{place}/{name}" for place in STORES for name in (*FILES, MANIFEST)),
        *(f"{folder}/{name}" for folder in FOLDERS[:-1] for name in (VOCAB, SETTINGS)),
    ]
)


def check_ours(draft: Path) -> None:
    """Refuses a folder that holds anything but the files of an unfinished store."""
    if not draft.is_dir():
        if draft.exists() or draft.is_symlink():
            raise UserError(f"{draft} is needed to work in, and is not a folder; rename it")
        return
    if strange := [path for path in list_files(draft) if not is_ours(path, draft)]:
        raise UserError(
            f"{draft} is needed to work in, and holds something else: "
            f"{strange[0].relative_to(draft)}; move that away, or choose another --out"
        )


def list_files(folder: Path) -> list[Path]:
    """All below a folder that is no folder itself."""
    return sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def is_ours(path: Path, draft: Path) -> bool:
    """Whether a draft has a file of this name, which may be half written: `.NAME.draft`."""
    name = path.name
    if name.startswith(".") and name.endswith(".draft"):
        name = name[1:].removesuffix(".draft")
    place = path.relative_to(draft).with_name(name).as_posix()
    return place in NAMES or PART.fullmatch(place) is not None


def take_up(draft: Path, wanted: Mapping[str, Any]) -> None:
    """Begins a draft, or goes on with one that has the same plan."""
    path = draft / PLAN
    if not path.is_file():
        for old in list_files(draft):  # nothing says what they are of
            if is_ours(old, draft):
                old.unlink()
        write_text(path, json.dumps(wanted))
        return
    try:
        found = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged; remove {draft} to begin anew") from None
    changed = [name for name in wanted if found.get(name) != json.loads(json.dumps(wanted[name]))]
    if changed:
        raise UserError(
            f"{draft} is the unfinished work of another run: its {' and '.join(changed)} differ; "
            "remove it to begin anew, or choose another --out"
        )


def clear(draft: Path, place: str = ".") -> None:
    """Removes our files from a draft, or from a folder inside it, and what is empty then."""
    for path in list_files(draft / place):
        if is_ours(path, draft):
            path.unlink()
    for folder in FOLDERS:
        if (draft / folder).is_relative_to(draft / place):
            with suppress(OSError):  # not there, or not empty: somebody else's
                (draft / folder).rmdir()
