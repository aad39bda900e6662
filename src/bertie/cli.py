"""The verbs. Each reads its settings, calls one part, prints; nothing imports this file.

Parts are imported inside the verbs: `bertie --help` is instant and loads no torch.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
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

READING = ("counting words", "encoding text")  # stages whose progress is bytes of files
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
    vocab: Annotated[Path, typer.Option(help="A model or tokenizer directory.")],
    text: Annotated[list[str] | None, typer.Argument(help="A text, or two for a pair.")] = None,
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
def info(
    target: Annotated[
        str, typer.Argument(help="A size, layers/hidden/heads, a model directory or a token store.")
    ],
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a step.")] = 32,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a sequence; 128, or all that fit.")
    ] = None,
) -> None:
    """Say what a model is and costs (parameters, FLOPs, memory), or what a token store holds.

    `bertie info base` (or tiny, mini, small, medium, large)

    `bertie info 6/384/12 --batch 256 --length 512`

    `bertie info models/reviews`

    `bertie info my_store --length 512` shows counts, lengths and some instances with their masks
    """
    from bertie.info import describe

    for facts in describe(target, batch_size=batch, length=length):
        show_table(facts.columns, facts.rows, title=facts.title, right=facts.right)
        for note in facts.notes:
            print(f"{note}\n")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="Directory of the checkpoint.")],
    out: Annotated[Path, typer.Option(help="The model directory to write, a new folder.")],
    lower_case: Casing = None,
    gelu: Annotated[
        str | None,
        typer.Option(help="Of a TensorFlow checkpoint: erf (if not said) or tanh."),
    ] = None,
) -> None:
    """Turn a BERT checkpoint of any kind into a model directory.

    Hugging Face's (safetensors, pytorch_model.bin of any age, in one file or many) and Google's
    original ones (bert_config.json, vocab.txt, bert_model.ckpt.*), without TensorFlow.

    `bertie import bert-base-cased --out models/base`

    `bertie import uncased_L-12_H-768_A-12 --out models/base --uncased`
    """
    from bertie.checkpoint.importing import import_model

    opened = import_model(source, out, lower_case=lower_case, gelu=gelu)
    for note in opened.notes:
        print(f"bertie: {note}", file=sys.stderr)
    heads = ", ".join(opened.model.heads) or "none"
    num_parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    print(f"{out}: {num_parameters:,} parameters; heads: {heads}")


@app.command()
def prepare(
    text: Text,
    vocab: Annotated[Path, typer.Option(help="Directory of the tokenizer, or of the model.")],
    out: Annotated[Path, typer.Option(help="The token store to write.")],
    recipe: Recipe = None,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores if not said.")] = None,
    sets: Sets = None,
) -> None:
    """Turn text into a token store to pre-train on.

    One document in a hundred is held out, to evaluate with. A run that was stopped goes on where it
    was if the same command is given again.

    `bertie prepare wiki/ books.jsonl.xz --vocab my_vocab --out my_store`

    `bertie prepare zh.jsonl --vocab zh_vocab --out zh_store --set prepare.segmenter=jieba`

    `bertie prepare notes/ --vocab v --out s --set corpus.document=file --set prepare.min_tokens=20`
    """
    from bertie.config import read_recipe
    from bertie.prepare import PrepareRecipe
    from bertie.prepare import prepare as make_store
    from bertie.text.count import available_cores

    settings = read_recipe(PrepareRecipe, recipe, sets or [])
    with progress_bar() as on_progress:
        prepared = make_store(
            text,
            vocab,
            out,
            settings,
            workers=workers or available_cores(),
            on_progress=on_progress,
        )
    stores = {"to train with": prepared.train, "held out": prepared.held_out}
    show_table(
        ("", "documents", "sentences", "tokens", "MB on disk"),
        [
            (
                name,
                f"{made.num_documents:,}",
                f"{made.num_sentences:,}",
                f"{made.num_tokens:,}",
                f"{sum(made.file_bytes.values()) / 1e6:.1f}",
            )
            for name, made in stores.items()
            if made is not None
        ],
        title=str(out),
    )
    for name, count in prepared.train.statistics.items():
        print(f"{name.replace('_', ' ')}: {count:,}")
    show_problems(prepared.problems)


@app.command()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    store: Annotated[Path | None, typer.Option(help="The token store to train on.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run: metrics, checkpoints, model.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="A model directory to go on from, say to a new domain.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on from the last checkpoint in --out, if there is one.")
    ] = True,
    sets: Sets = None,
) -> None:
    """Pre-train a BERT on a token store, with masked LM and next sentence.

    A run that was stopped goes on from its last checkpoint if the same command is given again.

    `bertie pretrain tiny-cpu --store my_store --out my_run`

    `bertie pretrain mini --store my_store --out other --set "train.budget=30 minutes"`

    `torchrun --nproc-per-node 8 -m bertie pretrain base --store my_store --out big_run`
    """
    from bertie.config import read_recipe
    from bertie.pretrain import PretrainRecipe, check_new
    from bertie.pretrain import pretrain as run
    from bertie.train.log import describe_figures, watch
    from bertie.train.loop import Stopped

    settings = read_recipe(PretrainRecipe, recipe, sets or [])
    settings = replace(
        settings,
        store=store or settings.store,
        out=out or settings.out,
        start=start or settings.start,
    )
    if not resume:
        check_new(settings)
    try:
        with watch() as show:
            made = run(settings, show=show)
    except Stopped as stopped:
        print(f"bertie: {stopped}; the same command goes on from there", file=sys.stderr)
        raise SystemExit(128 + stopped.number) from None
    print(f"{made.model}: {made.counters.tokens:,} tokens in {made.counters.seconds:.0f} s")
    if made.held_out:
        print(f"held-out text: {describe_figures(made.held_out)}")
        print(f"guessing by frequency: {made.unigram:.3f}")


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
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
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
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """A table on stdout; the columns in `right` stand on the right, as numbers should."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Plain

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Plain(cell) for cell in row))
    Console().print(table)


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """A bar a stage on stderr, with the time left, and the rate where bytes are read."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        stages: dict[str, tuple[TaskID, float, int]] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in stages:
                task = progress.add_task(what, total=total, rate="")
                stages[what] = task, time.monotonic(), done  # a resumed run starts with some done
            task, started_at, before = stages[what]
            megabytes_per_s = (done - before) / 1e6 / max(1e-3, time.monotonic() - started_at)
            rate = f"{megabytes_per_s:.1f} MB/s of files" if what in READING else ""
            progress.update(task, completed=done, total=total, rate=rate)

        yield on_progress


def main() -> None:
    """Runs a verb; what the user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except (UserError, OSError) as error:  # an OSError names the file and what is wrong with it
        print(f"bertie: {error}", file=sys.stderr)
        raise SystemExit(2) from None
