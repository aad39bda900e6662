"""What the model that ships takes: bytes on disk and in the wheel, time to open, memory."""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine

ROOT = Path(__file__).parents[1]
OPENING = """
import re, sys, time
from pathlib import Path
import torch
from bertie.infer.engine import Engine
def peak_kb():  # of this process: getrusage would tell the peak of the one that started it
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before_kb = peak_kb()
started_at = time.perf_counter()
engine = Engine.load(sys.argv[1], device="cpu", show=False)
opened_s = time.perf_counter() - started_at
engine.fill("Paris is the [MASK] of France.")
filled_s = time.perf_counter() - started_at
after_kb = peak_kb()
memory_mb = (after_kb - before_kb) / 1e3, after_kb / 1e3
print(opened_s, filled_s, *memory_mb, torch.get_num_threads())
"""


def measure_size(model: Path) -> dict[str, Any]:
    """Bytes on disk and in the wheel; seconds and memory of opening it on the CPU."""
    said = [
        subprocess.run(
            [sys.executable, "-c", OPENING, str(model)], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    best = min((tuple(map(float, words)) for words in said), key=lambda figures: figures[0])
    wheel_bytes = build_wheel()
    return {
        "model_bytes": sum(path.stat().st_size for path in model.rglob("*") if path.is_file()),
        **({} if wheel_bytes is None else {"wheel_bytes": wheel_bytes}),
        "open_s": best[0],
        "first_answer_s": best[1],
        "model_memory_mb": best[2],
        "process_memory_mb": best[3],
        "threads": round(best[4]),
        "processor": machine.describe()["processor"],
    }


def build_wheel() -> int | None:
    """None where no wheel can be built."""
    with TemporaryDirectory() as folder:  # of a copy: a build leaves files behind
        copy = Path(folder) / "bertie"
        shutil.copytree(ROOT / "src", copy / "src")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, copy / name)
        words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        command = [sys.executable, *words, "--wheel-dir", folder, str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            print(f"no wheel: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        return found[0].stat().st_size
