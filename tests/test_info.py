"""`bertie info`: what is printed is what was counted."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import save_model
from bertie.errors import UserError
from bertie.info import Table, describe, in_units
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig, count_parameters, train_flops

TINY = ModelConfig(
    vocab_size=37, hidden_size=12, num_layers=2, num_heads=3, ffn_size=20, max_positions=16
)


def cell(table: Table, row: str, column: int = -1) -> str:
    return next(cells[column] for cells in table.rows if cells[0] == row)


@pytest.mark.parametrize(
    ("size", "encoder", "with_heads"),
    [("base", "109,482,240", "110,106,428"), ("large", "335,141,888", "336,226,108")],
)
def test_the_published_sizes_are_shown_part_by_part(
    size: str, encoder: str, with_heads: str
) -> None:
    counted = describe(size)[0]
    assert cell(counted, "encoder + pooler") == encoder
    assert cell(counted, "with heads") == with_heads
    assert cell(counted, "feed-forward", 1) == "L·(2H·F + F + H)"
    parts = [row for row in counted.rows if row[1]]
    assert sum(int(row[2].replace(",", "")) for row in parts) == int(with_heads.replace(",", ""))


def test_a_shape_is_shown_like_its_name() -> None:
    named, shape = describe("mini"), describe("4/256/4")
    assert [t.rows for t in named] == [t.rows for t in shape]


def test_work_and_memory_follow_the_batch() -> None:
    _, work, memory = describe("base", batch_size=256, length=512)
    assert work.title == "work at 256 x 512 tokens"
    step = 256 * train_flops(ModelConfig(), length=512)
    assert cell(work, "pre-train a step") == in_units(step, 1000, "")
    assert cell(memory, "weights", 1) == "420 MiB"
    assert cell(memory, "optimizer", 2) == "0 B"
    one, two = (describe("base", batch_size=b)[2] for b in (32, 64))
    assert cell(one, "weights") == cell(two, "weights")
    assert cell(one, "activations") != cell(two, "activations")


def test_a_directory_is_shown_with_its_task(tmp_path: Path) -> None:
    model = Bert(TINY, ("sequence",), num_labels=3)
    card = TaskCard(
        head="sequence", kind="multi-label", labels=("a", "b", "c"), thresholds={"b": 0.25}
    )
    save_model(model, tmp_path / "model", card=card)
    about, counted, _, _ = describe(str(tmp_path / "model"), length=16)
    assert cell(about, "task") == "sequence, multi-label"
    assert cell(about, "3 labels") == "a, b, c"
    assert cell(about, "threshold b") == "0.25"
    total = sum(parameter.numel() for parameter in model.parameters())
    assert cell(counted, "with heads") == f"{total:,}"


def test_an_encoder_alone_is_shown(tmp_path: Path) -> None:
    model = Bert(TINY)
    save_model(model, tmp_path / "model")
    about, counted, _, _ = describe(str(tmp_path / "model"), length=16)
    assert cell(about, "heads") == "none"
    assert cell(counted, "encoder") == f"{sum(p.numel() for p in model.parameters()):,}"


def test_many_labels_are_shown_in_part_and_oddities_are_told(tmp_path: Path) -> None:
    save_model(Bert(TINY, ("token",), num_labels=25), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"id2label": {"0": "O", "1": "B"}, "label2id": {}}))
    about = describe(str(tmp_path / "model"), length=16)[0]
    assert cell(about, "25 labels").endswith("LABEL_19 and 5 more")
    assert "names 2 labels, the weights have 25" in about.notes[0]


def test_what_is_no_model_is_told() -> None:
    for target in ("huge", "nowhere/at/all", "4/256", str(Path(__file__))):
        with pytest.raises(UserError, match=r"not a model|no size"):
            describe(target)
    with pytest.raises(UserError, match="--length 600 is more than the 512 positions"):
        describe("base", length=600)
    with pytest.raises(UserError, match="hidden_size 100 is not a multiple of num_heads 3"):
        describe("2/100/3")


@pytest.mark.parametrize(
    ("number", "base", "shown"),
    [
        (0, 1024, "0 B"),
        (999, 1024, "999 B"),
        (1023, 1024, "1.00 KiB"),
        (10 * 1024**2, 1024, "10.0 MiB"),
        (437_928_960, 1024, "418 MiB"),
        (2.234e12, 1000, "2.23 T"),
        (999_600, 1000, "1.00 M"),
        (3e20, 1000, "300000 P"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(number: float, base: int, shown: str) -> None:
    assert in_units(number, base, "B" if base == 1024 else "") == shown


def test_a_size_is_shown_without_torch() -> None:
    code = (
        "import sys; from bertie.info import describe; describe('base'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_variant_is_shown_with_its_switches_and_formulas(tmp_path: Path) -> None:
    config = replace(TINY, embedding_size=5, share_layers=True, attention="left")
    save_model(Bert(config, ("masked_lm",), has_pooler=True), tmp_path / "model")
    about, counted, work, _ = describe(str(tmp_path / "model"), length=16)
    assert ("attention", "left") in about.rows
    assert ("embedding_size", "5") in about.rows
    assert cell(counted, "pieces", 1) == "V·E"
    assert cell(counted, "with heads") == f"{count_parameters(config, ('masked_lm',)):,}"
    assert cell(work, "encode a token", 1) == "2L(4H² + 2HF) + 2LHN + 2EH"
