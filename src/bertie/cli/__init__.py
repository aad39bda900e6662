"""The verbs. Each reads its settings, calls one part, prints; nothing imports this part.

Parts are imported inside the verbs: `bertie --help` is instant and loads no torch.
"""

import codecs
import os
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from bertie.cli.ablating import ablate
from bertie.cli.asking import embed, fill, predict, similar
from bertie.cli.exporting import Casing, export, import_, info, inspect
from bertie.cli.features import features, table7
from bertie.cli.serving import serve
from bertie.cli.show import (
    may_be_interrupted,
    may_stop,
    plainly,
    print_json,
    progress_bar,
    read_lines,
    show_coverage,
    show_learned,
    show_problems,
    show_table,
)
from bertie.cli.tuning import Sets, as_sets, evaluate, finetune
from bertie.errors import UserError

app = typer.Typer(
    name="bertie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Where `bertie --help` lists a verb.
TEXT, DISK, TASK = "From text to a model", "Models on disk", "A task of your own"
USE, STUDY = "A model in use", "Studies"

Text = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders, patterns: text, .jsonl, .csv, .tsv, .parquet; also .gz .bz2 .xz .zst"
    ),
]
Recipe = Annotated[str | None, typer.Option(help="A TOML file, or the name of a shipped recipe.")]


def show_version(wanted: bool) -> None:
    if wanted:
        from bertie import __version__

        print(f"bertie {__version__}")
        raise typer.Exit


