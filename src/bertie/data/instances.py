"""The paper's walk over the documents of a store: which spans of text become one instance.

An instance is a row of places in the store, not a copy of its text. Its chance is keyed by the
sentence it starts with, so what it would be is known for every sentence at once, and the walk only
follows from one start to the next. `docs/formats.md` describes the rows, `KINDS` the kinds.
"""

# S sentences   n sentences of a block   r instances of a block

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from bertie.data.chance import Bits, Ints, below, fold, happens, heads
from bertie.errors import UserError

ROW = np.dtype(
    [
        ("a", "<i8"),  # where segment A starts, in tokens of the store
        ("b", "<i8"),  # where segment B starts
        ("a_length", "<u2"),
        ("b_length", "<u2"),  # 0: there is no B
        ("label", "i1"),  # 0: B follows A; 1: it does not (nsp), or came before (sop); -1: no pair
        ("num_sentences", "u1"),  # of the chunk it was made of, 255 for more
        ("num_breaks", "<u2"),  # ends of documents inside A, each a [SEP]
    ]
)
BLOCK = 1 << 16  # sentences looked at together; bounds the memory, changes nothing
RANGE = 1 << 18  # sentences of whole documents that one process walks at a time

# What the draws of one instance are for.
SHORT, TARGET, SPLIT, LABEL, DOCUMENT, SENTENCE, CUT_A, CUT_B = range(8)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """What an instance is. The defaults are the paper's, without the quirks of its code.

    nsp        [CLS] A [SEP] B [SEP], filled with sentences; B is A's continuation or, half of the
               time, from another document
    sop        the same with the true continuation, A and B swapped half of the time
    sentences  as nsp, but A and B are one sentence each
    full       [CLS] A [SEP]: whole sentences, as many as fit; no token is lost
    """

    kind: Literal["nsp", "sop", "sentences", "full"] = "nsp"
    max_length: int = 128  # with the special tokens
    short_share: float = 0.1  # of instances that aim at a random shorter length
    framed: bool = True  # with [CLS] and [SEP]; only full can do without, as GPT's texts do
    across_documents: bool = False  # full: go on into the next document, after a [SEP]
    elsewhere: Literal["document", "sentence"] = "document"  # where NotNext is drawn: all other
    # documents are equally likely, or all their sentences, and so long documents more often
    paper_exact: bool = False  # nsp: short documents instead of short instances; chunks of one
    # sentence, always NotNext; otherwise a chunk has two sentences where its document has

    def __post_init__(self) -> None:
        if not 8 <= self.max_length <= 32_768:
            raise UserError(f"max_length is 8 to 32768; found {self.max_length}")
        if not 0 <= self.short_share <= 1:
            raise UserError(f"short_share is 0 to 1; found {self.short_share}")
        if self.across_documents and self.kind != "full":
            raise UserError(f'across_documents goes with kind = "full"; found "{self.kind}"')
        if not self.framed and (self.kind != "full" or self.across_documents):
            raise UserError(
                'framed = false goes with kind = "full" and without across_documents: texts that '
                "meet need a [SEP] between them"
            )
        if self.elsewhere != "document" and self.kind not in ("nsp", "sentences"):
            raise UserError(f'elsewhere goes with kind = "nsp" or "sentences"; found "{self.kind}"')
        if self.paper_exact and self.kind != "nsp":
            raise UserError(f'paper_exact goes with kind = "nsp"; found "{self.kind}"')

    @property
    def room(self) -> int:
        """Tokens of text that one segment may have."""
        return self.max_length - (2 if self.framed else 0)


class Text(NamedTuple):
    """Where the sentences and documents of a store begin."""

    sentences: Ints  # (S + 1,) in tokens
    documents: Ints  # (D + 1,) in sentences


