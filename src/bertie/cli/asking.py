"""The verbs that use a model: fill, predict, embed, similar."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertie.cli.show import (
    may_be_interrupted,
    print_json,
    read_lines,
    show_filled,
    show_table,
)
from bertie.cli.tuning import Sets, SkipBad
from bertie.embedded import find_model
from bertie.errors import UserError

if TYPE_CHECKING:
    from bertie.data.blocks import Problems
    from bertie.infer.embed import Pooling

Format = Annotated[
    str | None,
    typer.Option(help="text, csv, tsv, jsonl or parquet, where the suffix does not say."),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU where there is one.")]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, int8 (CPU) or fp16 (GPU): the lower, the faster.")
]
Column = Annotated[str | None, typer.Option(help="The column of the texts, where it is unclear.")]


def take_model(words: Sequence[str], num_others: int, others: str) -> tuple[Path, list[str]]:
    """The model directory before the other words, or the embedded one where there are no more.

    >>> take_model(["my_run/model", "lines.txt"], 1, "a file")
    (PosixPath('my_run/model'), ['lines.txt'])
    """
    is_model_alone = len(words) == num_others > 1 and (Path(words[0]) / "config.json").is_file()
    if len(words) not in (num_others, num_others + 1) or is_model_alone:
        raise UserError(
            f"give {others}, and before that a model directory if it is not the one that ships; "
            f"found {len(words)} words"
        )
    named = words[0] if len(words) > num_others else None
    return find_model(named), list(words[-num_others:])


@contextmanager
def told_in_lines() -> Iterator[None]:
    """Warnings, such as of texts that were cut off, as plain lines on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"bertie: {message}", file=sys.stderr)
        yield


def tell_problems(problems: "Problems") -> None:
    """What could not be read as it is, on stderr: stdout is for answers."""
    for what, count in problems.counts.items():
        places = "; ".join(problems.places[what])
        print(f"bertie: {count:,} x {what} ({places})", file=sys.stderr)


