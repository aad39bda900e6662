"""A tiny model to fine-tune, tiny files of every task with something to learn, and tiny runs."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bertie.checkpoint.model_dir import save_model
from bertie.config import read_recipe
from bertie.finetune import Finetuned, finetune
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.text.files import TokenizerConfig, write_tokenizer
from bertie.tuning import FinetuneRecipe
from tests.train.runs import metrics

NAMES, PLACES = ("ann", "bob", "cleo"), ("paris", "rome", "oslo")
THINGS = ("cat", "dog", "film", "sea")
WORDS = ("the", "a", "is", "in", "sleeps", "runs", "who", "where", "good", "bad", ".", "?", "##s")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *NAMES, *PLACES, *THINGS]
FAST = (
    "optim.peak=5e-3",
    "tune.batch_size=5",  # no divisor of the number of examples
    "train.budget=24 epochs",
    "train.evaluate_every=24",
    "train.log_every=3",
    "train.device=cpu",
)
EACH_EPOCH = "train.evaluate_every=0"
TASKS = ("classify", "tag", "span", "choice")


def make_model(
    folder: Path,
    *,
    heads: Sequence[str] = ("masked_lm", "next_sentence"),
    dropout: float = 0.1,
    max_positions: int = 48,
    num_layers: int = 2,
    **switches: Any,
) -> Path:
    """A model directory with a vocabulary made by hand."""
    config = TokenizerConfig(max_length=max_positions)
    write_tokenizer(folder / "tokenizer", PIECES, config)
    shape = ModelConfig(
        vocab_size=len(PIECES),
        hidden_size=24,
        num_layers=num_layers,
        num_heads=3,
        ffn_size=40,
        max_positions=max_positions,
        dropout=dropout,
        attention_dropout=dropout,
        init_std=0.1,
        **switches,
    )
    model = Bert(shape, heads, generator=torch.Generator().manual_seed(7))
    save_model(model, folder / "model", tokenizer_from=folder / "tokenizer")
    return folder / "model"


# --- files ---


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_classes(path: Path, count: int = 12, first: int = 0) -> Path:
    """Good or bad; every text is another."""
    rows = [
        (f"the {THINGS[n % 4]} in {PLACES[n % 3]} is {word}" + " ." * (n // 12), word)
        for n, word in ((n, ("good", "bad")[n % 5 % 2]) for n in range(first, first + count))
    ]
    return write_csv(path, ("text", "label"), rows)


def write_tags(path: Path, count: int = 12) -> Path:
    """People and places, in documents of five sentences."""
    lines = []
    for n in range(count):
        if n % 5 == 0:
            lines += ["-DOCSTART- -X- O", ""]
        words = ("the", THINGS[n % 4], "in", PLACES[n % 3], "sleeps", NAMES[n % 2], ".")
        tags = ("O", "O", "O", "B-LOC", "O", "B-PER", "O")
        lines += [f"{word} X {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_words(path: Path) -> Path:
    """Parts of speech: tags that make no spans."""
    kinds = {"the": "DET", "sleeps": "VERB", ".": "MARK"}
    sentences = [["the", thing, "sleeps", "."] for thing in THINGS]
    blocks = ["\n".join(f"{w} {kinds.get(w, 'NOUN')}" for w in words) for words in sentences]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def write_questions(path: Path, count: int = 8, *, unanswerable: bool = False) -> Path:
    """Where somebody sleeps; who runs is not said."""
    articles = []
    for n in range(count):
        name, place = NAMES[n % 3], PLACES[n % 2]
        context = f"the {THINGS[n % 4]} is {'.' * (n // 4)} in {place} . {name} sleeps ."
        answer = {"text": place, "answer_start": context.index(place)}
        where = {"id": f"{n}-where", "question": "where ?", "answers": [answer]}
        qas: list[dict[str, Any]] = [{**where, "is_impossible": False}]
        if unanswerable:
            nothing = {"id": f"{n}-none", "question": "who runs ?", "answers": []}
            qas.append({**nothing, "is_impossible": True})
        articles.append({"title": str(n), "paragraphs": [{"context": context, "qas": qas}]})
    path.write_text(json.dumps({"version": "2.0", "data": articles}), encoding="utf-8")
    return path


def write_choices(path: Path, count: int = 10) -> Path:
    """The good one of three; in SWAG's columns."""
    rows = []
    for n in range(count):
        options = [f"bad {THINGS[(n + k) % 4]}" for k in range(3)]
        options[n % 3] = f"good {THINGS[n % 4]}"
        rows.append((f"{NAMES[n % 3]} in {PLACES[n % 2]}", "is", *options, n % 3))
    return write_csv(path, ("sent1", "sent2", "ending0", "ending1", "ending2", "label"), rows)


WRITERS = {
    "classify": (write_classes, "set.csv"),
    "tag": (write_tags, "set.conll"),
    "span": (write_questions, "set.json"),
    "choice": (write_choices, "set.csv"),
}


def write_task(task: str, folder: Path) -> Path:
    write, name = WRITERS[task]
    return write(folder / name)  # type: ignore[operator, no-any-return]


# --- runs ---


def recipe(task: str, *sets: str, **paths: Path | None) -> FinetuneRecipe:
    """`paths` are model, out, train, dev."""
    places = {"model": "model", "out": "out", "train": "data.train", "dev": "data.dev"}
    named = [f"{places[name]}='{path}'" for name, path in paths.items() if path is not None]
    return read_recipe(FinetuneRecipe, None, [f"task.name={task}", *FAST, *named, *sets])


def tune(task: str, *sets: str, show: Any = lambda line: None, **paths: Path | None) -> Finetuned:
    return finetune(recipe(task, *sets, **paths), command=["bertie", "finetune"], show=show)


def only_run(out: Path) -> Path:
    (run,) = (out / "runs").iterdir()
    return run


def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def check_same_weights(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name


def check_same_tuning(one: Path, two: Path) -> None:
    """Model, lines and scores of two fine-tunings are the same to the bit."""
    check_same_weights(one / "model", two / "model")
    assert (one / "model" / "task.json").read_bytes() == (two / "model" / "task.json").read_bytes()
    runs = sorted(path.name for path in (one / "runs").iterdir())
    assert runs == sorted(path.name for path in (two / "runs").iterdir())
    for name in runs:
        assert metrics(one / "runs" / name) == metrics(two / "runs" / name)
        first, second = (read_result(folder / "runs" / name) for folder in (one, two))
        assert first == second


def read_result(run: Path) -> dict[str, Any]:
    values = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return {name: value for name, value in values.items() if name != "seconds"}
