"""What is known of a device: its peak by name, and the memory that is really left."""

from pathlib import Path

import pytest
import torch

from bertie.train import hardware
from bertie.train.hardware import (
    find_free_bytes,
    find_peak,
    free_of_group,
    has_fast_bf16,
    time_threads,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),  # not an L4
        ("NVIDIA RTX A1000", None),  # not an A100
        ("some GPU of the future", None),
    ],
)
def test_a_peak_is_known_by_a_whole_word_of_the_name(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert find_peak(CUDA, "bf16") == peak
    assert find_peak(CUDA, "fp32") is None  # the table is of half precision
    assert find_peak(CPU, "bf16") is None


def test_what_the_processor_says_of_bf16() -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.is_file():
        pytest.skip("needs /proc/cpuinfo")
    words = set(flags.read_text(encoding="utf-8").split())
    assert has_fast_bf16() == bool(words & {"avx512_bf16", "amx_tile"})


def test_free_memory_is_what_machine_and_container_leave_and_processes_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "free_of_machine", lambda: 8000)
    monkeypatch.setattr(hardware, "free_of_group", lambda: 6000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert find_free_bytes(CPU) == 6000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert find_free_bytes(CPU) == 1500
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5000, 9000))
    assert find_free_bytes(CUDA) == 5000


def test_this_machine_has_memory() -> None:
    assert 1 << 20 < hardware.free_of_machine() < 1 << 50


@pytest.mark.parametrize(("limit", "free"), [("1000\n", 400), ("max\n", 1 << 62), (None, 1 << 62)])
def test_a_container_may_have_a_limit(tmp_path: Path, limit: str | None, free: int) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("600\n")
    assert free_of_group(tmp_path) == free


@pytest.mark.parametrize(("slower", "taken"), [(1, 3), (3, 1)])
def test_torch_is_left_with_the_threads_that_were_faster(
    monkeypatch: pytest.MonkeyPatch, slower: int, taken: int
) -> None:
    now = 0.0

    def work() -> None:
        nonlocal now
        now += 10.0 if torch.get_num_threads() == slower else 4.0

    monkeypatch.setattr(hardware.time, "perf_counter", lambda: now)
    before = torch.get_num_threads()
    try:
        assert time_threads(work, 3) == {taken: pytest.approx(4.0), slower: pytest.approx(10.0)}
        assert torch.get_num_threads() == taken
    finally:
        torch.set_num_threads(before)
