"""The one exception meant for people."""

from collections.abc import Collection


class UserError(Exception):
    """Says what was found and what to do next; the command line prints it without a traceback."""


def check_known(what: str, name: object, known: Collection[object]) -> None:
    """Refuses a name that is none of those there are."""
    if name not in known:
        raise UserError(f"no {what} {name!r}; there are: {', '.join(map(str, known))}")
