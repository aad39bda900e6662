"""The whole way on text that is on every Python machine, printed as commands to repeat it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from bertie.config import read_recipe
from bertie.data.docstrings import find_sources, read_docstrings, read_manual
from bertie.errors import UserError
from bertie.text.count import available_cores
from bertie.text.files import SETTINGS, VOCAB
from bertie.vocab import VocabRecipe, make_vocab

EXAMPLES = (
    "Return a new list containing all items from the iterable in ascending order.",
    "Raises ValueError if the tokenizer is uninitialised.",
)
SIZE = 4_000


def run_quickstart(out: Path) -> Iterator[str]:
    """Does one step after the other in the folder `out`; yields what to tell the user."""
    started_at = time.perf_counter()
    text, vocab = out / "docs.jsonl", out / "vocab"
    clear(out)
    num_documents, num_chars = write_docs(text)
    yield f"{text}: {num_documents:,} documents, {num_chars / 1e6:.1f} million characters"
    yield "  from the docstrings and the manual of this machine's Python"
    yield ""
    recipe = read_recipe(VocabRecipe, None, [f"learn.size={SIZE}"])
    learned = make_vocab([text], vocab, recipe, workers=available_cores())
    fit = learned.coverage
    yield f"$ bertie vocab {text} --out {vocab} --size {SIZE}"
    yield f"  {len(learned.tokenizer.pieces):,} pieces from {learned.num_words:,} words"
    yield f"  on {fit.num_words:,} words of text it has not seen:"
    yield f"  {fit.pieces_per_word:.3f} pieces a word,"
    yield f"  {fit.whole_share:.1%} of them whole, {fit.unknown_share:.3%} unknown"
    yield ""
    for example in EXAMPLES:
        yield f'$ bertie tokenize "{example}" --vocab {vocab}'
        yield "  " + " ".join(learned.tokenizer.tokens(learned.tokenizer.encode(example).ids))
    yield ""
    yield f"All in {time.perf_counter() - started_at:.0f} s. With your own text:"
    yield "$ bertie vocab YOUR_TEXT --out my_vocab"


def clear(out: Path) -> None:
    """Removes what an earlier quickstart wrote; a folder with anything else in it is refused."""
    own = {f"vocab/{name}" for name in (VOCAB, SETTINGS)} | {"vocab", "docs.jsonl"}
    found = {path: path.relative_to(out).as_posix() for path in out.rglob("*")}
    if strange := sorted(set(found.values()) - own):
        raise UserError(
            f"{out} holds {strange[0]}, which is not of a quickstart; choose another --out"
        )
    for path in found:
        if path.is_file():
            path.unlink()


def write_docs(path: Path) -> tuple[int, int]:
    """Writes a document for each source file and chapter; counts documents and characters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = (read_docstrings(path, package) for package, path in find_sources())
    documents = [(package, "\n".join(texts)) for package, texts in found]
    documents += [("manual", chapter) for chapter in read_manual()]
    lines = [json.dumps({"text": text, "package": package}) for package, text in documents if text]
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    draft.replace(path)
    return len(lines), sum(len(text) for _, text in documents)
