"""Who may know whom: the table of docs/architecture.md, kept true."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bertie"


def read_table() -> dict[str, set[str] | None]:
    """The table of docs/architecture.md: part -> what it may import; None for anything."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("| `")]
    table: dict[str, set[str] | None] = {}
    for parts, allowed in rows:
        names = None if allowed.strip() == "anything" else set(re.findall(r"`(\w+)`", allowed))
        table |= dict.fromkeys(re.findall(r"`(\w+)`", parts), names)
    return table


MAY_IMPORT = read_table()
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import in the file, also of those inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [alias.name for alias in node.names] if node.module == "bertie" else [""]
            found += [(node.lineno, f"{node.module}.{name}".rstrip(".")) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_part_imports_only_what_it_may_know(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert part in MAY_IMPORT, f"{part} is not in the table of docs/architecture.md"
    allowed = MAY_IMPORT[part]
    for line, module in imports(path):
        names = module.split(".")
        other = names[1] if names[0] == "bertie" and len(names) > 1 else names[0]
        if names[0] in sys.stdlib_module_names or other in (part, "errors", "__version__"):
            continue
        assert allowed is None or other in allowed, f"{path}:{line}: {part} must not import {other}"
        assert other != "cli" or part == "__main__", f"{path}:{line}: nothing imports cli"


def test_torch_stays_out_of_text_and_of_data_but_the_loader() -> None:
    for path in FILES:
        part = path.relative_to(SOURCE).parts[0]
        if part == "text" or (part == "data" and path.name != "loader.py"):
            assert not any(m.split(".")[0] == "torch" for _, m in imports(path)), path


def test_no_file_is_called_after_nothing() -> None:
    assert not {path.stem for path in FILES} & {"utils", "common", "helpers", "misc"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_readable(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") <= 500


def test_print_only_where_people_read() -> None:
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] == "cli" or path.name == "log.py":
            continue
        calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
        assert not [c.lineno for c in calls if getattr(c.func, "id", "") == "print"], path


def test_only_the_command_line_knows_what_was_typed() -> None:
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] != "cli":
            assert "sys.argv" not in path.read_text("utf-8"), path
