"""Awkward texts to ask about, and when two answers are the same."""

from typing import Any

import pytest

from tests.infer.models import SENTENCES

LONG = " ".join(SENTENCES * 4)
TEXTS = [*SENTENCES, "", "Paris", LONG, "[SEP] [MASK]", "\u0000 of", "a 😀 b"]


def close(found: Any, wanted: Any) -> bool:
    """Equal, but for what the last digit of a number says."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return (
        found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted
    )
