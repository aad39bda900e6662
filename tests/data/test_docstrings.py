"""The text of this machine's Python is read without importing or running it."""

from pathlib import Path

from bertie.data.docstrings import (
    Docstrings,
    find_sources,
    label,
    read_docstrings,
    read_manual,
)


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


def long(*words: str) -> tuple[str, ...]:
    return tuple(f"{word}: {'as long as it must be, ' * 3}" for word in words)


FOUND = [
    Docstrings("a", long("1", "2", "both packages")),
    Docstrings("a", long("held out", "2")),  # the document of "2" above is not held out
    Docstrings("b", (*long("3", "both packages"), "too short")),
    Docstrings("b", long("4", "5", "6", "held out too")),
    Docstrings("c", long("7")),
]


def test_labelled_docstrings_have_one_package_and_one_side() -> None:
    taught, tested = label(
        FOUND,
        is_held_out=lambda document: "held out" in document,
        num_packages=2,
        num_each=3,
    )
    assert {one.package for one in taught + tested} == {"a", "b"}  # c has the fewest
    texts = [one.text.partition(":")[0] for one in taught]
    assert sorted(texts) == ["1", "3"]
    assert {one.text.partition(":")[0] for one in tested} < {"held out", "held out too", *"456"}
    assert len([one for one in tested if one.package == "b"]) == 3  # of four
    assert label(FOUND[::-1], is_held_out=lambda _: False, num_packages=9, num_each=9)[1] == []


def test_which_docstrings_are_taken_does_not_depend_on_the_order_of_files() -> None:
    one, other = (
        label(found, is_held_out=lambda _: False, num_packages=2, num_each=2)[0]
        for found in (FOUND, FOUND[::-1])
    )
    assert sorted(one) == sorted(other)
