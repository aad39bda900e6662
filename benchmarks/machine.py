"""What a result was measured on, and where results go."""

import json
import os
import platform
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe(*packages: str) -> dict[str, Any]:
    """Processor, cores, memory, versions."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.is_file() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def save(name: str, machine: dict[str, Any], result: Any) -> Path:
    """Writes results/<name>-<date>-<machine>.json."""
    short = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    path = RESULTS / f"{name}-{date.today()}-{short}-{machine['cores']}core.json"
    path.write_text(json.dumps({"machine": machine, "result": result}, indent=2) + "\n", "utf-8")
    return path
