"""The model that ships, from text to eight bits, in one command and without the command line.

    python benchmarks/train_embedded.py CORPUS --work WORK --out PARTS
    ... --seconds 560                                       # stop by then; again: go on
    ... --run more --set start=WORK/run/model --set data.loader.seed=1 --set train.seed=1
    ... --vocab embedded --set start=embedded               # on from what ships, in a new WORK
    python benchmarks/train_embedded.py --join PARTS --out FOLDER

It is for machines on which nothing can be installed (torch, numpy and safetensors are enough) and
from which only small files can be taken: what the model needs and what its card is filled with are
put together and cut into PARTS; --join, on another machine, makes FOLDER/model, FOLDER/run and
FOLDER/store of them. A training that was stopped leaves parts too, of its last checkpoint.
What is done is not done again, and other settings than those it was done with are refused.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tarfile
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertie.checkpoint.importing import import_model
from bertie.checkpoint.json_files import read_json, write_json
from bertie.checkpoint.state import find_checkpoint
from bertie.config import read_recipe
from bertie.data.files import find_files
from bertie.embedded import find_model
from bertie.errors import UserError
from bertie.prepare import PrepareRecipe, prepare
from bertie.pretrain import HARMLESS, PretrainRecipe, pretrain
from bertie.text.count import available_cores
from bertie.text.disk import hash_file
from bertie.text.tokenizer import Tokenizer
from bertie.train.log import describe_with_time
from bertie.train.loop import Stopped
from bertie.train.record import check_same
from bertie.vocab import VocabRecipe, make_vocab

RECIPE = "embedded-en"
FREE = 'corpus.without={source=["textbooks_openstax"]}'  # not all of these may be sold
PART_BYTES = 14 * 2**20
WHOLE, LIST = "embedded.tar", "parts.json"
TAKEN_BY = {  # settings by their first name; all others are the training's
    "corpus": ("vocab", "store"),
    "tokenizer": ("vocab",),
    "learn": ("vocab",),
    "prepare": ("store",),
}


def sets_of(part: str, sets: Sequence[str]) -> list[str]:
    """
    >>> sets_of("vocab", ["learn.size=99", "train.seed=1"])
    ['learn.size=99']
    """
    names = [assignment.partition("=")[0].partition(".")[0].strip() for assignment in sets]
    return [
        one for one, name in zip(sets, names, strict=True) if part in TAKEN_BY.get(name, ("run",))
    ]


def is_done(
    made: Path, record: Path, settings: Mapping[str, Any], harmless: Collection[str] = ()
) -> bool:
    """Whether a part is there; the record says what with, and must say what is wanted now."""
    now = json.loads(json.dumps(settings, default=str))
    if made.exists():
        if not record.is_file():
            raise UserError(f"{made} is there without {record}; remove it, or take another --work")
        check_same(made, read_json(record), now, harmless=harmless)
        print(f"{made}: done before", flush=True)
        return True
    write_json(record, now)
    return False


# --- vocabulary, store, run ---


def learn_vocab(text: Sequence[Path], work: Path, sets: Sequence[str], workers: int) -> None:
    recipe = read_recipe(VocabRecipe, "vocab-english", [FREE, *sets_of("vocab", sets)])
    out, draft = work / "vocab", work / "vocab.draft"
    if is_done(out, work / "vocab.json", asdict(recipe) | {"files": list_files(text)}):
        return
    shutil.rmtree(draft, ignore_errors=True)
    learned = make_vocab(text, draft, recipe, workers=workers)
    draft.rename(out)
    print(f"{out}: {len(learned.tokenizer.pieces):,} pieces", flush=True)


def take_vocab(directory: str, work: Path) -> None:
    """That of a model directory: one to go on from has learned its pieces and no others."""
    source, out, draft = find_model(directory), work / "vocab", work / "vocab.draft"
    tokenizer = Tokenizer.load(source)
    pieces = hashlib.sha256("\n".join(tokenizer.pieces).encode()).hexdigest()
    if is_done(out, work / "vocab.json", {"vocab": pieces}):
        return
    shutil.rmtree(draft, ignore_errors=True)
    tokenizer.save(draft)
    draft.rename(out)
    print(f"{out}: {len(tokenizer.pieces):,} pieces of {source}", flush=True)


def make_store(text: Sequence[Path], work: Path, sets: Sequence[str], workers: int) -> None:
    recipe = read_recipe(PrepareRecipe, None, [FREE, *sets_of("store", sets)])
    out = work / "store"
    if is_done(out, work / "store.json", asdict(recipe) | {"files": list_files(text)}):
        return
    made = prepare(text, work / "vocab", out, recipe, workers=workers)
    print(f"{out}: {made.train.num_tokens:,} tokens", flush=True)


def list_files(text: Sequence[Path]) -> dict[str, int]:
    """Bytes by name: the text may lie in another folder when it goes on."""
    return {path.name: path.stat().st_size for path in find_files(text)}


def read_training(work: Path, run: str, sets: Sequence[str]) -> PretrainRecipe:
    recipe = read_recipe(PretrainRecipe, RECIPE, sets_of("run", sets))
    return replace(recipe, store=work / "store", out=work / run)


def train(work: Path, run: str, recipe: PretrainRecipe) -> None:
    if is_done(work / run / "model", work / f"{run}.json", asdict(recipe), HARMLESS):
        return
    made = pretrain(
        recipe,
        command=sys.argv,
        show=lambda line: print(describe_with_time(line), flush=True),
    )
    print(f"{made.model}: {made.counters.tokens:,} tokens in {made.counters.seconds:.0f} s")


# --- parts ---


def bundle(work: Path, run: str, out: Path, part_bytes: int) -> None:
    """The model in eight bits, the record of its run and of its store, as files of some bytes."""
    checkpoint = find_checkpoint(work / run)
    if checkpoint is None:
        raise UserError(f"{work / run} holds no checkpoint yet; go on with the same command")
    with TemporaryDirectory(dir=work) as folder:
        import_model(checkpoint.model, Path(folder) / "model", storage="int8")
        whole = Path(folder) / WHOLE
        with tarfile.open(whole, "w") as tar:
            tar.add(Path(folder) / "model", "model")
            for path in (work / run / "run.json", work / run / "metrics.jsonl"):
                if path.exists():  # stopped within the first steps it has no line yet
                    tar.add(path, f"run/{path.name}")
            tar.add(work / "store" / "manifest.json", "store/manifest.json")
        split(whole, out, part_bytes)
    print(f"{out}: step {checkpoint.counters.step:,}", flush=True)


def split(whole: Path, out: Path, part_bytes: int) -> None:
    """The list of parts comes last: where it is, they are whole."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (out / LIST, *out.glob(f"{WHOLE}.*")):
        old.unlink(missing_ok=True)
    names: list[str] = []
    with whole.open("rb") as file:
        while part := file.read(part_bytes):
            names.append(f"{WHOLE}.{len(names):02}")
            (out / names[-1]).write_bytes(part)
    write_json(out / LIST, {"parts": names, "sha256": hash_file(whole)})


