"""The one exception meant for people."""


class UserError(Exception):
    """Says what was found and what to do next; the command line prints it without a traceback."""
