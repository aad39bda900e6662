"""Fixtures of these tests."""

from pathlib import Path

import pytest

from bertie.checkpoint.model_dir import save_model
from tests.checkpoint.directories import make


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with both heads of pre-training and a vocabulary."""
    (tmp_path / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(37)))
    save_model(make("masked_lm", "next_sentence"), tmp_path / "model", tokenizer_from=tmp_path)
    return tmp_path / "model"
