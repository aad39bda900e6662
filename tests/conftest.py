"""Fixtures of all tests. Real data lie in the folder `shared` beside the checkout, if at all."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("BERTIE_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real text, data sets and checkpoints; without it the test is skipped."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"needs the real data that would lie in {SHARED} (or $BERTIE_SHARED)")
    return SHARED