class Block(NamedTuple):
    """n sentences in a row, and those behind them that their instances may reach into."""

    text: Text
    key: Bits  # of the walk
    first: int  # sentence
    size: int  # n
    offsets: Ints  # (n + reach + 1,) in tokens
    document: Ints  # (n + reach,)
    start: Ints  # (n,) of the document, as a place in the block; may be negative
    end: Ints  # (n,) of the document or of what the walk may see of it, as a place in the block
    keys: Bits  # (n,) of the instance that starts here


class Chunks(NamedTuple):
    """The instance that would start with each sentence of a block; places count in the block."""

    target: Ints  # (n,) tokens to aim at
    end: Ints  # (n,) where the chunk ends
    split: Ints  # (n,) where B starts, if it is the continuation
    label: Ints  # (n,)
    next: Ints  # (n,) where the next instance starts


def check_text(config: InstanceConfig, text: Text) -> None:
    """Refuses a store that the kind cannot be made from."""
    num_documents = len(text.documents) - 1
    if not len(text.sentences) > 1:
        raise UserError("the store has no sentences; prepare it from text that has some")
    if config.kind in ("nsp", "sentences") and num_documents < 2:
        raise UserError(
            f'kind = "{config.kind}" takes sentences of another document, and the store has only '
            'one; prepare text with a blank line between documents, or take kind = "sop" or "full"'
        )


def find_ranges(text: Text) -> list[tuple[int, int]]:
    """Runs of whole documents (first, last + 1), about equal; the same on every machine."""
    cuts = np.searchsorted(text.documents, np.arange(RANGE, len(text.sentences) - 1, RANGE))
    ends = np.unique([0, *cuts.tolist(), len(text.documents) - 1]).tolist()
    return list(pairwise(ends))


def walk(
    text: Text, config: InstanceConfig, key: Bits, documents: tuple[int, int]
) -> Iterator[np.ndarray]:
    """The instances of a range of documents in the order of their first sentences: ROWs."""
    kind = KINDS[config.kind]
    place, stop = (int(text.documents[d]) for d in documents)
    while place < stop:
        block = look(text, config, key, place, stop)
        chunks = kind.plan(block, config)
        taken, place = follow(chunks.next.tolist(), block.size)
        place += block.first
        taken_places = np.array(taken)
        rows = kind.make(
            block, Chunks(*(part[taken_places] for part in chunks)), taken_places, config
        )
        yield rows[rows["a_length"] > 0]  # a sentence without tokens makes none


def look(text: Text, config: InstanceConfig, key: Bits, first: int, stop: int) -> Block:
    """The next block of a range that ends at sentence `stop`."""
    size = min(BLOCK, stop - first)
    # A sentence has a token at least, so a chunk has at most max_length of them.
    seen = min(size + config.max_length + 2, stop - first)
    low = int(np.searchsorted(text.documents, first, "right")) - 1
    high = int(np.searchsorted(text.documents, first + seen))
    bounds = text.documents[low : high + 1] - first  # (d + 1,)
    inside = np.clip(bounds, 0, seen)
    counts = inside[1:] - inside[:-1]
    document = np.repeat(np.arange(low, high), counts)
    ends = np.repeat(np.minimum(bounds[1:], seen), counts)[:size]
    return Block(
        text=text,
        key=key,
        first=first,
        size=size,
        offsets=text.sentences[first : first + seen + 1],
        document=document,
        start=np.repeat(bounds[:-1], counts)[:size],
        end=np.full(size, seen) if config.across_documents else ends,
        keys=fold(key, np.arange(first, first + size)),
    )


def follow(nexts: list[int], size: int) -> tuple[list[int], int]:
    """The starts that are reached from place 0, and the first one that lies behind the block."""
    taken = []
    place = 0
    while place < size:
        taken.append(place)
        place = nexts[place]
    return taken, place


def draw_targets(block: Block, config: InstanceConfig, room: int) -> Ints:
    """(n,) `room` or, now and then, any length from 2 to it."""
    # The original draws once per document: here, what its first sentence draws.
    keys = fold(block.key, block.first + block.start) if config.paper_exact else block.keys
    is_short = happens(fold(keys, SHORT), config.short_share)
    return np.where(is_short, 2 + below(fold(keys, TARGET), room - 1), room)


