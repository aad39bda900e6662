"""From text to a tokenizer directory: wiring of corpus, counting, learning and coverage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertie.data.blocks import Problems
from bertie.data.corpus import (
    CorpusConfig,
    Progress,
    document_hash,
    is_held_out,
    note_unseen,
    read_batches,
)
from bertie.data.files import find_files
from bertie.errors import UserError
from bertie.text.count import count_words
from bertie.text.coverage import Coverage, cover, cover_batches, cover_texts
from bertie.text.disk import check_writable
from bertie.text.files import (
    VOCAB,
    TokenizerConfig,
    read_tokenizer,
    write_tokenizer,
)
from bertie.text.hugging_face import SETTINGS, WHOLE
from bertie.text.learn import LearnConfig, extend, learn
from bertie.text.tokenizer import Tokenizer

MAX_HELD_OUT_CHARS = 16_000_000  # held in memory; a larger sample would not change a figure


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabRecipe:
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    learn: LearnConfig = field(default_factory=LearnConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A new tokenizer, and what is known of it."""

    tokenizer: Tokenizer
    num_words: int  # occurrences counted
    num_distinct: int
    num_forgotten: int  # occurrences of rare words that memory had no room for
    num_old: int  # pieces of the vocabulary that was extended, before all others; mostly 0
    num_spare: int  # pieces that the text had not to give: [unused] slots, or missing behind old
    held_out: tuple[str, ...]  # documents that were not learned from
    coverage: Coverage  # of the held-out documents, or of the text itself if there are none
    problems: Problems  # what could not be read


def make_vocab(
    paths: Sequence[Path],
    out: Path,
    recipe: VocabRecipe,
    *,
    workers: int,
    extends: Path | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> Learned:
    """Learns a vocabulary from the text below `paths` and writes it to the directory `out`.

    It starts with all pieces of the tokenizer in `extends`, if that is given, and splits as it.
    """
    old, tokenizer = _start(extends, recipe)
    for name in (VOCAB, SETTINGS, WHOLE, "config.json"):
        if (out / name).exists():
            raise UserError(f"{out / name} exists; a model may need it. Choose another --out")
    check_writable(out)
    problems = Problems()
    files = find_files(paths, problems)
    held_out: list[str] = []
    batches = _training_batches(files, recipe.corpus, held_out, problems, on_progress)
    counts = count_words(batches, tokenizer, workers=workers)
    note_unseen(recipe.corpus, problems)
    if not counts:  # so small a text may have been held out whole
        counts = count_words([held_out], tokenizer)
        held_out = []
    if not counts:
        raise UserError(f"no words in {len(files)} files, the first is {files[0]}")
    pieces = _learn(
        counts, old, recipe.learn, tokenizer, lambda *done: on_progress("merging pieces", *done)
    )
    write_tokenizer(out, pieces, tokenizer)
    if held_out:
        coverage = cover_texts(held_out, pieces, tokenizer)
    elif counts.num_forgotten:  # rare words, and so those that may be unknown: read again
        again = (batch.documents for batch in read_batches(files, recipe.corpus))
        coverage = cover_batches(again, [(pieces, tokenizer)])[0]
    else:
        coverage = cover(counts, pieces, tokenizer)
    return Learned(
        tokenizer=Tokenizer(pieces, tokenizer),
        num_words=sum(counts.values()),
        num_distinct=len(counts),
        num_forgotten=counts.num_forgotten,
        num_old=len(old),
        num_spare=_count_spare(pieces, old, recipe.learn),
        held_out=tuple(held_out),
        coverage=coverage,
        problems=problems,
    )


def _start(extends: Path | None, recipe: VocabRecipe) -> tuple[list[str], TokenizerConfig]:
    """The pieces to begin with, and how to split text."""
    if extends is None:
        return [], recipe.tokenizer
    pieces, config = read_tokenizer(extends)
    if recipe.tokenizer not in (TokenizerConfig(), config):
        raise UserError(
            f"a vocabulary that extends {extends} splits text as that does; leave the settings "
            "tokenizer.* (and --cased) out"
        )
    if recipe.learn.size <= len(pieces):  # better now than after reading all the text
        raise UserError(
            f"{extends} has {len(pieces):,} pieces; say how many there shall be with the new ones: "
            f"--size N, more than that; found {recipe.learn.size:,}"
        )
    return pieces, config


def _learn(
    counts: Mapping[str, int],
    old: Sequence[str],
    config: LearnConfig,
    tokenizer: TokenizerConfig,
    on_merge: Callable[[int, int], None],
) -> list[str]:
    if old:
        return extend(counts, old, config, tokenizer, on_merge)
    return learn(counts, config, tokenizer, on_merge)


def _count_spare(pieces: Sequence[str], old: Sequence[str], config: LearnConfig) -> int:
    if old:
        return config.size - len(pieces)
    return sum(piece.startswith("[unused") for piece in pieces) - config.num_unused


def _training_batches(
    files: Sequence[Path],
    config: CorpusConfig,
    held_out: list[str],
    problems: Problems,
    on_progress: Progress,
) -> Iterator[list[str]]:
    """Batches of documents to learn from; the others are put into `held_out`."""
    total = sum(path.stat().st_size for path in files)
    done = held_chars = 0
    for documents, num_bytes in read_batches(files, config, problems):
        taught = []
        for document in documents:
            if held_chars < MAX_HELD_OUT_CHARS and is_held_out(
                document_hash(document), config.held_out_percent
            ):
                held_out.append(document)
                held_chars += len(document)
            else:
                taught.append(document)
        yield taught
        done += num_bytes
        on_progress("counting words", done, total)


def cover_files(
    paths: Sequence[Path], folders: Sequence[Path], config: CorpusConfig, problems: Problems
) -> list[Coverage]:
    """The coverage of all text below `paths` by the tokenizers of directories, in one reading."""
    vocabularies = [read_tokenizer(folder) for folder in folders]
    files = find_files(paths, problems)
    batches = (batch.documents for batch in read_batches(files, config, problems))
    fits = cover_batches(batches, vocabularies)
    note_unseen(config, problems)
    return fits
