"""What one sees of a run: metrics.jsonl, TensorBoard if wanted, lines or a bar on the screen."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertie.checkpoint.state import Checkpoint, Counters
from bertie.errors import UserError

METRICS = "metrics.jsonl"
Show = Callable[[Mapping[str, Any]], None]


class Log:
    """Means over `every` steps, to a file and to `show`; a rank that is not the first is silent."""

    def __init__(
        self,
        folder: Path,
        *,
        every: int,
        show: Show,
        resume: Checkpoint | None = None,
        is_silent: bool = False,
        flops_per_token: float = 0.0,
        peak_flops: float | None = None,  # of all devices together, a second; none: not known
        tensorboard: bool = False,
    ) -> None:
        self.path = folder / METRICS
        self.every, self.show, self.is_silent = every, show, is_silent
        self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
        self.last = Counters()  # when a line was written last
        self.totals: dict[str, float] = {}
        self.num_targets: dict[str, float] = {}
        if resume is not None:
            state = resume.kept["log"]
            self.totals, self.num_targets = state["totals"], state["num_targets"]
            self.last = Counters(**state["last"])
        if not is_silent:
            keep_until(self.path, self.last.step if resume is None else resume.counters.step)
        first = 0 if resume is None else resume.counters.step + 1
        self.board = open_board(folder, first) if tensorboard and not is_silent else None

    def state(self) -> dict[str, Any]:
        """What the next line is the mean of, so far."""
        return {
            "totals": self.totals,
            "num_targets": self.num_targets,
            "last": asdict(self.last),
        }

    def add(
        self,
        counters: Counters,
        sums: Mapping[str, float],
        num_targets: Mapping[str, float],
        *,
        norm: float,
        rate: float,
        progress: float,
        is_last: bool,
    ) -> None:
        """Counts one step in; writes a line where one is due, and with the last step.

        A step that was skipped, as its norm is not finite, is no part of the means.
        """
        if math.isfinite(norm):
            for name, total in sums.items():
                self.totals[name] = self.totals.get(name, 0.0) + total
            for term in sorted({name.rpartition("_")[0] for name in sums}):
                self.num_targets[term] = self.num_targets.get(term, 0) + num_targets[term]
        if counters.step % self.every and not is_last:
            return
        means = {
            name: total / count
            for name, total in self.totals.items()
            if (count := self.num_targets[name.rpartition("_")[0]])  # else nothing was predicted
        }
        tokens_per_s = self.find_speed(counters)
        line = {"step": counters.step, "tokens": counters.tokens, **means}
        line |= {"rate": rate, "skipped": counters.skipped, "progress": progress}
        if math.isfinite(norm):
            line["norm"] = norm  # JSON knows no other numbers
        line |= {"seconds": round(counters.seconds, 3), "tokens_per_s": round(tokens_per_s)}
        if self.peak_flops:
            line["mfu"] = round(tokens_per_s * self.flops_per_token / self.peak_flops, 4)
        self.write(line)
        self.last, self.totals, self.num_targets = counters, {}, {}

    def find_speed(self, counters: Counters) -> float:
        elapsed_s = max(1e-9, counters.seconds - self.last.seconds)
        return (counters.tokens - self.last.tokens) / elapsed_s

    def add_held_out(self, counters: Counters, figures: Mapping[str, float]) -> None:
        """A line of its own for an evaluation."""
        self.write(
            {
                "step": counters.step,
                "tokens": counters.tokens,
                "seconds": round(counters.seconds, 3),
                "held_out": dict(figures),
            }
        )

    def tell(self, note: str) -> None:
        """Shows a note, which is no part of the metrics."""
        if not self.is_silent:
            self.show({"note": note})

    def write(self, line: Mapping[str, Any]) -> None:
        if self.is_silent:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.board is not None:
            values = {k: v for k, v in line.items() if not isinstance(v, dict)}
            values |= {f"held_out/{k}": v for k, v in line.get("held_out", {}).items()}
            for name, value in values.items():
                self.board.add_scalar(name, value, line["step"])
            self.board.flush()
        self.show(line)


def keep_until(path: Path, step: int) -> None:
    """Drops the lines that a resumed run will write again."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if is_until(line, step)]
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    draft.replace(path)


def is_until(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, TypeError, KeyError):  # cut off, where a disk was full; or none of ours
        return False


def read_held_out(folder: Path, step: int) -> dict[str, float]:
    """The figures that were logged after a step; none if there are none."""
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    found = [line for line in map(json.loads, lines) if "held_out" in line and line["step"] == step]
    return dict(found[-1]["held_out"]) if found else {}


def open_board(folder: Path, first_step: int) -> Any:
    """What it holds of `first_step` and later is hidden: it comes again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "train.tensorboard needs the package tensorboard: pip install 'bertie[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)


# --- on the screen ---


def describe_line(line: Mapping[str, Any]) -> str:
    """A line of metrics, a note before the start or a warning, for people."""
    if "warning" in line:
        return f"warning: {line['warning']}"
    if "note" in line:
        return str(line["note"])
    if "held_out" in line:
        return f"step {line['step']:,}  held-out: {describe_figures(line['held_out'])}"
    means = {k: v for k, v in line.items() if k.endswith(("_loss", "_accuracy"))}
    parts = [f"step {line['step']:,}", describe_figures(means)]
    if "norm" in line:
        parts.append(f"norm {line['norm']:.2f}")
    if line["skipped"]:
        parts.append(f"skipped {line['skipped']:,}")
    parts.append(f"{line['tokens_per_s']:,} tokens/s")
    if "mfu" in line:
        parts.append(f"MFU {line['mfu']:.0%}")
    if "filled_share" in line:
        parts.append(f"tails {line['filled_share']:.1%}")
    return "  ".join(parts)


def describe_figures(figures: Mapping[str, Any]) -> str:
    """Losses, then accuracies, then what other scores there are."""
    losses = [f"{describe_name(k)} {v:.3f}" for k, v in figures.items() if k.endswith("_loss")]
    shares = [f"{describe_name(k)} {v:.1%}" for k, v in figures.items() if k.endswith("_accuracy")]
    others = [
        f"{describe_name(k)} {v:.4f}"
        for k, v in figures.items()
        if not k.endswith(("_loss", "_accuracy"))
    ]
    return "  ".join(losses + shares + others)


def describe_name(name: str) -> str:
    return name.replace("mask_", "[MASK] ").replace("_", " ")


def describe_time(seconds: float) -> str:
    """
    >>> describe_time(7384)
    '2 h 03 min'
    """
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


@contextmanager
def watch() -> Iterator[Show]:
    """Shows a run's lines on stderr: a bar on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda line: print(describe_with_time(line), file=sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:.0f}%"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("starting", total=1.0, left="")

        def show(line: Mapping[str, Any]) -> None:
            if "step" not in line or "held_out" in line:
                bars.console.print(describe_line(line), markup=False, highlight=False)
            else:
                left = describe_left(line)
                bars.update(
                    task, completed=line["progress"], description=describe_line(line), left=left
                )

        yield show


def describe_with_time(line: Mapping[str, Any]) -> str:
    left = describe_left(line) if "progress" in line else ""
    return f"{describe_line(line)}  {left}".rstrip()


def describe_left(line: Mapping[str, Any]) -> str:
    """The time left if it goes on as it did so far."""
    progress = line["progress"]
    if not progress:
        return ""
    return f"{describe_time(line['seconds'] * max(0.0, 1 - progress) / progress)} left"