def fill(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT...",
            help="Texts with [MASK]; - for lines of stdin. Before them, a model directory, if it "
            "is not the model that ships with bertie.",
        ),
    ],
    top: Annotated[int, typer.Option(help="How many pieces for each mask.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
    device: Device = None,
    precision: Precision = "fp32",
) -> None:
    """Tell what a [MASK] stands for: the best pieces, and how probable they are.

    If a text has several masks, each is filled on its own while the others stay masks. A text that
    is longer than the model is read in a window around each mask. "[SEP]" and the like are text.
    Of several words the first is the model, unless it has a [MASK] itself. Blank lines of stdin are
    left out.

    ```
    bertie fill "Paris is the [MASK] of France."
    bertie fill my_run/model "The [MASK] is [MASK]." --top 10 --json
    bertie fill my_run/model - < sentences.txt    # one on each line
    ```
    """
    from bertie import load
    from bertie.infer.arrivals import as_they_come

    is_named = len(words) > 1 and "[MASK]" not in words[0] and words[0] != "-"
    model, texts = take_model(words, len(words) - is_named, "a text")
    lines = (line for line in read_lines(Path("-")) if line.strip())
    engine = load(model, device=device, precision=precision)
    asked = as_they_come(lines) if texts == ["-"] else texts
    for filled in engine.fill_verb(top).each(asked):
        if as_json:
            print_json(filled.to_json())
        else:
            show_filled(filled)


@told_in_lines()
def predict(
    model: Annotated[Path, typer.Argument(help="A fine-tuned model directory.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="Lines of text, .csv, .tsv, .jsonl, .parquet, or a file of the model's task "
            "(CoNLL columns, SQuAD JSON); - for stdin."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="A file to write, .jsonl; stdout without it.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="text, csv, tsv, jsonl, parquet, conll, squad or cmrc, where it is unclear."
        ),
    ] = None,
    skip_bad: SkipBad = False,
    sets: Sets = None,
    device: Device = None,
    precision: Precision = "fp32",
) -> None:
    """Answer every line or row of a file with a fine-tuned model: a JSON object each, in order.

    What is answered follows from the model: classes of texts or pairs, tags of words, answers to
    questions, choices. Columns are those of its training, or guessed;
    `--set task.columns.first=NAME` names one. Files may be larger than memory, and long texts are
    read in windows. Lines from stdin are answered as they come. With --out, the same command goes
    on if it was stopped; stdin and pipes begin anew.

    ```
    bertie predict sentiment/model reviews.txt
    bertie predict ner/model articles.parquet --out tagged.jsonl
    bertie predict qa/model questions.jsonl --set task.columns.context=page
    zcat reviews.csv.gz | bertie predict sentiment/model - --format csv | head
    ```
    """
    from bertie import load
    from bertie.infer.arrivals import as_they_come
    from bertie.infer.file_examples import find_format, read_examples
    from bertie.infer.predict import answer_lines, draft_path, write_lines
    from bertie.infer.progress import watch
    from bertie.infer.rows import estimate_rows, is_stream
    from bertie.infer.task_of import change
    from bertie.tasks.task import Rejects

    engine = load(model, device=device, precision=precision)
    if engine.task is None:
        raise UserError(
            f"{model} was not fine-tuned, so there is nothing to predict; bertie fill fills its "
            "masks, bertie embed gives vectors, bertie finetune makes it fit for a task"
        )
    task = change(engine.task, sets or [])
    rejects = Rejects(skip_bad=skip_bad)
    format = find_format(file, task, format)
    read = read_examples(file, task, engine.tokenizer, rejects, format=format)
    examples = as_they_come(read) if is_stream(file) else read
    verb = engine.for_task(task)
    if out is None:
        lines = answer_lines(verb, examples)
        is_watched = not is_stream(file) and not sys.stdout.isatty()
        total = estimate_rows(file, format) if is_watched else None
        for line in watch(lines, total, "predicting") if is_watched else lines:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    else:
        settings = (repr(task), str(format), str(skip_bad), str(engine.device), precision)
        draft = draft_path(out, model, file, *settings)
        written = write_lines(verb, examples, out, draft)
        before = num_done = next(written)
        if before:
            print(f"bertie: {before:,} answers were there already", file=sys.stderr)
        total = estimate_rows(file, format)
        with nullcontext() if is_stream(file) else may_be_interrupted():  # a stream begins anew
            for num_done in watch(written, total, "predicting", before=before):  # noqa: B007
                pass
        print(f"{out}: {num_done:,} answers")
    tell_problems(rejects.problems)


@told_in_lines()
def embed(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] FILE",
            help="Lines of text, .csv, .tsv, .jsonl, .parquet; - for stdin. Before it, a model "
            "directory, if it is not the model that ships with bertie.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write: .npy or .parquet.")],
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls or max; what suits the model if not said.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="0: the embeddings, 1, 2, ...; -1: the last layer.")
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Scale each vector to length 1.")
    ] = False,
    column: Column = None,
    format: Format = None,
    device: Device = None,
    precision: Precision = "fp32",
) -> None:
    """Turn every line or row of a file into a vector.

    A .npy file holds the vectors, (N, D) in float32; a .parquet file the texts too. By default a
    fine-tuned model gives the mean of its last layer, and a pre-trained one the mean of the layer
    before: its last layer is bent to guessing pieces.

    ```
    bertie embed sentences.txt --out vectors.npy
    bertie embed my_run/model reviews.csv --column review --out reviews.parquet
    ```
    """
    from itertools import tee

    from bertie import load
    from bertie.infer.file_examples import read_column
    from bertie.infer.progress import watch
    from bertie.infer.rows import estimate_rows
    from bertie.infer.vectors import write_vectors
    from bertie.tasks.task import Rejects

    model, (name,) = take_model(words, 1, "a file")
    file, rejects = Path(name), Rejects()
    engine = load(model, device=device, precision=precision)
    texts, shown = tee(read_column(file, rejects, column=column, format=format))
    kind: Pooling | None = pooling  # type: ignore[assignment]
    vectors = engine.embed_each(texts, pooling=kind, layer=layer, normalise=normalise)
    size = engine.model.config.hidden_size
    num_done = 0
    written = write_vectors(zip(shown, vectors, strict=False), out, size=size)
    for num_done in watch(written, estimate_rows(file, format), "embedding"):  # noqa: B007
        pass
    print(f"{out}: {num_done:,} vectors of {size}")
    tell_problems(rejects.problems)


@told_in_lines()
def similar(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT TEXT",
            help="Two texts; or with --query, one file. Before them, a model directory, if it is "
            "not the model that ships with bertie.",
        ),
    ],
    query: Annotated[
        str | None, typer.Option(help="Find the lines or rows of a file that are nearest to it.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many lines or rows to find.")] = 10,
    column: Column = None,
    format: Format = None,
    device: Device = None,
    precision: Precision = "fp32",
) -> None:
    """Tell how near two texts are (the cosine of their vectors), or find the nearest in a file.

    The cosines of a model that was not trained for this are all high: they tell which text is
    nearer, not how near it is.

    ```
    bertie similar "A man eats." "Someone has lunch."
    bertie similar --query "late delivery" reviews.csv --column review --top 5
    ```
    """
    from heapq import nlargest
    from itertools import tee

    from bertie import load
    from bertie.infer.file_examples import read_column
    from bertie.infer.progress import watch
    from bertie.tasks.task import Rejects

    others = "two texts, or --query TEXT and one file"
    model, texts = take_model(words, 2 if query is None else 1, others)
    engine, rejects = load(model, device=device, precision=precision), Rejects()
    if query is None:
        print(f"{engine.similarity(*texts):.4f}")
        return
    rows, shown = tee(read_column(Path(texts[0]), rejects, column=column, format=format))
    vector = engine.embed(query, normalise=True)
    found = engine.embed_each(rows, normalise=True)
    cosines = (float(one @ vector) for one in watch(found, None, "comparing"))
    nearest = nlargest(top, zip(cosines, shown, strict=False), key=lambda pair: pair[0])
    show_table(
        ("cosine", "text"),
        [(f"{cosine:.4f}", text) for cosine, text in nearest],
        right=("cosine",),
    )
    tell_problems(rejects.problems)
