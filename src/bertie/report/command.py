"""What was typed, as one would type it again."""

import shlex
from collections.abc import Sequence
from pathlib import Path


def show_command(words: Sequence[str]) -> str:
    """The first word is the path of the program.

    >>> show_command(["/x/bertie/__main__.py", "fill", "a [MASK]"])
    "bertie fill 'a [MASK]'"
    """
    is_ours = bool(words) and Path(words[0]).name in ("bertie", "__main__.py")
    return shlex.join(["bertie", *words[1:]] if is_ours else words)
