"""Works in processes: what is killed is tried again, what is stopped never begins, none is left."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bertie.crew import Crew, Work
from bertie.errors import UserError
from bertie.train.loop import Stopped


def touch(path: Path) -> None:
    path.touch()


def fail(path: Path) -> None:
    raise KeyError("a key")


def stop(path: Path) -> None:
    path.touch()
    raise Stopped(signal.SIGTERM, path)


def die(path: Path, times: int) -> None:
    """As when the system kills what takes too much memory."""
    count = len(list(path.parent.glob(f"{path.name}-*")))
    path.with_name(f"{path.name}-{count}").touch()
    if count < times:
        time.sleep(0.5)  # until another work has begun beside it
        os.kill(os.getpid(), signal.SIGKILL)
    path.touch()


def sleep_long(path: Path) -> None:
    path.touch()
    time.sleep(100)


def run(works, folder, at_once=2):
    crew = Crew(at_once, folder)
    crew.add(works)
    return {work.folder.name: error for work, error in crew.run()}


def test_all_are_done_and_what_fails_is_told(tmp_path):
    works = [Work(partial(touch, tmp_path / str(n)), tmp_path / str(n)) for n in range(5)]
    works.append(Work(partial(fail, tmp_path / "bad"), tmp_path / "bad"))
    found = run(works, tmp_path)
    assert {name for name, error in found.items() if error is None} == set("01234")
    assert isinstance(found["bad"], KeyError)
    assert all((tmp_path / str(n)).exists() for n in range(5))


def test_works_may_bring_others(tmp_path):
    crew, done = Crew(2, tmp_path), []
    crew.add([Work(partial(touch, tmp_path / "a"), tmp_path / "a")])
    for work, error in crew.run():
        assert error is None
        done.append(work.folder.name)
        if work.folder.name == "a":
            crew.add([Work(partial(touch, tmp_path / "b"), tmp_path / "b")])
    assert done == ["a", "b"]


def test_what_was_killed_once_is_done_and_twice_has_failed(tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    works = [Work(partial(die, once, 1), once)]
    assert run(works, tmp_path) == {"once": None}
    works = [Work(partial(die, twice, 9), twice)]
    error = run(works, tmp_path)["twice"]
    assert isinstance(error, UserError) and "is memory short?" in str(error)


def test_those_beside_one_that_was_killed_are_done(tmp_path):
    works = [Work(partial(die, tmp_path / "bad", 1), tmp_path / "bad")]
    works += [Work(partial(touch, tmp_path / str(n)), tmp_path / str(n)) for n in range(4)]
    assert run(works, tmp_path) == dict.fromkeys(["bad", "0", "1", "2", "3"])


def test_what_is_stopped_never_begins(tmp_path):
    works = [Work(partial(stop, tmp_path / str(n)), tmp_path / str(n)) for n in range(20)]
    crew = Crew(2, tmp_path)
    crew.add(works)
    with pytest.raises(Stopped):
        for _, error in crew.run():
            assert error is not None
            raise error
    assert len(list(tmp_path.iterdir())) <= 4


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from bertie.crew import Crew, Work
from tests.test_crew import sleep_long

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    crew = Crew(2, folder)
    crew.add(Work(partial(sleep_long, folder / str(n)), folder / str(n)) for n in range(4))
    for _ in crew.run():
        pass
"""


def is_running(folder: Path) -> bool:
    """Whether a process that was begun for this folder is there."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"CREW={folder}".encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(number, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    folder = tmp_path / "made"
    folder.mkdir()
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(folder)],
        env=os.environ | {"CREW": str(folder), "PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(folder.iterdir())) == 2)
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    if number != signal.SIGKILL:
        assert f"stopped by {number.name}" in told
    wait_for(lambda: not is_running(folder))
    assert len(list(folder.iterdir())) == 2


def wait_for(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)
