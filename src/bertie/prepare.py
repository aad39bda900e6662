"""From text to a token store: wiring of corpus, sentences, tokenizer, parts and store.

Work goes on in `STORE.draft`; a run that was killed goes on where it was, and the store appears by
a rename when all is done.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from bertie.data.blocks import Problems
from bertie.data.corpus import (
    CorpusConfig,
    Progress,
    Unit,
    note_unseen,
    plan_units,
    read_unit_batches,
    source_hash,
)
from bertie.data.draft import STORE, check_ours, clear, take_up
from bertie.data.files import find_files
from bertie.data.locks import held
from bertie.data.parts import (
    Encoder,
    PartConfig,
    PartWriter,
    choose,
    is_done,
    join,
    read_summary,
    read_table,
)
from bertie.data.store import HELD_OUT, TOKENIZER, Manifest, StoreWriter
from bertie.errors import UserError
from bertie.text.chinese import check_jieba
from bertie.text.disk import check_writable
from bertie.text.processes import handling, processes
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRecipe:
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    prepare: PartConfig = field(default_factory=PartConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What `prepare` made."""

    train: Manifest
    held_out: Manifest | None
    problems: Problems  # what could not be read


def prepare(
    paths: Sequence[Path],
    vocab: Path,
    out: Path,
    recipe: PrepareRecipe,
    *,
    workers: int,
    on_progress: Progress = lambda what, done, total: None,
) -> Prepared:
    """Makes the token store `out` of all text below `paths`.

    SIGTERM stops it as Ctrl-C does; the same call goes on where it was.
    """
    with handling(signal.default_int_handler):
        return make_store(paths, vocab, out.resolve(), recipe, workers, on_progress)


def make_store(
    paths: Sequence[Path],
    vocab: Path,
    out: Path,
    recipe: PrepareRecipe,
    workers: int,
    on_progress: Progress,
) -> Prepared:
    if recipe.prepare.segmenter == "jieba":
        check_jieba()  # here: what fails in the beginning of a worker process cannot be told
    check_free(out)
    draft = out.with_name(f"{out.name}.draft")
    check_writable(draft)
    check_ours(draft)
    tokenizer = Tokenizer.load(vocab)
    problems = Problems()
    files = find_files(paths, problems)
    units = plan_units(files, recipe.corpus)
    sources = {name_of(path): source_hash(path) for path in files}
    with held(draft), naming_folder(draft):
        check_free(out)  # again: another process may have just made it
        take_up(draft, plan(sources, units, tokenizer, recipe))
        tokenizer.save(draft / TOKENIZER)
        stems = [draft / f"part-{number:06}" for number in range(len(units))]
        encode_all(draft, units, stems, recipe, workers, on_progress)
        prepared = join_all(draft, stems, tokenizer, recipe, sources, on_progress)
        (draft / STORE).replace(out)
        clear(draft)
    problems.merge(prepared.problems)
    note_unseen(recipe.corpus, problems)
    return replace(prepared, problems=problems)


