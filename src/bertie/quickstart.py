"""The whole way on text that is on every Python machine, printed as commands to repeat it.

Two halves: what the model that ships can do, and what can be made of nothing. The first is left out
where the package holds no model, and the second has its time.
"""

import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bertie.config import read_recipe
from bertie.data.corpus import Progress, document_hash, is_held_out
from bertie.data.docstrings import (
    Docstrings,
    find_sources,
    label,
    read_docstrings,
    read_manual,
)
from bertie.embedded import NAME, find_model, has_embedded
from bertie.errors import UserError
from bertie.finetune import Finetuned, finetune
from bertie.infer.engine import Engine
from bertie.prepare import PrepareRecipe, prepare
from bertie.pretrain import Pretrained, PretrainRecipe, evaluate_start, pretrain
from bertie.text.disk import write_text
from bertie.train.hardware import has_fast_bf16
from bertie.train.log import Show
from bertie.tuning import FinetuneRecipe
from bertie.vocab import VocabRecipe, make_vocab

# What stands in the folder.
TEXT, VOCAB, STORE, RUN, BEFORE = "docs.jsonl", "vocab", "store", "run", "untrained"
TRAIN, TEST, TUNED, SCRATCH = "train.jsonl", "test.jsonl", "finetuned", "from_scratch"
ADAPT_STORE, ADAPTED, ADAPTED_TUNED = "adapt_store", "adapted", "adapted_finetuned"
NOTED = "quickstart.json"  # which files are ours

