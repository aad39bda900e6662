"""Who holds a file keeps others out; when it has gone the file is free."""

from multiprocessing import get_context
from pathlib import Path

from bertie.data.draft import held
from bertie.data.locks import take_lock, try_lock


def hold_and_die(path: Path) -> None:
    with path.open("w") as file:
        take_lock(file)


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as one, path.open("w") as two:
        assert try_lock(one) and not try_lock(two)
        one.close()
        assert try_lock(two)


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=hold_and_die, args=(tmp_path / "lock",))
    process.start()
    process.join()
    with held(tmp_path):
        assert (tmp_path / "lock").exists()