@contextmanager
def naming_folder(draft: Path) -> Iterator[None]:
    """A full disk does not say where it is."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(
            f"cannot write in {draft}: {error.strerror}; the same command goes on where it was"
        ) from None


def name_of(path: Path) -> str:
    r"""Of a file, as text: bytes that are not UTF-8 are written \xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_free(out: Path) -> None:
    """Refuses a folder that the store could not take the place of in the end."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists; choose another --out, or remove it")
    if out.is_mount() or out == Path.cwd():
        what = "a mount point" if out.is_mount() else "the current folder"
        raise UserError(
            f"{out} is {what}, and the store takes the place of --out; name a folder inside it: "
            f"--out {out / 'store'}"
        )


def plan(
    sources: dict[str, str], units: Sequence[Unit], tokenizer: Tokenizer, recipe: PrepareRecipe
) -> dict[str, Any]:
    """All that decides what the parts hold; a draft with another plan is not taken up."""
    return {
        "sources": sources,
        "units": [[str(unit.path), unit.start, unit.end] for unit in units],
        "tokenizer": tokenizer.fingerprint,
        "settings": asdict(recipe),
    }


def encode_all(
    draft: Path,
    units: Sequence[Unit],
    stems: Sequence[Path],
    recipe: PrepareRecipe,
    workers: int,
    on_progress: Progress,
) -> None:
    """Makes the parts that are not there yet, in several processes."""
    total = sum(unit.end - unit.start for unit in units)
    waiting = [(u, s) for u, s in zip(units, stems, strict=True) if not is_done(s)]
    done = total - sum(unit.end - unit.start for unit, _ in waiting)
    if workers <= 1:
        worker = Worker(draft, recipe)
        for unit, stem in waiting:
            for num_bytes in worker.run(unit, stem):
                done += num_bytes
                on_progress("encoding text", done, total)
        return
    read: Synchronized[int] = get_context("spawn").Value("q", 0)
    with processes(workers, start_worker, draft, recipe, read) as pool:
        futures: set[Future[None]] = {pool.submit(run_in_worker, *job) for job in waiting}
        while futures:
            finished, futures = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            on_progress("encoding text", done + read.value, total)


class Worker:
    """Encodes units with one tokenizer."""

    def __init__(self, draft: Path, recipe: PrepareRecipe) -> None:
        self.recipe = recipe
        # Full after 25 MB of text: from then on memory stays as it is.
        tokenizer = Tokenizer.load(draft / TOKENIZER).remember(1 << 17)
        self.encoder = Encoder(tokenizer, recipe.prepare.segmenter)

    def run(self, unit: Unit, stem: Path) -> Iterator[int]:
        """Writes the part of a unit; yields how many bytes were read since the last time."""
        problems = Problems()
        with PartWriter(stem, self.encoder) as writer:
            for documents, num_bytes in read_unit_batches(unit, self.recipe.corpus, problems):
                writer.add(documents)
                yield num_bytes
            writer.finish(problems)


_worker: list[tuple[Worker, "Synchronized[int]"]] = []  # of this process, if it is a worker


def start_worker(draft: Path, recipe: PrepareRecipe, read: "Synchronized[int]") -> None:
    _worker[:] = [(Worker(draft, recipe), read)]


def run_in_worker(unit: Unit, stem: Path) -> None:
    worker, read = _worker[0]
    for num_bytes in worker.run(unit, stem):
        with read.get_lock():
            read.value += num_bytes


def join_all(
    draft: Path,
    stems: Sequence[Path],
    tokenizer: Tokenizer,
    recipe: PrepareRecipe,
    sources: dict[str, str],
    on_progress: Progress,
) -> Prepared:
    """Joins the parts into the store, and the held-out documents into a store inside it."""
    summary, problems = Counter[str](), Problems()
    for counts, found in map(read_summary, stems):
        summary += counts
        problems.merge(found)
    tables = [read_table(stem) for stem in stems]
    choice = choose(tables, recipe.prepare, recipe.corpus.held_out_percent)
    if not choice.is_train.any():
        figures = ", ".join(f"{name} {n}" for name, n in {**summary, **choice.counts}.items())
        raise UserError(
            f"no document to train with was left of {len(sources)} files: {figures}; lower "
            "prepare.min_tokens or corpus.held_out_percent if they took all"
        )
    clear(draft, STORE)
    manifests = []
    for folder, is_wanted in (
        (draft / STORE, choice.is_train),
        (draft / STORE / HELD_OUT, choice.is_held_out),
    ):
        if not is_wanted.any():
            continue
        with StoreWriter(folder, tokenizer) as writer:
            join(stems, tables, is_wanted, writer, lambda d, t: on_progress("joining", d, t))
            manifests.append(
                writer.finish(
                    settings=asdict(recipe),
                    sources=sources,
                    statistics=dict(sorted({**summary, **choice.counts}.items())),
                )
            )
    held_out = manifests[1] if len(manifests) > 1 else None
    return Prepared(train=manifests[0], held_out=held_out, problems=problems)
