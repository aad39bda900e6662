"""Answers to a whole file, written while they come; what was stopped goes on where it was.

Answers go to a draft beside the output, named after all that decides them: the model, the input and
the settings. A run that finds its draft counts the lines that are whole, and answers the rest. The
portions that are answered together depend on the input alone, and one that is half there is
computed again whole: so the file is the same, to the byte, as if nothing had happened.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from bertie.infer.answers import Answer, to_json
from bertie.infer.draft import check_free, finish, locked
from bertie.infer.examples import Example
from bertie.infer.rows import is_stream
from bertie.infer.verb import Verb


def answer_lines(
    verb: Verb[Example, Answer], examples: Iterable[object], num_done: int = 0
) -> Iterator[bytes]:
    """A line of JSON for each example, but for the first `num_done`."""
    for chunk in verb.chunks(examples):
        if num_done >= len(chunk):
            num_done -= len(chunk)
            continue
        pairs = list(zip(chunk, verb.answer(chunk), strict=True))
        for example, answer in pairs[num_done:]:
            yield make_line(example, answer)
        num_done = 0


def make_line(example: Example, answer: Answer) -> bytes:
    told = to_json(answer)
    assert isinstance(told, dict)
    text = json.dumps({"id": example.id} | told, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair has no UTF-8; its escape is what JSON has for it.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def write_lines(
    verb: Verb[Example, Answer], examples: Iterable[object], out: Path, draft: Path
) -> Iterator[int]:
    """Writes the answers, and gives their number, those of an earlier life first."""
    with locked(draft, out) as file:
        num_done = keep_whole_lines(file)
        yield num_done
        for line in answer_lines(verb, examples, num_done):
            file.write(line)
            file.flush()  # what is counted is there, whatever happens
            num_done += 1
            yield num_done
        finish(file, draft, out)


def keep_whole_lines(file: BinaryIO) -> int:
    """Drops what a kill left of a line, and goes there; how many there are."""
    num_lines = end = place = 0
    while chunk := file.read(1 << 20):
        num_lines += chunk.count(b"\n")
        end = place + chunk.rfind(b"\n") + 1 if b"\n" in chunk else end
        place += len(chunk)
    file.seek(end)
    file.truncate()
    return num_lines


def draft_path(out: Path, model: Path, path: Path, *settings: str) -> Path:
    """The draft of an output; of a stream, which may be another each time, an empty one."""
    check_free(out)
    if is_stream(path):
        draft = out.with_name(f".{out.name}.draft")
        with locked(draft, out) as file:
            file.truncate(0)
        return draft
    decides = [*(describe(file) for file in sorted(model.iterdir())), describe(path), *settings]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    return out.with_name(f".{out.name}.draft-{key}")


def describe(path: Path) -> str:
    """Changes when the file does."""
    state = path.stat()
    return f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
