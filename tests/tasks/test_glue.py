"""GLUE: every set in its official shape, its labels and metric, and the leaderboard's files."""

from pathlib import Path

import pytest

from bertie.tasks.classify import Classify
from bertie.tasks.glue import GLUE, submission_name, write_submission

NLI = "index|promptID|pairID|genre|sentence1_parse|sentence2_parse|sentence1|sentence2"
STS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
MRPC = "#1 ID|#2 ID|#1 String|#2 String"
PAIR = "index|sentence1|sentence2"
OFFICIAL = {  # metric, header and rows of a labelled file and of a test file; | stands for a tab
    "CoLA": ("matthews", ['a|1||One "two.', "b|0|*|Two."], ["index|sentence", "0|Three."]),
    "SST-2": ("accuracy", ["sentence|label", 'a "b |1', "c |0"], ["index|sentence", "0|d"]),
    "MRPC": (
        "f1",
        [f"\ufeffQuality|{MRPC}", '1|7|8|" a|b', "0|9|6|c|d"],
        [f"index|{MRPC}", "0|1|2|a|b"],
    ),
    "STS-B": (
        "pearson",
        [f"{STS}|score", "0|g|f|12|01|n|n|a|b|2.5", "1|g|f|12|02|n|n|c|d|5"],
        [STS, "0|g|f|12|01|n|n|a|b"],
    ),
    "QQP": (
        "f1",
        ["id|qid1|qid2|question1|question2|is_duplicate", '5|1|2|a"|b|0', "6|3|4|c|d|1"],
        ["id|question1|question2", "0|a|b"],
    ),
    "MNLI": (
        "accuracy",
        [
            f"{NLI}|label1|gold_label",
            "0|1|1n|f|(|(|a|b|neutral|neutral",
            "1|2|2e|f|(|(|c|d|entailment|-",
            "2|3|3e|f|(|(|e|f|entailment|entailment",
        ],
        [NLI, "0|1|1n|f|(|(|a|b"],
    ),
    "QNLI": (
        "accuracy",
        ["index|question|sentence|label", "0|a?|b|entailment", "1|c?|d|not_entailment"],
        ["index|question|sentence", "0|a|b"],
    ),
    "RTE": (
        "accuracy",
        [f"{PAIR}|label", "0|a|b|not_entailment", "1|c|d|entailment"],
        [PAIR, "0|a|b"],
    ),
    "WNLI": ("accuracy", [f"{PAIR}|label", "0|a|b|1", "1|c|d|0"], [PAIR, "0|a|b"]),
}


def lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows).replace("|", "\t")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", OFFICIAL)
def test_each_set_is_known_by_its_folder(tmp_path: Path, name: str) -> None:
    metric, labelled, test = OFFICIAL[name]
    path = write(tmp_path / name / "train.tsv", lines(labelled))
    train = Classify().read(path, needs_labels=True)
    assert train.benchmark == name and len(train.examples) == 2
    assert all((e.second is None) == (name in ("CoLA", "SST-2")) for e in train.examples)
    task = Classify().settle(train)
    assert (task.metric, task.labels) == (metric, GLUE[name].labels)
    assert task.kind == GLUE[name].kind
    assert task.positive == (GLUE[name].labels[-1] if len(GLUE[name].labels) == 2 else "")
    unlabelled = task.read(write(tmp_path / name / "test.tsv", lines(test)))
    assert not unlabelled.is_labelled and [e.id for e in unlabelled.examples] == ["0"]


@pytest.mark.parametrize("name", ["MRPC", "STS-B", "QQP", "MNLI", "QNLI", "CoLA"])
def test_most_are_known_by_their_columns_alone(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "any" / "x.tsv", lines(OFFICIAL[name][1]))
    assert Classify().read(path).benchmark == name


def test_quotes_are_letters(tmp_path: Path) -> None:
    path = write(tmp_path / "SST-2" / "dev.tsv", 'sentence\tlabel\n"all of it"\t1\n"b\t0\n')
    assert [e.first for e in Classify().read(path).examples] == ['"all of it"', '"b']


def test_rows_without_agreement_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "MNLI" / "dev_matched.tsv", lines(OFFICIAL["MNLI"][1]))
    data = Classify().read(path)
    assert data.problems.counts == {"no gold label (-)": 1}


def test_a_submission_keeps_rows_without_text(tmp_path: Path) -> None:
    path = write(tmp_path / "QQP" / "test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tc\t\n")
    assert len(Classify().read(path).examples) == 2


@pytest.mark.parametrize("predictions", [["entailment", "neutral"], [0.125, 5.0], ["0", "1"]])
def test_a_submission_is_lines_of_index_and_prediction(
    tmp_path: Path, predictions: list[str | float]
) -> None:
    path = tmp_path / "X.tsv"
    write_submission(path, ["0", "1"], predictions)
    one, two = (f"{p:.3f}" if isinstance(p, float) else p for p in predictions)
    assert path.read_text() == f"index\tprediction\n0\t{one}\n1\t{two}\n"


def test_submissions_have_the_leaderboards_names() -> None:
    assert submission_name("MNLI", Path("test_matched.tsv")) == "MNLI-m.tsv"
    assert submission_name("MNLI", Path("test_mismatched.tsv")) == "MNLI-mm.tsv"
    assert submission_name("AX", Path("diagnostic.tsv")) == "AX.tsv"


def test_the_diagnostic_set_is_read_by_a_model_of_mnli(tmp_path: Path) -> None:
    path = write(tmp_path / "diagnostic.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    assert Classify(kind="classes", labels=GLUE["MNLI"].labels).read(path).benchmark == "AX"
