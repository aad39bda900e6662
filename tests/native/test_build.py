"""C is compiled once for a machine; where it cannot be, there is none, and nothing breaks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertie.native import build

HAS_COMPILER = any(map(shutil.which, build.COMPILERS))
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")
needs_avx512 = pytest.mark.skipif(not HAS_AVX512, reason="needs a processor with AVX-512")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "bertie"


@needs_compiler
@needs_avx512
def test_it_is_compiled_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = build.find_compilers()[0]
    made = build.compiled(compiler)
    assert list(own_cache.iterdir()) == [made]  # and no draft is left
    assert own_cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(build, "compile_in", lambda *_: pytest.fail("compiled again"))
    assert build.compiled(compiler) == made


@needs_compiler
@needs_avx512
@pytest.mark.parametrize("num_bytes", [0, 40, 20_000])
def test_a_file_that_is_cut_short_is_compiled_again(num_bytes: int) -> None:
    """A call into half of a library ends the process with SIGBUS."""
    compiler = build.find_compilers()[0]
    made = build.compiled(compiler)
    whole = made.read_bytes()
    made.write_bytes(whole[:num_bytes])
    assert build.compiled(compiler) == made
    assert build.is_whole(made) and len(made.read_bytes()) == len(whole)
    assert build.load.__wrapped__() is not None


@needs_compiler
@needs_avx512
def test_it_can_be_loaded_where_it_should() -> None:
    """Else every other test of it would be left out, and nobody would notice."""
    assert build.load.__wrapped__() is not None


@needs_compiler
@needs_avx512
def test_processes_that_compile_at_once_do_not_meet(own_cache: Path) -> None:
    code = "from bertie.native.build import load; import torch; assert load() is not None"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [one.wait() for one in started] == [0, 0, 0]
    assert len(list(own_cache.iterdir())) == 1


@needs_compiler
@needs_avx512
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_could_have_written_is_not_loaded(own_cache: Path, what: str) -> None:
    compiler = build.find_compilers()[0]
    made = build.compiled(compiler)
    (own_cache if what == "folder" else made).chmod(0o777)
    with pytest.raises(OSError, match="may be another's"):
        build.compiled(compiler)


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/.cache", "here"])
def test_without_a_home_there_is_none(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    with pytest.raises(OSError, match="no folder"):
        build.cache_folder()
    assert build.load.__wrapped__() is None


@needs_compiler
@needs_avx512
def test_a_compiler_that_cannot_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    wrong.chmod(0o755)
    monkeypatch.setenv("CC", str(wrong))
    assert build.find_compilers()[0] == str(wrong)
    assert build.load.__wrapped__() is not None


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