@app.callback()
def bertie(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """BERT, end to end: from a folder of raw text to a served model.

    The model that ships, and the whole way in under five minutes:

    ```
    bertie fill "Paris is the [MASK] of France."
    bertie quickstart
    ```

    A task of your own, from a table with a column of texts and one of labels:

    ```
    bertie finetune --task classify --train reviews.csv --out sentiment
    bertie predict sentiment/model new_reviews.csv
    ```

    A model of your own, from text:

    ```
    bertie vocab my_text/ --out my_vocab
    bertie prepare my_text/ --vocab my_vocab --out my_store
    bertie pretrain tiny-cpu --store my_store --out my_run
    bertie fill my_run/model "Paris is the [MASK] of France."
    ```

    Every command explains itself: `bertie pretrain --help`.
    """


@app.command(rich_help_panel=TEXT)
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
    extend: Annotated[
        Path | None, typer.Option(help="Keep all pieces of this directory, and add new ones.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; default: all cores.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Learn a WordPiece vocabulary from text.

    In plain text a blank line ends a document (`--set corpus.document=file`: the end of the file).
    In .jsonl, .csv, .tsv and .parquet each line or row is one, its text in the field `text`
    (`--set corpus.field=NAME` for another). What cannot be read is skipped, and counted.

    One document in a hundred is held out, to show how well the vocabulary fits new text.

    ```
    bertie vocab wiki/ books.jsonl.xz 'news/*.csv.gz' --out my_vocab
    bertie vocab zh.jsonl --out zh_vocab --recipe vocab-chinese
    bertie vocab notes.txt --out small --size 4000 --set learn.num_unused=0
    ```

    With --extend, the pieces of another vocabulary keep their ids and its way to split text is
    kept; new pieces follow, the most used first:

    ```
    bertie vocab papers/ --extend my_run/model --out larger --size 35000
    ```
    """
    from bertie.config import read_recipe
    from bertie.embedded import find_model
    from bertie.text.count import available_cores
    from bertie.text.files import read_tokenizer
    from bertie.vocab import VocabRecipe, make_vocab

    shorthands = [f"learn.size={size}"] if size is not None else []
    shorthands += ["tokenizer.lower_case=false"] if cased else []
    settings = read_recipe(VocabRecipe, recipe, [*shorthands, *(sets or [])])
    extend = None if extend is None else find_model(extend)
    compared = [*([extend] if extend is not None else []), *map(find_model, against or [])]
    others = [(folder, *read_tokenizer(folder)) for folder in compared]
    with progress_bar() as on_progress:
        learned = make_vocab(
            text,
            out,
            settings,
            workers=workers or available_cores(),
            extends=extend,
            on_progress=on_progress,
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


@app.command(rich_help_panel=TEXT)
def coverage(
    text: Text,
    vocab: Annotated[list[Path], typer.Option(help="A tokenizer directory; may be repeated.")],
    sets: Sets = None,
) -> None:
    """Show how well vocabularies fit a text: pieces per word, unknown words.

    About 1.1 pieces per word, and hardly an unknown one, is good.

    ```
    bertie coverage my_text/ --vocab my_vocab --vocab another_vocab
    ```
    """
    from bertie.config import read_recipe
    from bertie.data.blocks import Problems
    from bertie.embedded import find_model
    from bertie.vocab import VocabRecipe, cover_files

    corpus = read_recipe(VocabRecipe, None, sets or []).corpus
    problems = Problems()
    fits = cover_files(text, [find_model(folder) for folder in vocab], corpus, problems)
    show_coverage(dict(zip(map(str, vocab), fits, strict=True)), "Coverage")
    show_problems(problems)


@app.command(rich_help_panel=TEXT)
def tokenize(
    text: Annotated[list[str] | None, typer.Argument(help="A text, or two for a pair.")] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(help="A model or tokenizer directory; default: the model that ships."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Instead of TEXT: each line of this file, - for stdin.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut longer input, and say so.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
    lower_case: Casing = None,
) -> None:
    """Show the pieces of a text, their ids, and where they stand in it.

    Without --vocab it takes the pieces of the model that ships.

    ```
    bertie tokenize "Paris is the [MASK] of France."
    bertie tokenize "A question?" "Its passage." --vocab my_vocab --json
    bertie tokenize --file lines.txt --vocab my_vocab --json > ids.jsonl
    ```
    """
    from bertie.embedded import find_model
    from bertie.text.tokenizer import Tokenizer

    if bool(text) == (file is not None) or len(text or []) > 2:
        raise UserError("give one text, or two as a pair, or --file")
    tokenizer = Tokenizer.load(find_model(vocab, option="--vocab"), lower_case=lower_case)
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
            print_json(fields)
        else:
            rows = zip(pieces, encoded.ids.tolist(), encoded.sources.tolist(), spans, strict=True)
            show_table(
                ("piece", "id", "text"),
                [(p, str(i), texts[s][slice(*span)] if s >= 0 else "") for p, i, s, span in rows],
            )


@app.command(rich_help_panel=TEXT)
def prepare(
    text: Text,
    vocab: Annotated[
        Path, typer.Option(help="Directory of the tokenizer, or of the model; or `embedded`.")
    ],
    out: Annotated[Path, typer.Option(help="The token store to write.")],
    recipe: Recipe = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; default: all cores.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Turn text into a token store to pre-train on.

    One document in a hundred is held out, to evaluate with. If it is stopped, the same command
    goes on where it was.

    ```
    bertie prepare wiki/ books.jsonl.xz --vocab my_vocab --out my_store
    bertie prepare zh.jsonl --vocab zh --out store --set prepare.segmenter=jieba
    bertie prepare notes/ --vocab v --out store --set corpus.document=file
    ```
    """
    from bertie.config import read_recipe
    from bertie.embedded import find_model
    from bertie.prepare import PrepareRecipe
    from bertie.prepare import prepare as make_store
    from bertie.text.count import available_cores

    settings = read_recipe(PrepareRecipe, recipe, sets or [])
    with may_be_interrupted(), progress_bar() as on_progress:
        prepared = make_store(
            text,
            find_model(vocab),
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


@app.command(rich_help_panel=TEXT)
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    store: Annotated[Path | None, typer.Option(help="The token store to train on.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write: metrics, checkpoints, report, model.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="A model directory to go on from, say to a new domain; or `embedded`."),
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on from the last checkpoint in --out, if there is one.")
    ] = True,
    sets: Sets = None,
) -> None:
    """Pre-train a BERT on a token store.

    Recipes: tiny-cpu (a laptop, minutes), mini, small, medium, base, large, base-one-gpu-day,
    chinese-base, roberta-style, albert-base, embedded-en, study; and domain-adapt, which goes on
    from a model. What is learned is masked LM and next sentence, unless the recipe says otherwise.

    If it is stopped (Ctrl-C saves), the same command goes on from the last checkpoint.

    ```
    bertie pretrain tiny-cpu --store my_store --out my_run
    bertie pretrain mini --store my_store --out m --set "train.budget=9 minutes"
    bertie pretrain domain-adapt --start embedded --store my_store --out adapted
    torchrun --nproc-per-node 8 -m bertie pretrain base --store my_store --out c
    ```
    """
    # Batches without padding have other sizes at every step: blocks of fixed sizes left over from
    # the last ones made a run reserve 127 GiB where 40 would do (docs/log.md). Read by torch alone.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    from bertie.config import read_recipe
    from bertie.pretrain import PretrainRecipe, check_new
    from bertie.pretrain import pretrain as run
    from bertie.train.log import describe_figures, watch

    folders = {"store": store, "out": out, "start": start}
    settings = read_recipe(PretrainRecipe, recipe, [*(sets or []), *as_sets(folders)])
    if not resume:
        check_new(settings)
    with may_stop(), watch() as show:
        made = run(settings, command=sys.argv, show=show)
    print(f"{made.model}: {made.counters.tokens:,} tokens in {made.counters.seconds:.0f} s")
    if made.held_out:
        print(f"held-out text: {describe_figures(made.held_out)}")
    if made.guessing:  # where there are [MASK]s
        print(f"guessing by frequency: {describe_figures(made.guessing)}")


app.command(rich_help_panel=DISK)(info)
app.command("import", rich_help_panel=DISK)(import_)
app.command(rich_help_panel=TASK)(finetune)
app.command(rich_help_panel=TASK)(evaluate)
app.command(rich_help_panel=USE)(fill)
app.command(rich_help_panel=TASK)(predict)
app.command(rich_help_panel=USE)(embed)
app.command(rich_help_panel=USE)(similar)
app.command(rich_help_panel=STUDY)(features)
app.command(rich_help_panel=STUDY)(table7)
app.command(rich_help_panel=STUDY)(ablate)
app.command(rich_help_panel=DISK)(export)
app.command(rich_help_panel=USE)(inspect)
app.command(rich_help_panel=USE)(serve)


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="A folder for what it makes.")] = Path("quickstart"),
) -> None:
    """Go the whole way in under five minutes, on the text that every Python machine has.

    It needs two CPU cores and no network. It fills masks with the model that ships, trains that
    model for a minute on this machine's documentation and fine-tunes it; then it makes a tiny BERT
    from nothing but that text. It tells what came out, and each step as the command that does it.

    ```
    bertie quickstart --out my_quickstart
    ```
    """
    from bertie.quickstart import Scale, Screen, run_quickstart
    from bertie.train.log import watch
    from bertie.train.loop import Stopped

    screen = Screen(progress=progress_bar, watch=watch, command=tuple(sys.argv))
    try:
        for line in run_quickstart(out, Scale(), screen):
            print(line, flush=True)
    except Stopped as stopped:
        raise SystemExit(128 + stopped.number) from None


def main() -> None:
    """Runs a verb; what the user can mend is one line on stderr and exit code 2."""
    # Threads that wait for others sleep soon. By default they hold their core for milliseconds, and
    # where others use the machine, those they wait for: a text that takes 6 ms took 330.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    open_closed()
    if isinstance(sys.stdout, TextIOWrapper):  # bytes that are no text come back as \\udcff
        codecs.register_error("plainly", plainly)
        sys.stdout.reconfigure(errors="plainly")
    try:
        app()
    except (UserError, OSError) as error:  # an OSError names the file and what is wrong with it
        print(f"bertie: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as end:
        if end.code in (0, None) and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            leave()
        raise


def open_closed() -> None:
    """Of stdin, stdout and stderr those that are closed lead nowhere.

    Else a file that is opened later would take the place of one, and get what is told there; and
    what is printed to a stderr that is not there goes to stdout.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")


def leave() -> None:
    """Ends a rank whose work is done, at once: in the usual end gloo's threads abort some of them.

    One process in twenty did ("terminate called without an active exception", torch 2.13), after
    everything was written, and torchrun took that for a failure.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
