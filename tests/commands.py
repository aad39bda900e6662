"""`bertie` as people type it, in a process that has loaded torch before: that takes seconds.

A server of multiprocessing's imports it once; each command is a fork of it, with the folder, the
environment and the files of its own that a process started by a shell would have. It ends without
what Python does at its end; those that torchrun starts do that.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

CONTEXT = get_context("forkserver")
# Nothing of bertie's: what a command forgets to import must be missing.
CONTEXT.set_forkserver_preload(["numpy", "rich.console", "safetensors", "torch", "typer"])
ROOT = Path(__file__).parents[1]


def bertie(
    *arguments: str, cwd: Path | None = None, stdin: str = "", columns: int = 120
) -> subprocess.CompletedProcess:
    """`python -m bertie ARGUMENTS`."""
    return run(["bertie", *arguments], None, cwd, stdin, columns)


def python(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """`python -c CODE`."""
    return run(["-c"], code, cwd)


def run(
    words: Sequence[str], code: str | None, cwd: Path | None, stdin: str = "", columns: int = 120
) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONUTF8": "1", "COLUMNS": str(columns)}
    with TemporaryDirectory() as name:
        pipes = [Path(name) / stream for stream in ("stdin", "stdout", "stderr")]
        pipes[0].write_text(stdin, encoding="utf-8")
        given = (words, code, str(cwd or Path.cwd()), environment, [str(pipe) for pipe in pipes])
        process = CONTEXT.Process(target=become, args=given)
        process.start()
        try:
            process.join()
        finally:  # a test that ran out of time
            process.kill()
            process.join()
        said = [pipe.read_text(encoding="utf-8") for pipe in pipes[1:]]
    return subprocess.CompletedProcess(words, process.exitcode, *said)


def become(
    words: Sequence[str],
    code: str | None,
    folder: str,
    environment: Mapping[str, str],
    pipes: Sequence[str],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    modes = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (path, mode) in enumerate(zip(pipes, modes, strict=True)):
        os.dup2(os.open(path, mode), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, mode in enumerate(("r", "w", "w"))
    )
    sys.argv = list(words)
    sys.path[:] = ["", *(path for path in sys.path if path not in ("", str(ROOT)))]
    if code is None:
        runpy.run_module("bertie", run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
