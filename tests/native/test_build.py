"""C is compiled once for a machine; where it cannot be, there is none, and nothing breaks."""

import shutil
from pathlib import Path

import pytest

from bertie.native import build

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="needs a C compiler"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "bertie"


@needs_compiler
def test_it_is_compiled_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        made = build.compiled()
    except build.subprocess.CalledProcessError:
        pytest.skip("this processor has no AVX-512")
    assert list(own_cache.iterdir()) == [made]  # and no draft is left
    monkeypatch.setattr(build, "compile_in", lambda *_: pytest.fail("compiled again"))
    assert build.compiled() == made


def test_another_source_compiler_or_processor_is_another_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {build.key_of(b"a", "/no/cc"), build.key_of(b"b", "/no/cc")}
    keys.add(build.key_of(b"a", "/no/gcc"))
    monkeypatch.setattr(build, "processor", lambda: "flags: none")
    keys.add(build.key_of(b"a", "/no/cc"))
    assert len(keys) == 4


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert build.load.__wrapped__() is None


@needs_compiler
def test_code_that_does_not_compile_is_none_and_leaves_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return ", encoding="utf-8")
    monkeypatch.setattr(build, "SOURCE", source)
    assert build.load.__wrapped__() is None
    assert not list(own_cache.iterdir())


@needs_compiler
def test_a_folder_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert build.load.__wrapped__() is None


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.Switch, "is_on", False)
    assert build.get_library() is None
