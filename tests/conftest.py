"""Fixtures of all tests. Real data lie in the folder `shared` beside the checkout, if at all."""

import os
from collections import Counter
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("BERTIE_SHARED", Path(__file__).parents[2] / "shared"))
COMPARED: Counter[str] = Counter()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real text, data sets and checkpoints; without it the test is skipped."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"needs the real data that would lie in {SHARED} (or $BERTIE_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def compared() -> Counter[str]:
    """What was compared with a reference; the counts are printed at the end."""
    return COMPARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, count in COMPARED.items():
        terminalreporter.write_line(f"compared with the reference: {count:,} {what}")
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"tests skipped for want of data or devices: {skipped}")
