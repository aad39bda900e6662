"""Paths, folders and patterns to files of text."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertie.data.blocks import OWN_FOLDER, Problems
from bertie.data.signs import is_own
from bertie.errors import UserError

Folders = dict[Path, bool]  # whether each was made by bertie


def find_files(paths: Sequence[Path], problems: Problems | None = None) -> list[Path]:
    """The files named, those below the folders named, those that patterns like *.gz fit.

    Each once, in the order of `paths` and below one by name; no hidden ones. Folders that bertie
    made are left out, and `problems` says so, unless they are named.
    """
    found: list[Path] = []
    own: Folders = {}
    for path in paths:
        found += list_files(path, own)
    names = [str(folder) for folder, is_left_out in own.items() if is_left_out]
    problems = Problems() if problems is None else problems
    for number in range(len(names)):
        problems.add(OWN_FOLDER, names.__getitem__, number)
    if not found:
        left_out = f" but what bertie made ({names[0]})" if names else ""
        raise UserError(f"no files in {', '.join(map(str, paths))}{left_out}")
    return list(dict.fromkeys(found))


def list_files(path: Path, own: Folders) -> list[Path]:
    """Of one path; the folders looked at go into `own`."""
    if path.is_dir():
        return sorted(walk_folder(path, own))
    if path.is_file():
        return [path]
    if path.exists():
        raise UserError(f"{path} is a pipe or a device; write the text to a file: it is read twice")
    if matches := expand(path):
        top = Path(*path.parts[: first_wildcard(path)])
        wanted = [match for match in matches if not is_inside_own(match, top, own)]
        return [file for match in wanted for file in list_files(match, own)]
    raise UserError(f"no file or folder {path}")


def walk_folder(top: Path, own: Folders) -> Iterator[Path]:
    """The files below a folder, also behind links; each folder is read once, by its own name."""
    seen: set[str] = set()
    tops = [top]
    while tops:
        for name, folders, files in os.walk(tops.pop(0), onerror=refuse):
            here = Path(name)
            if os.path.realpath(here) in seen:
                folders.clear()
                continue
            seen.add(os.path.realpath(here))
            if here != top and own.setdefault(here, is_own(here)):
                folders.clear()
                continue
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            tops += [here / folder for folder in folders if (here / folder).is_symlink()]
            yield from (
                here / file
                for file in files
                if not file.startswith(".") and (here / file).is_file()
            )


def refuse(error: OSError) -> None:
    raise UserError(f"cannot read the folder {error.filename}: {error.strerror}")


def expand(pattern: Path) -> list[Path]:
    """What a pattern fits; ** is any number of folders."""
    if first_wildcard(pattern) == len(pattern.parts):
        return []
    top = Path(pattern.anchor)
    try:
        matches = list(top.glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError:
        raise UserError(
            f"{pattern} is not a pattern: * is any part of a name, and ** stands alone between "
            "slashes, for any number of folders"
        ) from None
    named = set(pattern.parts)  # what is named is not hidden
    return sorted(path for path in matches if not is_hidden(Path(*(set(path.parts) - named))))


def first_wildcard(pattern: Path) -> int:
    """The number of the first part that fits many names."""
    parts = pattern.parts
    return next((n for n, part in enumerate(parts) if set("*?[") & set(part)), len(parts))


def is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def is_inside_own(match: Path, top: Path, own: Folders) -> bool:
    """Whether what a pattern fits is a folder that bertie made, or lies in one, below `top`."""
    for folder in (*reversed(match.parents), match):
        if folder != top and folder.is_relative_to(top):
            if folder not in own and folder.is_dir():
                own[folder] = is_own(folder)
            if own.get(folder):
                return True
    return False
