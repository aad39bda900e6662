"""A head comes back as it was; what is no head, or damaged, is named."""

import json
from pathlib import Path

import pytest
import torch

import bertie
from bertie.checkpoint.card import TaskCard, read_card
from bertie.checkpoint.head_dir import HeadRecord, is_head, open_head, read_head, save_head
from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from tests.model.test_feature_head import VECTORS, make_head, make_shape, run

RECORD = HeadRecord(shape=make_shape(), layers=(3, 4, 5, 6), model="m", model_sha256="0" * 64)
CARD = TaskCard(head="token", labels=("O", "B-A", "I-A"), task="tag")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_head(make_head(RECORD.shape).state_dict(), tmp_path / "head", record=RECORD, card=CARD)
    return tmp_path / "head"


def test_a_head_comes_back(folder: Path) -> None:
    head = open_head(folder, lambda ids: VECTORS[ids])
    expected = run(make_head(RECORD.shape), [0, 2])
    assert all(map(torch.equal, run(head, [0, 2]), expected))
    assert read_head(folder) == RECORD and read_card(folder) == CARD and is_head(folder)
    assert all(parameter.requires_grad for parameter in head.parameters()) and not head.training


def test_a_head_is_no_whole_model_and_says_what_it_is(folder: Path) -> None:
    wanted = r"head is a head on the features of m, .* bertie evaluate .*head --data STORE"
    with pytest.raises(UserError, match=wanted):
        open_model(folder)
    with pytest.raises(UserError, match=wanted):
        bertie.load(folder)


def test_an_older_one_is_replaced(folder: Path) -> None:
    weights = make_head(RECORD.shape, seed=9).state_dict()
    save_head(weights, folder, record=RECORD, card=CARD)
    found = open_head(folder, lambda ids: VECTORS[ids]).state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())
    assert [path.name for path in folder.parent.iterdir()] == ["head"]


@pytest.mark.parametrize("content", [None, b"", b"x" * 100])
def test_damaged_weights_are_named(folder: Path, content: bytes | None) -> None:
    path = folder / "head.safetensors"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=r"head.safetensors does not hold the weights"):
        open_head(folder, lambda ids: VECTORS[ids])


@pytest.mark.parametrize(
    "change", [{"layers": "x"}, {"shape": {"kind": "gru"}}, {"surplus": 1}, {"shape": {}}]
)
def test_a_strange_record_is_named(folder: Path, change: dict[str, object]) -> None:
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"head.json is no head's record"):
        read_head(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    values = json.loads((folder / "head.json").read_text())
    values["shape"]["hidden_size"] = 6
    (folder / "head.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"does not hold the weights of its head"):
        open_head(folder, lambda ids: VECTORS[ids])
