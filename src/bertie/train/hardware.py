"""What a device can do: memory left, operations a second, threads that help."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

# bf16 products a second without sparsity, from the makers' data sheets, by a word of the name.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "4090": 165e12,
    "3090": 71e12,
}


def find_peak(device: torch.device, precision: str) -> float | None:
    """Operations a second of the device at half precision; none: not known, or not comparable."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((PEAKS[word] for word in re.split(r"[\s-]+", name) if word in PEAKS), None)


def has_fast_bf16() -> bool:
    """Whether the processor multiplies bf16 by itself; others do it in many steps, slowly."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def find_free_bytes(device: torch.device) -> int:
    """Memory that this process may still take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    share = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(free_of_machine(), free_of_group()) // share


def free_of_machine() -> int:
    path = Path("/proc/meminfo")
    if path.is_file():
        words = path.read_text(encoding="utf-8").split()
        return int(words[words.index("MemAvailable:") + 1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # macOS


def free_of_group(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's limit leaves."""
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.is_file() or not limit.read_text(encoding="utf-8").strip().isdigit():
        return 1 << 62
    return int(limit.read_text(encoding="utf-8")) - int(used.read_text(encoding="utf-8"))


def time_threads(work: Callable[[], object], most: int, rounds: int = 3) -> dict[int, float]:
    """Seconds that `work` takes with one thread and with `most`; torch is left with the faster.

    Threads wait for each other after every product: two were ten times slower than one on two
    cores that others used too.
    """
    seconds = dict.fromkeys((1, most), 0.0)
    work()  # the first time is never like the others
    for _ in range(rounds):  # in turn, so that both see the same neighbours
        for threads in seconds:
            torch.set_num_threads(threads)
            started_at = time.perf_counter()
            work()
            seconds[threads] += (time.perf_counter() - started_at) / rounds
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))
    return seconds
