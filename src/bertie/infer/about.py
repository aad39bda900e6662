"""What a model can be asked, and what its answers are made of."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bertie.errors import UserError
from bertie.infer.engine import Engine
from bertie.infer.task_of import reads_pairs
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag

ALWAYS = ("embed", "similarity", "attention")  # what needs no head
TRIALS: dict[str, Callable[[Engine], object]] = {  # each is refused where the model cannot
    "fill": lambda engine: engine.fill_verb(1),
    "classify": lambda engine: engine.classify_verb(is_paired=takes_pairs(engine) is True),
    "tag": Engine.tag_verb,
    "answer": Engine.answer_verb,
    "choose": Engine.choose_verb,
}
SCRIPTS = {  # pieces that tell of a script; single Latin letters are in every vocabulary
    "latin": re.compile(r"[A-Za-z]{3}"),
    "han": re.compile(r"[\u4e00-\u9fff]"),
}
# With so many of them a vocabulary is at home in a script, even where it has more of another one.
# Of the published ones, the multilingual has 58,972 and 13,542, the Chinese 2,694 and 14,642, the
# English have 24,996 and more and at most 488.
AT_HOME = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Of a model in use."""

    verbs: tuple[str, ...]  # fill, classify, ...
    kind: str  # of classes: classes, multi-label or regression; of tags: spans or words; or ""
    labels: tuple[str, ...]  # of its classes or tags
    pairs: bool | None  # whether it classifies pairs of texts; none where either may be asked
    may_be_unanswerable: bool
    mask_token: str
    scripts: tuple[str, ...]  # latin, han: what its pieces are written in, the main one first
    max_length: int  # tokens that it reads at once; more are read in windows
    hidden_size: int
    num_layers: int
    num_heads: int


def describe_engine(engine: Engine) -> About:
    task, config = engine.task, engine.model.config
    labelled = task if isinstance(task, Classify | Tag) else None
    return About(
        verbs=(*(verb for verb in TRIALS if can(engine, verb)), *ALWAYS),
        kind=(labelled.kind or "") if labelled else "",
        labels=tuple(labelled.labels) if labelled else (),
        pairs=takes_pairs(engine),
        may_be_unanswerable=isinstance(task, Span) and bool(task.may_be_unanswerable),
        mask_token=engine.tokenizer.config.mask_token,
        scripts=find_scripts(engine.tokenizer.pieces),
        max_length=engine.max_length,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
    )


def find_scripts(pieces: Iterable[str]) -> tuple[str, ...]:
    """
    >>> find_scripts(["[CLS]", "paris", "##ing", "中", "a"])
    ('latin',)
    """
    pieces = [piece for piece in pieces if not piece.startswith("[")]
    counts = {name: sum(map(bool, map(script.search, pieces))) for name, script in SCRIPTS.items()}
    main, *others = sorted(counts, key=lambda name: -counts[name])
    found = [main, *(name for name in others if counts[name] >= AT_HOME)]
    return tuple(found) if counts[main] else ()


def can(engine: Engine, verb: str) -> bool:
    try:
        TRIALS[verb](engine)
    except UserError:
        return False
    return True


def takes_pairs(engine: Engine) -> bool | None:
    return reads_pairs(engine.task) if isinstance(engine.task, Classify) else None
