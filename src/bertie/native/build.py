"""Compiles layer.c once for a machine, and loads it: whatever fails, there is a slower way.

The processor is the one it was compiled for, so nothing has to be chosen at run time. Threads are
those of torch: the library asks for OpenMP by name, and finds what torch has loaded.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = files("bertie.native") / "layer.c"
COMPILERS = ("gcc", "cc")
FLAGS = (
    "-O3",
    "-march=native",
    "-fno-strict-aliasing",
    # What sums of sixteen at a time need; NaN and infinity stay what they are.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-fopenmp",
    "-fPIC",
)
PATIENCE_S = 60  # of a compiler
DIGEST_BYTES = 32  # of SHA-256


class Switch:
    """Whether C is used where it can be; off, to compare with torch's own."""

    is_on = True


def get_library() -> ctypes.CDLL | None:
    """The compiled file; none where it cannot be had, or is switched off."""
    return load() if Switch.is_on else None


@cache
def load() -> ctypes.CDLL | None:
    """By the first compiler whose file can be loaded."""
    if sys.platform != "linux":  # where torch's threads go by other names
        return None
    for compiler in find_compilers():
        with suppress(OSError, subprocess.SubprocessError):
            return ctypes.CDLL(str(compiled(compiler)))
    return None


def find_compilers() -> list[str]:
    names = (os.environ.get("CC", ""), *COMPILERS)
    return list(dict.fromkeys(path for name in names if name and (path := shutil.which(name))))


def compiled(compiler: str) -> Path:
    """The file in the user's cache, made if it is not there yet, or damaged."""
    source = SOURCE.read_bytes()
    made = cache_folder() / f"layer-{key_of(source, compiler)}.so"
    if not made.exists() or not is_whole(made):
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryDirectory(dir=made.parent) as folder:
            shared = compile_in(Path(folder), source, compiler)
            seal(shared)
            shared.replace(made)
        flush(made.parent)
    check_own(made.parent)
    check_own(made)
    return made


def seal(shared: Path) -> None:
    """Adds its hash to its end, where no loader looks, and brings it to the disk."""
    with shared.open("r+b") as file:
        digest = sha256(file.read()).digest()
        file.write(digest)
    flush(shared)


def is_whole(made: Path) -> bool:
    """Whether it is what was compiled: a call into a file that is cut short ends the process."""
    content = made.read_bytes()
    return content[-DIGEST_BYTES:] == sha256(content[:-DIGEST_BYTES]).digest()


def flush(path: Path) -> None:
    """A file or a folder, so that a power cut leaves no name without its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = named.expanduser()
    except RuntimeError as error:  # a user without a home
        raise OSError(f"no folder {named}") from error
    if not folder.is_absolute():  # nothing is loaded from wherever we are
        raise OSError(f"no folder to keep compiled code in: {folder}")
    return folder / "bertie"


def check_own(path: Path) -> None:
    """What lies there runs as the user: others must not have put it there."""
    found = path.stat()
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o002:
        raise OSError(f"{path} may be another's")


def key_of(source: bytes, compiler: str) -> str:
    """What a compiled file depends on: a home directory may be that of several machines."""
    parts = (source, " ".join(FLAGS), os.path.realpath(compiler), processor())
    encoded = (part if isinstance(part, bytes) else part.encode() for part in parts)
    return sha256(b"\0".join(encoded)).hexdigest()[:16]


def processor() -> str:
    """Its model and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return platform.machine()
    return "\n".join(dict.fromkeys(one for one in lines if one.startswith(("model", "flags"))))


def compile_in(folder: Path, source: bytes, compiler: str) -> Path:
    code, compiled_part, shared = (folder / name for name in ("layer.c", "layer.o", "layer.so"))
    code.write_bytes(source)
    # Linked without OpenMP's library: with a copy of its own, it would not share torch's threads.
    for command in (
        [compiler, *FLAGS, "-c", str(code), "-o", str(compiled_part)],
        [compiler, "-shared", str(compiled_part), "-o", str(shared)],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return shared
