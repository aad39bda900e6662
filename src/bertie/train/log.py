"""What one sees of a run: a line of metrics.jsonl every few steps, and the same on the screen."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bertie.checkpoint.state import Counters

METRICS = "metrics.jsonl"


class Log:
    """Means over `every` steps, to a file and to `show`."""

    def __init__(
        self,
        folder: Path,
        *,
        every: int,
        begin: Counters,
        show: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.path = folder / METRICS
        self.every = every
        self.show = show
        self.last = begin
        self.totals: dict[str, Tensor] = {}
        self.num_targets: dict[str, float] = {}
        keep_until(self.path, begin.step)

    def add(
        self,
        counters: Counters,
        sums: Mapping[str, tuple[Tensor, Tensor]],
        num_targets: Mapping[str, float],
        *,
        norm: float,
        rate: float,
    ) -> None:
        """Counts one step in; writes a line where one is due."""
        for name, (total, right) in sums.items():
            self.totals[f"{name}_loss"] = self.totals.get(f"{name}_loss", 0) + total
            self.totals[f"{name}_accuracy"] = self.totals.get(f"{name}_accuracy", 0) + right
            self.num_targets[name] = self.num_targets.get(name, 0) + num_targets[name]
        if counters.step % self.every:
            return
        elapsed_s = max(1e-9, counters.seconds - self.last.seconds)
        means = {
            name: float(total) / max(1, self.num_targets[name.rpartition("_")[0]])
            for name, total in self.totals.items()
        }
        line = {"step": counters.step, "tokens": counters.tokens, **means}
        line |= {"rate": rate, "norm": norm, "skipped": counters.skipped}
        line |= {
            "seconds": round(counters.seconds, 3),
            "tokens_per_s": round((counters.tokens - self.last.tokens) / elapsed_s),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.show(line)
        self.last, self.totals, self.num_targets = counters, {}, {}


def keep_until(path: Path, step: int) -> None:
    """Drops the lines that a resumed run will write again."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
