"""What a head is for: written down, derived where it is not, and refused where it contradicts."""

from pathlib import Path
from typing import Any

import pytest

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.errors import UserError
from tests.checkpoint.directories import change_config, make, refuses


@pytest.mark.parametrize(
    "card",
    [
        TaskCard(head="sequence", labels=("no", "yes", "maybe"), thresholds={"yes": 0.25}),
        TaskCard(head="sequence", kind="multi-label", labels=("a", "b", "c")),
        TaskCard(head="token", labels=("O", "B-X", "I-X")),
        TaskCard(head="span", thresholds={"no answer": -1.5}),
        TaskCard(head="choice"),
    ],
    ids=lambda card: f"{card.head} {card.kind}",
)
def test_the_task_is_written_down(card: TaskCard, tmp_path: Path) -> None:
    save_model(make(card.head, num_labels=3), tmp_path / "model", card=card)
    assert open_model(tmp_path / "model").card == card
    if not card.thresholds:  # which config.json has no place for
        (tmp_path / "model" / "task.json").unlink()
        assert open_model(tmp_path / "model").card == card


def test_labels_have_names_even_if_nobody_named_them(tmp_path: Path) -> None:
    save_model(make("token", num_labels=3), tmp_path / "model")
    card = open_model(tmp_path / "model").card
    assert card == TaskCard(head="token", labels=("LABEL_0", "LABEL_1", "LABEL_2"))


def test_a_single_output_without_a_kind_is_a_number(tmp_path: Path) -> None:
    save_model(make("sequence", num_labels=1), tmp_path / "one")
    save_model(make("token", num_labels=1), tmp_path / "two")
    kinds = []
    for name in ("one", "two"):
        card = open_model(tmp_path / name).card
        assert card is not None
        kinds.append(card.kind)
    assert kinds == ["regression", "classes"]


def test_label_counts_that_disagree_are_settled_by_the_weights_and_said(tmp_path: Path) -> None:
    save_model(make("sequence", num_labels=5), tmp_path / "model")
    two = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    change_config(tmp_path / "model", **two, num_labels=5)
    opened = open_model(tmp_path / "model")
    assert opened.model.num_labels == 5
    assert opened.card is not None
    assert opened.card.labels == tuple(f"LABEL_{n}" for n in range(5))
    (note,) = opened.notes
    assert "names 2 labels, the weights have 5: took 5" in note


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"id2label": {"0": "a", "2": "b"}},
            r"the ids of its 2 labels \(id2label\) are not 0 to 1",
        ),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, "and label2id differ"),
        ({"problem_type": "ranking"}, "problem_type is 'ranking'; there are: single_label"),
    ],
)
def test_labels_that_contradict_themselves_are_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_model(make("sequence"), tmp_path / "model")
    change_config(tmp_path / "model", **values)
    refuses(tmp_path / "model", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"head": "sequence", "labels": ["a"]}',
            "task.json names 1 labels; the head sequence has 2",
        ),
        ('{"head": "tagger"}', "task.json: no head 'tagger'"),
        ('{"labels": []}', "does not say which head"),
        ('{"head": "sequence", "colour": 1}', "task.json: no setting colour"),
        ("[]", "task.json holds a list"),
        ("{", "task.json is not valid JSON"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(text: str, message: str, tmp_path: Path) -> None:
    save_model(make("sequence"), tmp_path / "model")
    (tmp_path / "model" / "task.json").write_text(text)
    refuses(tmp_path / "model", message)


def test_a_card_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="about the head token; the model's heads: sequence"):
        save_model(make("sequence"), tmp_path / "model", card=TaskCard(head="token"))
    with pytest.raises(UserError, match="holds one task; this model has the heads sequence, span"):
        save_model(make("sequence", "span"), tmp_path / "model")
    assert not (tmp_path / "model").exists()