def plan_pairs(block: Block, config: InstanceConfig) -> Chunks:
    """Sentences until the target is reached or the document ends; split before a random one."""
    places = np.arange(block.size)
    target = np.ones(block.size, np.int64)  # sentences: the shortest chunk there is
    if config.kind != "sentences":
        target = draw_targets(block, config, config.max_length - 3)
    reached = np.searchsorted(block.offsets, block.offsets[:-1][: block.size] + target)
    if not config.paper_exact:
        reached = np.maximum(reached, places + 2)
    end = np.minimum(reached, block.end)
    split = places + 1 + below(fold(block.keys, SPLIT), np.maximum(end - places - 1, 1))
    label = happens(fold(block.keys, LABEL), 0.5).astype(np.int64)
    is_alone = end - places == 1
    if not config.paper_exact:  # a last sentence can take the one before it for its partner
        is_alone &= places == block.start
    if config.kind == "sop":
        return Chunks(target, end, split, np.where(is_alone, -1, label), end)
    label[is_alone] = 1
    # What B did not take from this document is put back.
    return Chunks(target, end, split, label, np.where(label == 1, split, end))


def make_next_pairs(
    block: Block, chunks: Chunks, taken: Ints, config: InstanceConfig
) -> np.ndarray:
    """B is the rest of the chunk, or starts with any sentence of any other document."""
    sentences, is_next = block.text.sentences, chunks.label == 0
    first, split = step_back(chunks, taken, is_next)
    a, a_end = (sentences[block.first + place] for place in (first, split))  # in tokens
    b, b_end = a_end.copy(), sentences[block.first + chunks.end]
    other = np.flatnonzero(~is_next)
    b[other], b_end[other] = draw_elsewhere(
        block, taken[other], chunks.target[other] - (a_end - a)[other], config.elsewhere
    )
    return cut_pairs(block, chunks, taken, (a, a_end, b, b_end), config)


def make_ordered_pairs(
    block: Block, chunks: Chunks, taken: Ints, config: InstanceConfig
) -> np.ndarray:
    """B is the rest of the chunk; label 1 swaps the two. A document of one sentence has no B."""
    sentences = block.text.sentences
    first, split = step_back(chunks, taken, chunks.label >= 0)
    bounds = (first, split, split, chunks.end)
    a, a_end, b, b_end = (sentences[block.first + place] for place in bounds)
    rows = cut_pairs(block, chunks, taken, (a, a_end, b, b_end), config)
    swapped = rows["label"] == 1
    for one, two in (("a", "b"), ("a_length", "b_length")):
        rows[one][swapped], rows[two][swapped] = rows[two][swapped], rows[one][swapped]
    return rows


def step_back(chunks: Chunks, taken: Ints, has_rest: np.ndarray) -> tuple[Ints, Ints]:
    """Where A starts and ends: a last sentence that is alone becomes B of the one before it."""
    is_alone = (chunks.end - taken == 1) & has_rest
    return taken - is_alone, np.where(is_alone, taken, chunks.split)


def draw_elsewhere(block: Block, taken: Ints, room: Ints, drawn: str) -> tuple[Ints, Ints]:
    """Tokens from a random sentence of another document on, until `room` or the document's end."""
    sentences, documents = block.text
    keys, own = block.keys[taken], block.document[taken]
    # Never the same document; the original gives up after ten tries.
    if drawn == "document":
        other = below(fold(keys, DOCUMENT), len(documents) - 2)
        other += other >= own
        low = documents[other]
        first = low + below(fold(keys, SENTENCE), documents[other + 1] - low)
    else:
        own_start, own_size = documents[own], documents[own + 1] - documents[own]
        first = below(fold(keys, SENTENCE), documents[-1] - own_size)
        first += np.where(first >= own_start, own_size, 0)
        other = np.searchsorted(documents, first, side="right") - 1
        other = np.minimum(other, len(documents) - 2)  # where no other document has a sentence
    start = sentences[first]
    end = documents[other + 1]
    last = np.minimum(np.searchsorted(sentences, start + np.maximum(room, 1)), end)
    return start, sentences[last]


