"""A line is the mean of its steps, the same after a stop; what people read is short and true."""

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from bertie.checkpoint.state import Checkpoint, Counters
from bertie.errors import UserError
from bertie.train.log import (
    Log,
    describe_left,
    describe_line,
    describe_time,
    describe_with_time,
    keep_until,
    watch,
)


def add_steps(log: Log, steps: range, *, total: int = 100, bad: int = 0) -> None:
    for step in steps:
        counters = Counters(step=step, tokens=10 * step, seconds=2.0 * step)
        log.add(
            counters,
            {"mlm_loss": float(step), "mlm_accuracy": 1.0, "nsp_loss": 6.0},
            {"mlm": step, "nsp": 3, "unused": 0},
            norm=math.nan if step == bad else 0.5,
            rate=0.1,
            progress=step / total,
            is_last=step == total,
        )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_a_line_is_the_sum_over_its_targets(tmp_path: Path) -> None:
    shown: list[Any] = []
    add_steps(Log(tmp_path, every=3, show=shown.append), range(1, 7))
    first, second = lines_of(tmp_path)
    assert (first["step"], second["step"]) == (3, 6)
    assert first["mlm_loss"] == 1 and first["mlm_accuracy"] == 3 / 6  # 1 + 2 + 3 targets
    assert second["mlm_accuracy"] == 3 / 15 and second["nsp_loss"] == 2
    assert second["tokens_per_s"] == 5 and second["tokens"] == 60
    assert shown == [first, second]


def test_where_nothing_was_predicted_there_is_no_loss(tmp_path: Path) -> None:
    """It was a loss of 0."""
    Log(tmp_path, every=1, show=lambda line: None).add(
        Counters(step=1, tokens=10, seconds=1.0),
        {"mlm_loss": 0.0, "mlm_accuracy": 0.0, "nsp_loss": 6.0},
        {"mlm": 0, "nsp": 3},
        norm=0.5,
        rate=0.1,
        progress=0.1,
        is_last=False,
    )
    (line,) = lines_of(tmp_path)
    assert line["nsp_loss"] == 2 and not {"mlm_loss", "mlm_accuracy"} & {*line}


def test_the_share_of_tails_is_the_mean_over_steps_and_is_shown(tmp_path: Path) -> None:
    log = Log(tmp_path, every=2, show=lambda line: None)
    for step, share in ((1, 0.02), (2, 0.05)):
        log.add(
            Counters(step=step, tokens=step, seconds=step),
            {"mlm_loss": 1.0, "filled_share": share},
            {"mlm": 1, "filled": 1},
            norm=1.0,
            rate=0.1,
            progress=0.5,
            is_last=False,
        )
    (line,) = lines_of(tmp_path)
    assert line["filled_share"] == pytest.approx(0.035)
    assert "tails 3.5%" in describe_line(line) and "tails" not in describe_line(LINE)


def test_the_last_step_has_a_line_though_none_is_due(tmp_path: Path) -> None:
    add_steps(Log(tmp_path, every=4, show=lambda line: None), range(1, 7), total=6)
    assert [line["step"] for line in lines_of(tmp_path)] == [4, 6]
    assert lines_of(tmp_path)[-1]["mlm_accuracy"] == 2 / 11


def test_a_skipped_step_is_in_no_mean(tmp_path: Path) -> None:
    for every in (1, 2):
        folder = tmp_path / str(every)
        folder.mkdir()
        add_steps(Log(folder, every=every, show=lambda line: None), range(1, 5), bad=2)
    line = lines_of(tmp_path / "1")[1]
    assert "mlm_loss" not in line and "norm" not in line  # nothing to take a mean of
    assert describe_line(line).startswith("step 2")
    assert lines_of(tmp_path / "2")[0]["mlm_accuracy"] == 1


