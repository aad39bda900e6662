"""The report of a study: pairs are of one seed, and what is no evidence is called so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.report.study import (
    Loss,
    Score,
    StudyResults,
    read_best,
    read_losses,
    read_machine,
    write_study,
)
from tests.report.checker import check_page


def score(row: str, seed: int, value: float, task: str = "a") -> Score:
    return Score(row=row, task=task, seed=seed, point=1.0, progress=1.01, value=value)


def loss(row: str, value: float) -> Loss:
    return Loss(row=row, seed=0, kind="mask", value=value, unigram=5.0, tokens=10, seconds=2.5)


MADE = StudyResults(
    title="Which <b> & which?",
    asks="Does it help?",
    rows={"base": "the base", "other": "another & more", "absent": "never run"},
    tasks={"a": "accuracy", "b": "f1"},
    paper={"other": {"a": 81.25}},
    about_paper="some paper",
    points=(1.0,),
    budget="1M tokens",
    seeds=3,
    scores=(
        score("base", 0, 0.5),
        score("base", 1, 0.75),
        score("base", 2, 0.9),
        score("other", 0, 0.625),
        score("other", 1, 0.75),
        score("base", 0, 0.25, "b"),
    ),
    losses=(loss("base", 3.0), loss("other", 4.95)),
    failed={"absent, seed 0": "no memory"},
    missing=("other, seed 2", "base, seed 1, b"),
    machine="a machine & torch 2",
    command="bertie ablate it",
)


def test_differences_are_taken_seed_by_seed() -> None:
    assert MADE.differences("other", "a") == [0.125, 0.0]
    assert MADE.differences("other", "b") == []
    assert MADE.differences("absent", "a") == []


def test_the_table_has_ours_and_the_papers(tmp_path: Path) -> None:
    page = write_study(MADE, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| the base | 3.00 (mask) | 71.67 ± 20.21 | 25.00 (1 of 3 seeds) |" in text
    assert "| another & more | 4.95 (mask) | 68.75 ± 8.84 (2 of 3 seeds) | – |" in text
    assert "| another & more: the paper, another budget | – | (81.2) | – |" in text
    assert "| never run | – | – | – |" in text
    assert "| another & more | +6.25 ± 8.84 | – |" in text
    assert "another & more, seed 0: never left the unigram plateau" in text
    assert "the base, seed 0: never left" not in text
    assert "absent, seed 0: failed, so it is not in the table: no memory" in text
    assert "Not run yet, 2, so not in the table: other, seed 2; base, seed 1, b\n" in text
    assert "On a machine & torch 2." in text
    assert json.loads((tmp_path / "report.json").read_text())["seeds"] == 3
    shown = page.read_text(encoding="utf-8")
    check_page(shown)
    assert "Which &lt;b&gt; &amp; which?" in shown


def test_a_study_of_points_has_them_in_a_table(tmp_path: Path) -> None:
    early = [replace(one, point=0.5, value=one.value / 2) for one in MADE.scores]
    page = write_study(replace(MADE, points=(0.5, 1.0), scores=(*early, *MADE.scores)), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "|  | 50% | 100% |" in text
    assert "| a, the base | 35.83 ± 10.10 | 71.67 ± 20.21 |" in text
    assert "| b, never run | – | – |" in text
    assert "On the way" in page.read_text(encoding="utf-8")
    write_study(MADE, tmp_path)
    assert "On the way" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_what_nobody_has_run_is_to_be_run_and_frozen_models_are_told_apart(tmp_path: Path) -> None:
    write_study(replace(MADE, losses=(), frozen="6 epochs to a rate of 0.002"), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Every row is to have 1M tokens" in text
    assert "Frozen models: a head on their features, 6 epochs to a rate of 0.002." in text


def test_the_same_results_make_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_study(MADE, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_only_what_was_logged_is_read(tmp_path: Path) -> None:
    assert read_losses(tmp_path, row="base", seed=0) is None
    run = tmp_path / "runs" / "peak-1"
    run.mkdir(parents=True)
    lines = [
        {"step": 3, "held_out": {"f1": 0.5}},
        {"step": 6, "held_out": {"f1": 0.75}},
        {"step": 9, "held_out": {"f1": float("nan")}},
        {"step": 9, "task_loss": 1.0},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 12, "held_o'  # cut off by a kill
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert read_best(tmp_path, "f1") == 0.75
    assert read_best(tmp_path, "accuracy") is None
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"step": 2, "tokens": 7, "seconds": 1.5, "held_out": {"lm_loss": 2.5}}),
        encoding="utf-8",
    )
    (tmp_path / "run.json").write_text('{"unigram_entropy": 6.5}', encoding="utf-8")
    found = read_losses(tmp_path, row="left", seed=4)
    assert found is not None
    assert (found.kind, found.value, found.unigram, found.tokens) == ("lm", 2.5, 6.5, 7)
    assert not found.is_plateau


def test_a_loss_that_is_no_number_is_no_evidence() -> None:
    assert loss("base", float("nan")).is_plateau
    assert loss("base", 4.8).is_plateau  # of 5.0: it hardly knows more than frequencies
    assert not loss("base", 4.4).is_plateau


def test_a_curve_stands_where_the_checkpoints_were() -> None:
    scores = (score("base", 0, 0.5), replace(score("base", 1, 0.75), progress=1.03))
    made = replace(MADE, scores=scores)
    assert made.mean_at("base", "a", 1.0) == (1.02, 0.625)
    assert made.mean_at("other", "a", 1.0) is None


@pytest.mark.parametrize(
    ("logged", "kind"),
    [
        ({"random_loss": 3.0, "kept_loss": 0.1, "mlm_loss": 2.0}, "random"),
        ({"mask_loss": 3.0, "random_loss": 4.0, "mlm_loss": 2.0}, "mask"),
        ({"lm_loss": 3.0, "back_loss": 4.0}, "lm"),
    ],
)
def test_losses_are_of_what_is_hardest_to_copy(
    logged: dict[str, float], kind: str, tmp_path: Path
) -> None:
    line = {"step": 2, "tokens": 7, "seconds": 1.5, "held_out": logged}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line), encoding="utf-8")
    (tmp_path / "run.json").write_text('{"unigram_entropy": 6.5}', encoding="utf-8")
    found = read_losses(tmp_path, row="left", seed=4)
    assert found is not None
    assert (found.kind, found.value) == (kind, 3.0)


@pytest.mark.parametrize(
    ("masking", "kind"),
    [({"mask_share": 0.0, "random_share": 0.8}, "random"), ({"mask_share": 0.8}, "mask")],
)
def test_a_random_piece_that_happened_to_be_a_mask_does_not_count(
    masking: dict[str, float], kind: str, tmp_path: Path
) -> None:
    logged = {"mask_loss": 1.5, "random_loss": 4.0, "mlm_loss": 3.9}
    line = {"step": 2, "tokens": 7, "seconds": 1.5, "held_out": logged}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line), encoding="utf-8")
    facts = {
        "unigram_entropy": 6.5,
        "settings": {"data": {"masking": masking}},
        "gpu": "a GPU",
        "versions": {"torch": "2.11"},
    }
    (tmp_path / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    found = read_losses(tmp_path, row="random", seed=0)
    assert found is not None
    assert (found.kind, found.value) == (kind, logged[f"{kind}_loss"])
    assert read_machine(tmp_path) == "a GPU, torch 2.11"
    assert read_machine(tmp_path / "absent") == ""
