"""GLUE's official files: which column holds what, the metric of each set, and submission files.

A set is known by its folder (`MRPC/dev.tsv`) or by the columns that only it has. MNLI's two halves
share their columns, and the diagnostic set (AX) is answered by a model of MNLI.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertie.errors import UserError

TRUTH = ("0", "1")
ENTAILS = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueSet:
    """One set of GLUE."""

    first: str
    second: str | None = None
    label: str
    labels: tuple[str, ...] = ()  # in the order of the reference code
    kind: Literal["classes", "regression"] = "classes"
    metric: str = "accuracy"
    limits: tuple[float, ...] = ()  # lowest and highest value of a regression
    signature: frozenset[str] = frozenset()  # columns that no other set has


GLUE = {
    "CoLA": GlueSet(first="sentence", label="label", labels=TRUTH, metric="matthews"),
    "SST-2": GlueSet(first="sentence", label="label", labels=TRUTH),
    "MRPC": GlueSet(
        first="#1 String",
        second="#2 String",
        label="Quality",
        labels=TRUTH,
        metric="f1",
        signature=frozenset({"#1 String", "#2 String"}),
    ),
    "STS-B": GlueSet(
        first="sentence1",
        second="sentence2",
        label="score",
        kind="regression",
        metric="pearson",
        limits=(0.0, 5.0),
        signature=frozenset({"old_index", "sentence1", "sentence2"}),
    ),
    "QQP": GlueSet(
        first="question1",
        second="question2",
        label="is_duplicate",
        labels=TRUTH,
        metric="f1",
        signature=frozenset({"question1", "question2"}),
    ),
    "MNLI": GlueSet(
        first="sentence1",
        second="sentence2",
        label="gold_label",
        labels=NLI,
        signature=frozenset({"promptID", "genre", "sentence1", "sentence2"}),
    ),
    "QNLI": GlueSet(
        first="question",
        second="sentence",
        label="label",
        labels=ENTAILS,
        signature=frozenset({"index", "question", "sentence"}),
    ),
    "RTE": GlueSet(first="sentence1", second="sentence2", label="label", labels=ENTAILS),
    "WNLI": GlueSet(first="sentence1", second="sentence2", label="label", labels=TRUTH),
    "AX": GlueSet(first="sentence1", second="sentence2", label="label", labels=NLI),
}
FOLDERS = {name.casefold(): name for name in GLUE} | {"diagnostic": "AX", "sts": "STS-B"}
COLA = {"first": "3", "label": "1"}  # its labelled files have no header: source, label, mark, text


def find_set(path: Path, names: Sequence[str], first_row: Mapping[str, object]) -> str:
    """The name of GLUE's set that a file belongs to; "" if it is none of them."""
    named = find_folder(path)
    if named and find_columns(named, names):
        return named
    is_cola = tuple(names) == ("0", "1", "2", "3") and first_row.get("2") in ("", "*")
    if is_cola and first_row.get("1") in TRUTH:
        return "CoLA"
    found = (n for n, one in GLUE.items() if one.signature and one.signature <= set(names))
    return next(found, "")


def find_folder(path: Path) -> str:
    """The set that the name of a file's folder, or of the file, speaks of."""
    folder = path.absolute().parent.name.casefold().removesuffix("-subset")
    is_diagnostic = path.stem.casefold().startswith("diagnostic")
    return "AX" if is_diagnostic else FOLDERS.get(folder, "")


def find_columns(name: str, names: Sequence[str]) -> dict[str, str]:
    """Role -> column of a set's file; none if the file has others."""
    if name == "CoLA" and tuple(names) == ("0", "1", "2", "3"):
        return COLA
    one = GLUE[name]
    if not {one.first, one.second or one.first} <= set(names):
        return {}
    id = "index" if "index" in names else "id"
    columns = {"first": one.first, "second": one.second or "", "label": one.label, "id": id}
    return {role: column for role, column in columns.items() if column in names}


def submission_name(name: str, path: Path) -> str:
    """What the leaderboard calls the predictions for a test file."""
    if name != "MNLI":
        return f"{name}.tsv"
    return "MNLI-mm.tsv" if "mismatched" in path.stem else "MNLI-m.tsv"


def write_submission(path: Path, ids: Sequence[str], predictions: Sequence[str | float]) -> None:
    """A file as the leaderboard takes it, in the order of the test file."""
    lines = ["index\tprediction"]
    for id, prediction in zip(ids, predictions, strict=True):
        shown = f"{prediction:.3f}" if isinstance(prediction, float) else prediction
        lines.append(f"{id}\t{shown}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_submission(path: Path) -> dict[str, str]:
    """Index -> prediction."""
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if header != "index\tprediction":
        raise UserError(
            f"{path} is not a submission: its first line must be index, tab, prediction"
        )
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        index, tab, prediction = line.partition("\t")
        if not tab or index in found:
            raise UserError(f"{path}, line {number}: not an index of its own, tab, prediction")
        found[index] = prediction
    return found