def join(parts: Path, out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} exists; name a new folder with --out")
    listed = read_json(parts / LIST)
    if missing := [name for name in listed["parts"] if not (parts / name).is_file()]:
        raise UserError(f"no file {parts / missing[0]}; bring all of {', '.join(listed['parts'])}")
    with TemporaryDirectory(dir=out.absolute().parent) as folder:
        whole = Path(folder) / WHOLE
        with whole.open("wb") as file:
            for name in listed["parts"]:
                file.write((parts / name).read_bytes())
        if hash_file(whole) != listed["sha256"]:
            raise UserError(f"the parts in {parts} are damaged or of several runs; copy them again")
        with tarfile.open(whole) as tar:
            tar.extractall(Path(folder) / "all", filter="data")
        (Path(folder) / "all").rename(out)
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


# --- all of it ---


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, nargs="*", help="JSON lines: text and source")
    parser.add_argument("--work", type=Path, help="folder of vocabulary, store and run")
    parser.add_argument("--run", default="run", help="name of the run's folder in it")
    parser.add_argument("--vocab", help="model directory whose vocabulary to take; none: learn one")
    parser.add_argument("--out", type=Path, required=True, help="folder for the parts")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="NAME=VALUE")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes")
    parser.add_argument("--seconds", type=float, help="stop by then, to go on another time")
    parser.add_argument("--part-bytes", type=int, default=PART_BYTES, help="of a file, at most")
    parser.add_argument("--join", type=Path, help="folder of parts: make one of them, in --out")
    options = parser.parse_args()
    if options.join is None and not (options.text and options.work):
        parser.error("name the text and --work, or --join")
    return options


def train_all(options: argparse.Namespace) -> int:
    """The status to exit with; a stopped training is packed as it is."""
    recipe = read_training(options.work, options.run, options.sets)  # first: a typo costs nothing
    limit_s = options.seconds or threading.TIMEOUT_MAX
    stop = threading.Timer(limit_s, os.kill, (os.getpid(), signal.SIGTERM))
    stop.daemon = True
    stop.start()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.vocab is None:
        learn_vocab(options.text, options.work, options.sets, options.workers)
    else:
        take_vocab(options.vocab, options.work)
    make_store(options.text, options.work, options.sets, options.workers)
    status = 0
    try:
        train(options.work, options.run, recipe)
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on from there", file=sys.stderr)
        status = 128 + stopped.number
    stop.cancel()
    bundle(options.work, options.run, options.out, options.part_bytes)
    return status


def main() -> None:
    options = parse()
    try:
        if options.join is not None:
            join(options.join, options.out)
        else:
            raise SystemExit(train_all(options))
    except UserError as error:
        raise SystemExit(f"train_embedded.py: {error}") from None
    except KeyboardInterrupt:  # while a store was made, which SIGTERM ends like this, too
        print("stopped; the same command goes on from there", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":  # processes are spawned, which read this file again
    main()
