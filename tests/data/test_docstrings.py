"""The text of this machine's Python is read without importing or running it."""

from pathlib import Path

from bertie.data.docstrings import find_sources, read_docstrings, read_manual


def test_docstrings_come_in_order_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Top."""\nraise SystemExit\nclass A:\n    """Of A."""\n    def f(self): "Of f."\n'
    )
    assert read_docstrings(path, "p") == ("p", ("Top.", "Of A.", "Of f."))


def test_definitions_are_found_wherever_statements_may_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        """
def outer():
    "1"
    try:
        def tried(): "2"
    except OSError:
        def caught(): "3"
    else:
        async def fine(): "4"
    finally:
        class Last: "5"
    def within(): "6"
match 1:
    case 1:
        def matched(): "7"
"""
        + "if a: pass\n"
        + "elif b: pass\n" * 50
        + "else:\n    def rest(): '8'\n"
    )
    assert read_docstrings(path, "p").texts == tuple("12345678")


def test_a_source_that_cannot_be_parsed_has_none(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(b"print 'python 2'\n\xff")
    assert read_docstrings(path, "p").texts == ()


def test_the_standard_library_is_found_once_and_has_a_manual() -> None:
    sources = find_sources()
    assert len({path for _, path in sources}) == len(sources) > 500
    assert {"argparse", "collections", "numpy"} <= {package for package, _ in sources}
    assert any('The "with" statement' in chapter for chapter in read_manual())
