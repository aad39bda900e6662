"""Who holds a file keeps others out; when it has gone the file is free."""

from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bertie.data.locks import held, take_lock, try_lock
from bertie.errors import UserError


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
    with (tmp_path / "lock").open("w") as file:
        assert try_lock(file)


def hold_until_asked(folder: Path, told: Connection) -> None:
    with held(folder):
        told.send("held")
        told.recv()


def test_a_folder_is_held_by_one_process_at_a_time_and_nothing_lies_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    ours, theirs = Pipe()
    process = get_context("spawn").Process(target=hold_until_asked, args=(folder, theirs))
    process.start()
    assert ours.recv() == "held"
    with pytest.raises(UserError, match="another process is at work in"), held(folder):
        raise AssertionError("two hold it")
    process.kill()
    process.join()
    with held(folder):
        assert not list(folder.iterdir())