PLAIN = (
    "Paris is the [MASK] of France.",
    "The cat sat on the [MASK] and slept.",
    "She opened the [MASK] and walked into the room.",
    "The film was [MASK] by Steven Spielberg.",
)
SENTENCE = "Raises ValueError if the tokenizer is uninitialised."
MASKED = (
    "Return True if the file exists, False [MASK].",
    "Raises ValueError [MASK] the argument is not valid.",
    "The default [MASK] is None.",
    "Return the [MASK] of the list.",
    "This method is [MASK] by the server.",
)
NUM_GUESSES = 3
WORKERS = 1  # processes take longer to start than so little text to read
ONE_STEP = "train.budget=1 steps"
SHORTER = "train.budget=0.75 minutes"  # of the second half, where there is a first
HALF = "train.precision=bf16"  # where products then take half as long


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much of everything: enough to see something in under five minutes."""

    num_pieces: int = 4_000
    held_out_percent: int = 10
    num_packages: int = 12
    num_each: int = 50  # docstrings of a package to learn from, and at most as many to test on
    pretrain: tuple[str, ...] = ()  # settings other than the recipe's
    adapt: tuple[str, ...] = ()
    finetune: tuple[str, ...] = ()
    # What is known already changes slowly; by the clock, as it is forty times as large; and it
    # reads more of a text than the small one has positions for.
    finetune_adapted: tuple[str, ...] = (
        "optim.peak=3e-4",
        "train.budget=1.3 minutes",
        "task.max_length=64",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """What it is run from: bars to show while something is done, and what was typed."""

    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(
        lambda what, done, total: None
    )
    watch: Callable[[], AbstractContextManager[Show]] = lambda: nullcontext(lambda line: None)
    command: tuple[str, ...] = ()  # word by word, for the records of the runs


def run_quickstart(
    out: Path, scale: Scale | None = None, screen: Screen | None = None
) -> Iterator[str]:
    """Does one step after the other in the folder `out`; yields what to tell the user."""
    started_at = time.perf_counter()
    scale, screen = scale or Scale(), screen or Screen()
    clear(out)
    steps = [gather, learn_vocab, make_store, pretrain_and_compare, fill_masks, tell_packages]
    if has_embedded():
        steps = [fill_at_once, gather, adapt, *steps[1:]]
        scale = replace(scale, pretrain=(SHORTER, *scale.pretrain))
    if has_fast_bf16():
        scale = in_half(scale)
    for step in steps:
        yield from step(out, scale, screen)
        yield ""
    yield f"All in {describe_seconds(time.perf_counter() - started_at)}. With your own text:"
    yield "$ bertie vocab YOUR_TEXT --out my_vocab"
    yield "$ bertie prepare YOUR_TEXT --vocab my_vocab --out my_store"
    yield "$ bertie pretrain tiny-cpu --store my_store --out my_run"
    yield "$ bertie finetune --model my_run/model --train YOUR_TABLE --out my_task"
    yield "The models on a page to try them (pip install 'bertie[serve]'):"
    shown = (ADAPTED, ADAPTED_TUNED, RUN, TUNED)
    yield command("serve", *(out / name / "model" for name in shown if (out / name).is_dir()))


def in_half(scale: Scale) -> Scale:
    return replace(
        scale,
        pretrain=(*scale.pretrain, HALF),
        adapt=(*scale.adapt, HALF),
        finetune=(*scale.finetune, HALF),
        finetune_adapted=(*scale.finetune_adapted, HALF),
    )


# --- the model that ships ---


def fill_at_once(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    begin(out)
    yield "The model that ships with bertie, as it is:"
    engine = Engine.load(find_model(), show=False)
    for text in PLAIN:
        yield command("fill", text, "--top", NUM_GUESSES)
        yield f"  {guess(engine, text)}"


def adapt(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    """A minute more of its training, on the text of this machine."""
    begin(out, ADAPT_STORE)
    yield "The same model after a minute with this machine's documentation:"
    yield from encode(out, scale, screen, vocab=NAME, store=ADAPT_STORE)
    begin(out, ADAPT_STORE, ADAPTED)
    store, run = out / ADAPT_STORE, out / ADAPTED
    words = ("pretrain", "quickstart-adapt", "--start", NAME, "--store", store, "--out", run)
    yield command(*words, sets=scale.adapt)
    recipe = read_recipe(PretrainRecipe, "quickstart-adapt", scale.adapt)
    recipe = replace(recipe, start=Path(NAME), store=store, out=run)
    before = evaluate_start(recipe)
    with screen.watch() as show:
        made = pretrain(recipe, command=screen.command, show=show)
    yield from compare_perplexity(before, made)
    begin(out)
    yield from fill_before_and_after(find_model(), made.model)


def compare_perplexity(before: Mapping[str, float], made: Pretrained) -> Iterator[str]:
    spent = made.counters
    yield f"  {spent.step:,} steps, {spent.tokens:,} tokens in {describe_seconds(spent.seconds)}"
    if not made.held_out:
        yield "  no text was held out, so nothing can be compared"
        return
    yield "  On held-out documents, where it sees [MASK]:     perplexity   right"
    for name, figures in (("as it ships", before), ("after that minute", made.held_out)):
        perplexity, share = math.exp(figures["mask_loss"]), figures["mask_accuracy"]
        yield f"    {name:<43} {perplexity:>12.1f} {share:>7.1%}"


# --- the text ---


def gather(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    """Documents to pre-train on, and labelled docstrings to fine-tune with."""
    begin(out, TEXT, TRAIN, TEST)
    yield "The text: the docstrings and the manual of this machine's Python and its packages"
    with screen.progress() as on_progress:
        found = list(read_all(on_progress))
    documents = [(one.document, one.package) for one in found]
    documents += [(chapter, "manual") for chapter in read_manual()]
    write_rows(out / TEXT, [{"text": text, "package": name} for text, name in documents if text])
    parts = label(
        found,
        is_held_out=lambda document: is_held_out(document_hash(document), scale.held_out_percent),
        num_packages=scale.num_packages,
        num_each=scale.num_each,
    )
    for name, part in zip((TRAIN, TEST), parts, strict=True):
        write_rows(out / name, [{"text": one.text, "label": one.package} for one in part])
    num_chars = sum(len(text) for text, _ in documents)
    yield f"  {out / TEXT}: {len(documents):,} documents, {num_chars / 1e6:.1f} million characters"


def read_all(on_progress: Progress) -> Iterator[Docstrings]:
    sources = find_sources()
    for number, (package, path) in enumerate(sources, 1):
        found = read_docstrings(path, package)
        on_progress("reading docstrings", number, len(sources))
        if found.texts:
            yield found


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    draft.replace(path)


def learn_vocab(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    begin(out, VOCAB)
    sets = (f"corpus.held_out_percent={scale.held_out_percent}",)
    text, vocab, size = out / TEXT, out / VOCAB, scale.num_pieces
    yield command("vocab", text, "--out", vocab, "--size", size, sets=sets)
    recipe = read_recipe(VocabRecipe, None, [f"learn.size={size}", *sets])
    with screen.progress() as on_progress:
        learned = make_vocab([text], vocab, recipe, workers=WORKERS, on_progress=on_progress)
    fit = learned.coverage
    yield f"  {len(learned.tokenizer.pieces):,} pieces from {learned.num_words:,} words"
    yield f"  {fit.pieces_per_word:.2f} of them make a word of the held-out text"
    yield command("tokenize", SENTENCE, "--vocab", vocab)
    yield "  " + " ".join(learned.tokenizer.tokens(learned.tokenizer.encode(SENTENCE).ids))


def make_store(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    begin(out, STORE)
    yield from encode(out, scale, screen, vocab=out / VOCAB, store=STORE)


def encode(
    out: Path, scale: Scale, screen: Screen, *, vocab: Path | str, store: str
) -> Iterator[str]:
    """The text as tokens of a vocabulary, or of the model that ships."""
    sets = (f"corpus.held_out_percent={scale.held_out_percent}",)
    text = out / TEXT
    yield command("prepare", text, "--vocab", vocab, "--out", out / store, sets=sets)
    recipe, folder = read_recipe(PrepareRecipe, None, sets), find_model(vocab)
    with screen.progress() as on_progress:
        made = prepare(
            [text], folder, out / store, recipe, workers=WORKERS, on_progress=on_progress
        )
    for name, part in (("to train with", made.train), ("held out", made.held_out)):
        if part is not None:
            yield f"  {part.num_documents:,} documents {name}, {part.num_tokens:,} tokens"


# --- pre-training ---


def pretrain_and_compare(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    """The model before and after, beside one who knows nothing but frequencies."""
    made = {}
    other = tuple(one for one in scale.pretrain if not one.startswith("train.budget="))
    for folder, sets in ((BEFORE, (*other, ONE_STEP)), (RUN, scale.pretrain)):
        begin(out, folder, STORE)  # the rows of an epoch lie beside the text
        places = "--store", out / STORE, "--out", out / folder
        yield command("pretrain", "quickstart", *places, sets=sets)
        if folder == BEFORE:
            yield "  the model as it begins: the rate of the first step is 0"
        recipe = read_recipe(PretrainRecipe, "quickstart", sets)
        recipe = replace(recipe, store=out / STORE, out=out / folder)
        with (screen if folder == RUN else Screen()).watch() as show:
            made[folder] = pretrain(recipe, command=screen.command, show=show)
    yield from compare(made[BEFORE], made[RUN])


def compare(before: Pretrained, after: Pretrained) -> Iterator[str]:
    spent = after.counters
    yield f"  {spent.step:,} steps, {spent.tokens:,} tokens in {describe_seconds(spent.seconds)}"
    if not after.guessing:
        yield "  no text was held out, so nothing can be compared"
        return
    yield "  On held-out documents, where the model sees [MASK]:     loss   right"
    for name, figures in (
        ("guessing by frequency", after.guessing),
        ("the model before training", before.held_out),
        ("the model after training", after.held_out),
    ):
        loss, share = figures["mask_loss"], figures["mask_accuracy"]
        yield f"    {name:<50} {loss:>6.3f} {share:>7.1%}"
    gap = after.guessing["mask_loss"] - after.held_out["mask_loss"]
    side = "below" if gap >= 0 else "above"
    yield f"  That is {abs(gap):.2f} nats {side} guessing by frequency."
    for kind, seen in (("kept", "the token itself"), ("random", "another token")):
        if f"{kind}_accuracy" in after.held_out:
            share = after.held_out[f"{kind}_accuracy"]
            yield f"  Apart from that, where it sees {seen}: {share:.1%} right."
    if "nsp_accuracy" in after.held_out:
        share = after.held_out["nsp_accuracy"]
        yield f"  Does the second text follow the first? {share:.1%} right; by chance, 50%."


def fill_masks(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    begin(out)
    yield from fill_before_and_after(out / BEFORE / "model", out / RUN / "model")


def fill_before_and_after(before: Path, after: Path) -> Iterator[str]:
    sides = {"before:": before, "after:": after}
    engines = {name: Engine.load(model, show=False) for name, model in sides.items()}
    for text in MASKED:
        yield command("fill", after, text, "--top", NUM_GUESSES)
        for name, engine in engines.items():
            yield f"  {name:<7} {guess(engine, text)}"


def guess(engine: Engine, text: str) -> str:
    fills = engine.fill(text, top=NUM_GUESSES).masks[0]
    return ", ".join(f"{fill.piece} {fill.probability:.1%}" for fill in fills)


# --- fine-tuning ---


def tell_packages(out: Path, scale: Scale, screen: Screen) -> Iterator[str]:
    """Which package is a docstring from? Learned from the pre-trained and from random weights."""
    made = {}
    contenders = [(TUNED, RUN, scale.finetune), (SCRATCH, BEFORE, scale.finetune)]
    if (out / ADAPTED).is_dir():
        contenders.append((ADAPTED_TUNED, ADAPTED, scale.finetune_adapted))
    for folder, model, sets in contenders:
        begin(out, folder)
        places = "--model", out / model / "model", "--train", out / TRAIN, "--test", out / TEST
        words = ("finetune", "quickstart-packages", *places, "--out", out / folder)
        yield command(*words, sets=sets)
        recipe = read_recipe(FinetuneRecipe, "quickstart-packages", sets)
        recipe = replace(
            recipe,
            model=out / model / "model",
            out=out / folder,
            data=replace(recipe.data, train=out / TRAIN, test=(out / TEST,)),
        )
        with screen.watch() as show:
            made[folder] = finetune(recipe, command=screen.command, show=show)
    begin(out)
    yield from compare_tuned(made, out / TEST)


def compare_tuned(made: Mapping[str, Finetuned], test: Path) -> Iterator[str]:
    names = {
        SCRATCH: "random weights",
        TUNED: "pre-trained weights",
        ADAPTED_TUNED: "model that ships",
    }
    results = made[TUNED].results
    num_labels = len(results.labels)
    num_tested = len(test.read_text(encoding="utf-8").splitlines())
    yield f"  Which of {num_labels} packages is a docstring from?"
    yield f"  {results.num_train:,} to learn from, {results.num_dev:,} to choose by; right of the"
    yield f"  {num_tested:,} in {test}, of documents that no training has seen:"
    yield f"    guessing at random              {1 / num_labels:>6.1%}"
    for folder, name in names.items():
        if folder in made:
            share = made[folder].results.tests[str(test)]["accuracy"]
            yield f"    fine-tuned {name:<20} {share:>6.1%}"
    if ADAPTED_TUNED in made:
        yield "  The model that ships has had its minute here, and reads more of each text."
    # Two standard errors of a difference of two shares, which are largest at a half.
    margin = 2 * math.sqrt(2 * 0.25 / num_tested)
    yield f"  Of so few texts, and one run each, differences up to {margin:.0%} may be chance."


# --- the folder ---


def begin(out: Path, *names: str) -> None:
    """Notes which files are here, and which files or folders are about to be written."""
    out.mkdir(parents=True, exist_ok=True)
    coming = [*names, *(f"{name}.draft" for name in names)]
    noted = {"files": list_files(out), "coming": coming}
    write_text(out / NOTED, json.dumps(noted))


def clear(out: Path) -> None:
    """Removes what an earlier quickstart wrote; a folder with anything else in it is refused."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    files, coming = read_note(out / NOTED)
    own = {NOTED, f".{NOTED}.draft", *files}
    for path in list_files(out):
        if path not in own and path.partition("/")[0] not in coming:
            raise UserError(
                f"{out} holds {path}, which is not of a quickstart; choose another --out"
            )
    for inside in out.iterdir() if out.exists() else ():  # `out` may be a link, or where one stands
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        else:
            inside.unlink()


def read_note(path: Path) -> tuple[list[str], list[str]]:
    """The files that were there, and what was about to be written."""
    if not path.is_file():
        return [], []
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return [str(one) for one in noted["files"]], [str(one) for one in noted["coming"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is damaged, so nothing tells which files are of a quickstart; remove "
            f"{path.parent}, or choose another --out"
        ) from None


def list_files(out: Path) -> list[str]:
    """All that is no folder; a link is none, wherever it leads."""
    found = (path for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(out).as_posix() for path in found)


# --- words ---


def command(*words: object, sets: Sequence[str] = ()) -> str:
    """
    >>> command("fill", Path("run/model"), "A [MASK].", "--top", 3)
    "$ bertie fill run/model 'A [MASK].' --top 3"
    """
    settings = (word for one in sets for word in ("--set", one))
    return "$ " + shlex.join(["bertie", *map(str, words), *settings])


def describe_seconds(seconds: float) -> str:
    """
    >>> describe_seconds(185.4)
    '3 min 5 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
