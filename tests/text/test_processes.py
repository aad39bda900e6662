"""Processes that share a work end with the one that began them, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.text.processes import handling, in_order, processes

PROGRAM = """
import sys
from pathlib import Path
from bertie.text.processes import processes
from tests.text.test_processes import sleep_long

if __name__ == "__main__":
    with processes(2) as pool:
        for future in [pool.submit(sleep_long, Path(sys.argv[1]) / str(n)) for n in range(2)]:
            future.result()
"""


def sleep_long(path: Path) -> None:
    path.touch()
    time.sleep(100)


def die(number: int) -> int:
    """As when the system kills what takes too much memory."""
    if number:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def is_running(mark: str) -> bool:
    """Whether a process that was begun with this in its environment is there."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def wait_for(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    folder = tmp_path / "made"
    folder.mkdir()
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(folder)],
        env=os.environ | {"WORK": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(folder.iterdir())) == 2)
    run.send_signal(number)  # to the parent alone
    told = run.communicate(timeout=60)[1]
    if number != signal.SIGKILL:
        assert "KeyboardInterrupt" in told
    wait_for(lambda: not is_running(f"WORK={folder}"))


IN_A_LOCK = """
import os, signal, sys
from pathlib import Path
from bertie.text.processes import processes
from tests.text.test_processes import sleep_long

if __name__ == "__main__":
    with processes(2) as pool:
        futures = [pool.submit(sleep_long, Path(sys.argv[1]) / str(n)) for n in range(4)]
        futures[0]._condition.acquire()  # as concurrent.futures.wait does
        os.kill(os.getpid(), int(sys.argv[2]))
        futures[0]._condition.release()
        futures[0].result()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_lock_behind(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(IN_A_LOCK, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(int(number))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode != 0 and "KeyboardInterrupt" in run.stderr


def test_answers_come_in_order_and_little_is_read_ahead() -> None:
    given = iter(range(100))
    with ThreadPoolExecutor(2) as pool:
        answers = in_order(pool, lambda number: number + 1, given, ahead=3)
        assert next(answers) == 1 and next(given) == 4
        assert list(answers) == [n + 1 for n in range(1, 100) if n != 4]


def test_a_killed_process_is_told_in_a_line() -> None:
    with pytest.raises(UserError, match="a worker process died"), processes(1) as pool:
        assert [pool.submit(die, number).result() for number in (0, 1)]


def test_who_handles_the_signal_is_left_to_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, handler)
            with handling(signal.default_int_handler):
                is_same = signal.getsignal(signal.SIGTERM) is handler
                assert is_same == (handler is signal.SIG_IGN)
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
