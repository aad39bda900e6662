"""The verbs. Each reads its settings, calls one part, prints; nothing imports this file.

Parts are imported inside the verbs: `bertie --help` is instant and loads no torch.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertie.errors import UserError

if TYPE_CHECKING:
    from bertie.data.blocks import Problems
    from bertie.text.coverage import Coverage
    from bertie.vocab import Learned, Progress

app = typer.Typer(
    name="bertie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Text = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders, patterns: plain text, .jsonl, .csv, .tsv, .parquet; also .gz .xz .zst"
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting; may come again.")
]
Recipe = Annotated[str | None, typer.Option(help="A TOML file, or the name of a shipped recipe.")]
Casing = Annotated[
    bool | None,
    typer.Option("--uncased/--cased", help="Only for a directory that does not say it itself."),
]


def show_version(wanted: bool) -> None:
    if wanted:
        from bertie import __version__

        print(f"bertie {__version__}")
        raise typer.Exit


@app.callback()
def bertie(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """BERT, end to end: from a folder of raw text to a served model.

    Try it: `bertie quickstart`. Then, with your own text:

    `bertie vocab my_text/ --out my_vocab`

    `bertie tokenize "A first sentence." --vocab my_vocab`
    """


@app.command()
def vocab(
    text: Text,
    out: Annotated[Path, typer.Option(help="Directory to write: vocab.txt and its settings.")],
    recipe: Recipe = None,
    size: Annotated[int | None, typer.Option(help="Short for --set learn.size=N.")] = None,
    cased: Annotated[
        bool, typer.Option("--cased", help="Short for --set tokenizer.lower_case=false.")
    ] = False,
    against: Annotated[
        list[Path] | None, typer.Option(help="Compare with the vocabulary of this directory.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores if not said.")] = None,
    sets: Sets = None,
) -> None:
    """Learn a WordPiece vocabulary from text.

    A document is what blank lines part in plain text (or a file: `--set corpus.document=file`), a
    line of .jsonl, a row of .csv, .tsv and .parquet; its text is the field `text` there, or
    another one: `--set corpus.field=NAME`. What cannot be read is skipped, and counted.

    One document in a hundred is kept back, to show how well the vocabulary fits new text.

    `bertie vocab wiki/ books.jsonl.xz 'news/*.csv.gz' --out my_vocab --size 30522`

    `bertie vocab zh.jsonl --out zh_vocab --recipe vocab-chinese`

    `bertie vocab notes.txt --out v --size 4000 --set learn.num_unused=0 --against other_vocab`
    """
    from bertie.config import read_recipe
    from bertie.text.count import available_cores
    from bertie.text.files import read_tokenizer
    from bertie.vocab import VocabRecipe, make_vocab

    shorthands = [f"learn.size={size}"] if size is not None else []
    shorthands += ["tokenizer.lower_case=false"] if cased else []
    settings = read_recipe(VocabRecipe, recipe, [*shorthands, *(sets or [])])
    others = [(folder, *read_tokenizer(folder)) for folder in against or []]
    with progress_bar() as on_progress:
        learned = make_vocab(
            text, out, settings, workers=workers or available_cores(), on_progress=on_progress
        )
    show_learned(learned, out)
    rows = {str(out): learned.coverage}
    if learned.held_out:
        from bertie.text.coverage import cover_texts

        rows |= {
            str(folder): cover_texts(learned.held_out, pieces, config)
            for folder, pieces, config in others
        }
    elif others:
        print("No document was held back from so small a text, so there is nothing to compare on.")
    where = "held-out text" if learned.held_out else "the text it was learned from"
    show_coverage(rows, f"Coverage of {where}")


def show_learned(learned: "Learned", out: Path) -> None:
    print(
        f"{out}: {len(learned.tokenizer.pieces):,} pieces from {learned.num_words:,} words, "
        f"{learned.num_distinct:,} of them different."
    )
    if learned.num_spare > 0:
        print(f"The text gave {learned.num_spare:,} pieces too few; [unused] slots fill the rest.")
    if learned.num_forgotten:
        print(f"Memory was bounded: {learned.num_forgotten:,} rare words were not counted.")
    show_problems(learned.problems)


def show_problems(problems: "Problems") -> None:
    """What of the text could not be read."""
    from bertie.data.blocks import NOT_UTF8

    if problems.num_skipped:
        print(f"Skipped {problems.num_skipped:,} lines or rows:")
    for what, count in problems.counts.items():
        places = problems.places[what]
        print(f"  {count:,} x {what} ({'; '.join(places)}{'; ...' if count > len(places) else ''})")
    if NOT_UTF8 in problems.counts:
        print("Text in another encoding: iconv -f gb18030 -t utf-8 OLD > NEW")


@app.command()
def coverage(
    text: Text,
    vocab: Annotated[list[Path], typer.Option(help="A tokenizer directory; may come again.")],
    sets: Sets = None,
) -> None:
    """Show how well vocabularies fit a text: pieces per word, unknown words.

    `bertie coverage my_text/ --vocab my_vocab --vocab another_vocab`
    """
    from bertie.config import read_recipe
    from bertie.data.blocks import Problems
    from bertie.vocab import VocabRecipe, cover_files

    corpus = read_recipe(VocabRecipe, None, sets or []).corpus
    rows = {}
    for folder in vocab:
        problems = Problems()
        rows[str(folder)] = cover_files(text, folder, corpus, problems)
    show_coverage(rows, "Coverage")
    show_problems(problems)


@app.command()
def tokenize(
    text: Annotated[list[str] | None, typer.Argument(help="A text, or two for a pair.")] = None,
    vocab: Annotated[
        Path, typer.Option(help="A model or tokenizer directory.", show_default=False)
    ] = Path(),
    file: Annotated[
        Path | None, typer.Option(help="Instead of TEXT: each line of this file, - for stdin.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut longer input, and say so.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
    lower_case: Casing = None,
) -> None:
    """Show the pieces of a text, their ids, and where they stand in it.

    `bertie tokenize "Paris is the [MASK] of France." --vocab my_vocab`

    `bertie tokenize "A question?" "Its passage." --vocab my_vocab --json`

    `bertie tokenize --file lines.txt --vocab my_vocab --json > ids.jsonl`
    """
    from bertie.text.tokenizer import Tokenizer

    if vocab == Path():
        raise UserError("name the tokenizer: --vocab DIR; make one: bertie vocab TEXT --out DIR")
    if bool(text) == (file is not None) or len(text or []) > 2:
        raise UserError("give one text, or two as a pair, or --file")
    tokenizer = Tokenizer.load(vocab, lower_case=lower_case)
    inputs: Iterator[Sequence[str]] = (
        iter([text]) if text else ([line] for line in read_lines(file or Path("-")))
    )
    for texts in inputs:
        encoded = tokenizer.encode(*texts, max_length=max_length)
        pieces = tokenizer.tokens(encoded.ids)
        spans = list(zip(encoded.starts.tolist(), encoded.ends.tolist(), strict=True))
        if encoded.num_cut:
            print(f"bertie: {encoded.num_cut} pieces were cut off", file=sys.stderr)
        if as_json:
            fields = {
                "ids": encoded.ids.tolist(),
                "pieces": pieces,
                "segments": encoded.segments.tolist(),
                "spans": spans,
            }
            print(json.dumps(fields, ensure_ascii=False))
        else:
            rows = zip(pieces, encoded.ids.tolist(), encoded.sources.tolist(), spans, strict=True)
            show_table(
                ("piece", "id", "text"),
                [(p, str(i), texts[s][slice(*span)] if s >= 0 else "") for p, i, s, span in rows],
            )


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="A folder for what it makes.")] = Path("quickstart"),
) -> None:
    """Go the whole way in a minute, on the text that every Python machine has.

    `bertie quickstart --out /tmp/quickstart`
    """
    from bertie.quickstart import run_quickstart

    for line in run_quickstart(out):
        print(line, flush=True)


def read_lines(path: Path) -> Iterator[str]:
    if str(path) == "-":
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    if not path.is_file():
        raise UserError(f"no file {path}")
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from (line.rstrip("\n") for line in lines)


def show_coverage(rows: "dict[str, Coverage]", title: str) -> None:
    first = next(iter(rows.values()))
    show_table(
        ("vocabulary", "pieces per word", "whole words", "unknown words", "characters per piece"),
        [
            (
                name,
                f"{c.pieces_per_word:.4f}",
                f"{c.whole_share:.2%}",
                f"{c.unknown_share:.4%}",
                f"{c.characters_per_piece:.2f}",
            )
            for name, c in rows.items()
        ],
        title=f"{title}: {first.num_words:,} words",
    )
    for name, c in rows.items():
        if c.most_unknown:
            words = ", ".join(f"{word} ({count})" for word, count in c.most_unknown)
            print(f"Most frequent unknown words of {name}: {words}")


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Plain

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Plain(cell) for cell in row))
    Console().print(table)


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """A bar a stage on stderr, with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        stages: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in stages:
                stages[what] = progress.add_task(what, total=total)
            progress.update(stages[what], completed=done, total=total)

        yield on_progress


def main() -> None:
    """Runs a verb; what the user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"bertie: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `bertie ... | head`
        sys.stderr.close()
        raise SystemExit(0) from None
