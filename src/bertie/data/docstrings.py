"""Text that every Python machine has: the docstrings of its library and packages, and its manual.

Sources are parsed, never imported or run.
"""

import ast
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertie.data.corpus import document_hash

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # where a node keeps statements
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_PROSE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MIN_CHARS = 50  # of a docstring that is to tell its package; shorter ones are alike everywhere
MAX_SOURCE_BYTES = 400_000  # longer ones are generated tables
MAX_PACKAGE_BYTES = 1_500_000  # of sources a package: parsing costs about a second for 2 MB


class Docstrings(NamedTuple):
    """The docstrings of one source file, in their order."""

    package: str
    texts: tuple[str, ...]

    @property
    def document(self) -> str:
        return "\n".join(self.texts)


class Labelled(NamedTuple):
    """A docstring and where it is from."""

    text: str
    package: str


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


def label(
    found: Sequence[Docstrings],
    *,
    is_held_out: Callable[[str], bool],  # of a document
    num_packages: int,
    num_each: int,
) -> tuple[list[Labelled], list[Labelled]]:
    """Docstrings of the packages with the most of them, to learn from and to test on.

    Those to test on are of documents that are held out. At most `num_each` of a package in both;
    which ones, a hash decides. What several packages say is left out.
    """
    packages: dict[str, set[str]] = {}  # by text
    sides: dict[str, set[bool]] = {}  # a text may stand in documents of both kinds
    for one in found:
        side = is_held_out(one.document)
        for text in one.texts:
            if len(text) >= MIN_CHARS:
                packages.setdefault(text, set()).add(one.package)
                sides.setdefault(text, set()).add(side)
    own = {text: next(iter(names)) for text, names in packages.items() if len(names) == 1}
    chosen = [name for name, _ in Counter(own.values()).most_common(num_packages)]
    parts: tuple[list[Labelled], list[Labelled]] = ([], [])
    for package in chosen:
        texts = sorted((t for t, name in own.items() if name == package), key=document_hash)
        for side, part in zip((False, True), parts, strict=True):
            some = [text for text in texts if sides[text] == {side}][:num_each]
            part += [Labelled(text, package) for text in some]
    return parts
