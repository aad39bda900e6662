"""Text that every Python machine has: the docstrings of its library and packages, and its manual.

Sources are parsed, never imported or run.
"""

import ast
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # where a node keeps statements
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_PROSE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MAX_SOURCE_BYTES = 400_000  # longer ones are generated tables
MAX_PACKAGE_BYTES = 1_500_000  # of sources a package: parsing costs about a second for 2 MB


class Docstrings(NamedTuple):
    """The docstrings of one source file, in their order."""

    package: str
    texts: tuple[str, ...]


def find_sources() -> list[tuple[str, Path]]:
    """(package, file) of the standard library and of the installed packages, in a fixed order."""
    paths = sysconfig.get_paths()
    found: dict[Path, str] = {}
    taken: Counter[str] = Counter()
    for root in dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"])):
        for path in sorted(Path(root).rglob("*.py")):
            inside = path.relative_to(root).parts
            package, size = inside[0].removesuffix(".py"), path.stat().st_size
            if NO_PROSE & set(inside) or size > MAX_SOURCE_BYTES or path in found:
                continue
            if taken[package] + size <= MAX_PACKAGE_BYTES:
                taken[package] += size
                found[path] = package
    return [(package, path) for path, package in found.items()]


def read_docstrings(path: Path, package: str) -> Docstrings:
    """All docstrings of a source file; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return Docstrings(package, ())
    texts = [ast.get_docstring(node) for node in walk_documented(tree)]
    return Docstrings(package, tuple(text for text in texts if text))


def walk_documented(tree: ast.Module) -> Iterator[Documented]:
    """All that may have a docstring, in the order of the source.

    Only statements are looked into: expressions are most of a tree, and hold no definitions.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, DOCUMENTED):
            yield node
        inside = [child for block in BLOCKS for child in getattr(node, block, ())]
        waiting += reversed(inside)


def read_manual() -> Iterator[str]:
    """The chapters of the language reference that `help()` shows."""
    path = Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield inspect.cleandoc(value.value)
