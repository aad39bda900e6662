"""Fixtures of all tests. Real data lie in the folder `shared` beside the checkout, if at all."""

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("BERTIE_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real text, data sets and checkpoints; without it the test is skipped."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"needs the real data that would lie in {SHARED} (or $BERTIE_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def weights(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a real trained checkpoint by name; a test that cannot have it is skipped."""
    folder = tmp_path_factory.mktemp("weights")

    @cache
    def unpack(name: str) -> str:
        command = [str(shared / "weights" / "get"), name, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{name} cannot be had: {done.stderr.strip()[-200:]}"

    def get(name: str) -> Path:
        package = "rxnfp" if name.startswith("rxnfp") else name
        if problem := unpack(package):
            pytest.skip(problem)
        return folder / name

    return get


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With -v or -s: the largest difference that each test of equality has seen."""
    options = terminalreporter.config.option
    if not options.verbose > 0 and options.capture != "no":
        return
    rows = [
        (report.nodeid.partition("::")[2], value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "largest_difference"
    ]
    if rows:
        terminalreporter.section("largest differences (of the largest value)")
    for test, value in rows:
        terminalreporter.write_line(f"{test:110} {value}")