def cut_pairs(
    block: Block,
    chunks: Chunks,
    taken: Ints,
    bounds: tuple[Ints, Ints, Ints, Ints],
    config: InstanceConfig,
) -> np.ndarray:
    """Cuts the longer side, one token after the other, in front or at the end as chance has it."""
    a, a_end, b, b_end = bounds
    keys = block.keys[taken]
    room = config.max_length - 2 - (b_end > b)
    a_length, b_length = a_end - a, b_end - b
    a_kept = np.minimum(a_length, np.maximum(room - b_length, (room + 1) // 2))
    b_kept = np.minimum(b_length, room - a_kept)
    rows = np.zeros(len(a), ROW)
    rows["a"] = a + heads(fold(keys, CUT_A), a_length - a_kept)
    rows["b"] = b + heads(fold(keys, CUT_B), b_length - b_kept)
    rows["a_length"], rows["b_length"] = a_kept, b_kept
    rows["label"] = np.where(b_kept > 0, chunks.label, -1)
    num_sentences = chunks.end - taken
    if not config.paper_exact:  # with the one before it
        num_sentences = np.maximum(num_sentences, np.minimum(chunks.end - block.start[taken], 2))
    rows["num_sentences"] = np.minimum(num_sentences, 255)
    return rows


def plan_full(block: Block, config: InstanceConfig) -> Chunks:
    """As many whole sentences as fit, at least one."""
    places = np.arange(block.size)
    target = draw_targets(block, config, config.room)
    costs, begun = block.offsets, block.offsets[: block.size]
    if config.across_documents:  # each end of a document costs a token
        costs = costs + np.concatenate([block.document[:1], block.document])
        begun = begun + block.document[: block.size]
    end = np.searchsorted(costs, begun + target, "right") - 1
    end = np.minimum(np.maximum(end, places + 1), block.end)
    return Chunks(target, end, end, np.full(block.size, -1), end)


def make_full(block: Block, chunks: Chunks, taken: Ints, config: InstanceConfig) -> np.ndarray:
    """One segment; a sentence that is too long alone becomes several instances of equal length."""
    room = config.room
    start, end = block.offsets[taken], block.offsets[chunks.end]
    num_parts = np.maximum(1, -(-(end - start) // room))
    num_parts[chunks.end - taken > 1] = 1  # breaks are counted in the room already
    row = np.repeat(np.arange(len(taken)), num_parts)  # (r,)
    part = np.arange(len(row)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    low, high = (
        start[row] + (end - start)[row] * number // num_parts[row] for number in (part, part + 1)
    )
    rows = np.zeros(len(row), ROW)
    rows["a"], rows["a_length"], rows["label"] = low, high - low, -1
    rows["num_sentences"] = np.minimum(chunks.end - taken, 255)[row]
    rows["num_breaks"] = (block.document[chunks.end - 1] - block.document[taken])[row]
    return rows


def row_lengths(rows: np.ndarray, *, framed: bool = True) -> Ints:
    """(r,) tokens of each instance, with [CLS] and [SEP] where it has them."""
    if not framed:
        return rows["a_length"].astype(np.int64)
    b_length = rows["b_length"].astype(np.int64)
    total: Ints = 2 + rows["a_length"] + rows["num_breaks"] + b_length + (b_length > 0)
    return total


class Kind(NamedTuple):
    plan: Callable[[Block, InstanceConfig], Chunks]
    make: Callable[[Block, Chunks, Ints, InstanceConfig], np.ndarray]


KINDS = {
    "nsp": Kind(plan_pairs, make_next_pairs),
    "sop": Kind(plan_pairs, make_ordered_pairs),
    "sentences": Kind(plan_pairs, make_next_pairs),
    "full": Kind(plan_full, make_full),
}
