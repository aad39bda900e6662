"""The verbs. Each reads its settings, calls one part, prints; nothing imports this file."""

import sys

import typer

from bertie.errors import UserError

app = typer.Typer(
    name="bertie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="BERT, end to end: from a folder of raw text to a served model.",
)


@app.callback()
def root() -> None:
    pass


def main() -> None:
    """Runs a verb; what the user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"bertie: {error}", file=sys.stderr)
        raise SystemExit(2) from None