@pytest.mark.parametrize("stop", range(1, 12))
def test_stopped_within_a_line_is_never_stopped(tmp_path: Path, stop: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    add_steps(Log(whole, every=4, show=lambda line: None), range(1, 13))
    log = Log(broken, every=4, show=lambda line: None)
    add_steps(log, range(1, stop + 1))
    kept = json.loads(json.dumps(log.state()))
    add_steps(log, range(stop + 1, 13))  # and then it was killed
    checkpoint = Checkpoint(
        folder=broken, counters=Counters(step=stop), settings={}, score=None, kept={"log": kept}
    )
    resumed = Log(broken, every=4, show=lambda line: None, resume=checkpoint)
    add_steps(resumed, range(stop + 1, 13))
    assert lines_of(broken) == lines_of(whole)


def test_a_new_run_begins_an_empty_file(tmp_path: Path) -> None:
    add_steps(Log(tmp_path, every=1, show=lambda line: None), range(1, 4))
    Log(tmp_path, every=1, show=lambda line: None)
    assert lines_of(tmp_path) == []


@pytest.mark.parametrize(
    "cut",
    [
        '{"step": 2, "held_out": {"a": 1}',
        '{"st',
        "}",
        '{"step": 2}\n',
        "3",
        "[1]",
        '{"step": "x"}',
        "{}",
    ],
)
def test_lines_that_come_again_or_are_cut_off_are_dropped(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n' + cut, encoding="utf-8")
    keep_until(path, 2)
    assert [line["step"] for line in lines_of(tmp_path)][:2] == [1, 2]
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_first_rank_writes_and_shows(tmp_path: Path) -> None:
    log = Log(tmp_path, every=1, show=lambda line: pytest.fail("shown"), is_silent=True)
    add_steps(log, range(1, 4))
    log.add_held_out(Counters(step=3), {"mask_loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_mfu_is_there_where_the_peak_is_known(tmp_path: Path) -> None:
    log = Log(tmp_path, every=1, show=lambda line: None, flops_per_token=40.0, peak_flops=400.0)
    add_steps(log, range(1, 2))
    assert lines_of(tmp_path)[0]["mfu"] == 5 * 40 / 400
    assert describe_line(lines_of(tmp_path)[0]).endswith("MFU 50%")


# --- TensorBoard ---


def read_board(folder: Path, name: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_tensorboard_shows_the_same_figures(tmp_path: Path) -> None:
    log = Log(tmp_path, every=2, show=lambda line: None, tensorboard=True)
    add_steps(log, range(1, 7))
    log.add_held_out(Counters(step=6), {"mask_loss": 1.5})
    log.board.close()
    for name in ("mlm_loss", "rate", "norm", "tokens_per_s"):
        expected = {line["step"]: line[name] for line in lines_of(tmp_path) if name in line}
        assert read_board(tmp_path, name) == pytest.approx(expected)
    assert read_board(tmp_path, "held_out/mask_loss") == {6: 1.5}


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'bertie\[tensorboard\]'"):
        Log(tmp_path, every=1, show=lambda line: None, tensorboard=True)


# --- on the screen ---

LINE = {
    "step": 1200,
    "tokens": 5,
    "mlm_loss": 2.34567,
    "mlm_accuracy": 0.4567,
    "nsp_loss": 0.5,
    "nsp_accuracy": 0.75,
    "rate": 0.1,
    "norm": 1.0,
    "skipped": 0,
    "progress": 0.25,
    "seconds": 60.0,
    "tokens_per_s": 12345,
}


def test_lines_for_people() -> None:
    assert describe_with_time(LINE) == (
        "step 1,200  mlm loss 2.346  nsp loss 0.500  mlm accuracy 45.7%  nsp accuracy 75.0%  "
        "norm 1.00  12,345 tokens/s  3 min left"
    )
    assert "norm 1.00  skipped 3  12,345" in describe_line({**LINE, "skipped": 3})
    held_out = {"step": 7, "held_out": {"mask_loss": 1.0, "mask_accuracy": 0.5}}
    assert describe_line(held_out) == "step 7  held-out: [MASK] loss 1.000  [MASK] accuracy 50.0%"
    assert describe_with_time({"warning": "x"}) == "warning: x"
    assert describe_with_time({"note": "y"}) == "y"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7100, "118 min"), (90_000, "25 h 00 min")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert describe_time(seconds) == text


def test_the_time_left_is_never_below_nothing() -> None:
    assert describe_left({"progress": 1.01, "seconds": 1000.0}) == "0 s left"
    assert describe_left({"progress": 0.5, "seconds": 50.0}) == "50 s left"
    assert describe_left({"progress": 0.0, "seconds": 50.0}) == ""


def test_without_a_terminal_each_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with watch() as show:
        show({"note": "ready"})
        show(LINE)
    assert capsys.readouterr().err.splitlines() == ["ready", describe_with_time(LINE)]


def test_a_terminal_has_a_bar_and_keeps_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with watch() as show:
        show({"note": "[MASK] ready"})
        show(LINE)
        show({"step": 1200, "held_out": {"mask_loss": 1.0}})
    seen = terminal.getvalue()
    assert "[MASK] ready" in seen and "held-out: [MASK] loss 1.000" in seen
    assert "25%" in seen and "3 min left" in seen and "mlm loss 2.346" in seen
