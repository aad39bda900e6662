"""The walk over documents, one sentence and one token at a time, as one would tell it.

It draws what `bertie.data.instances` draws, so the two must agree in every instance.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bertie.data import instances as names
from bertie.data.chance import Bits, fold
from bertie.data.instances import InstanceConfig, Text

Span = list[int]  # tokens, as places in the store


@dataclass
class PlainInstance:
    a: Span
    b: Span
    label: int
    chunk: list[int]  # its sentences
    whole_a: Span  # before truncation
    whole_b: Span
    num_breaks: int = 0


class Dice:
    """The draws of one instance."""

    def __init__(self, key: Bits, sentence: int) -> None:
        self.key = fold(key, sentence)

    def bits(self, purpose: int) -> int:
        return int(fold(self.key, purpose)[0])

    def up_to(self, purpose: int, limit: int) -> int:
        """0 .. limit - 1"""
        return self.bits(purpose) * limit >> 64

    def toss(self, purpose: int, number: int) -> bool:
        word = int(fold(fold(self.key, purpose), number // 64)[0])
        return bool(word >> (63 - number % 64) & 1)


def plain_walk(text: Text, config: InstanceConfig, key: Bits) -> list[PlainInstance]:
    places = [list(range(a, b)) for a, b in pairwise(text.sentences.tolist())]
    documents = [list(range(a, b)) for a, b in pairwise(text.documents.tolist())]
    if config.kind == "full":
        return plain_full(places, documents, config, key)
    found = []
    for number, document in enumerate(documents):
        i = 0
        while i < len(document):
            made, i = plain_pair(places, documents, number, i, config, key)
            found.append(made)
    return found


def plain_target(dice: Dice, config: InstanceConfig, room: int) -> int:
    if dice.bits(names.SHORT) < int(config.short_share * 2.0**64):
        return 2 + dice.up_to(names.TARGET, room - 1)
    return room


def plain_pair(
    places: list[Span],
    documents: list[list[int]],
    number: int,
    i: int,
    config: InstanceConfig,
    key: Bits,
) -> tuple[PlainInstance, int]:
    """The instance that starts with sentence i of a document, and where the next one starts."""
    document = documents[number]
    dice = Dice(key, document[i])
    room = config.max_length - 3
    target = plain_target(Dice(key, document[0]) if config.paper_exact else dice, config, room)
    if config.kind == "sentences":
        target = 1
    chunk: list[int] = []
    length = 0
    end = i
    while end < len(document):
        chunk.append(document[end])
        length += len(places[document[end]])
        end += 1
        if length >= target and (config.paper_exact or len(chunk) >= 2):
            break
    second = dice.bits(names.LABEL) < 2**63
    steps_back = not config.paper_exact and len(chunk) == 1 and i > 0
    split = 1 if len(chunk) == 1 else 1 + dice.up_to(names.SPLIT, len(chunk) - 1)
    if steps_back:
        chunk = [document[i - 1], *chunk]
    if config.kind == "sop":
        return plain_sop(places, dice, chunk, split, second, room), end
    if len(chunk) == 1 or second:
        a = chunk[1:] if steps_back else chunk[:split]
        whole_a = [t for s in a for t in places[s]]
        document, first = plain_start(documents, number, dice, config.elsewhere)
        whole_b = plain_other(places, document[first:], target - len(whole_a))
        return finish(dice, whole_a, whole_b, 1, chunk, room), i + split
    whole_a = [t for s in chunk[:split] for t in places[s]]
    whole_b = [t for s in chunk[split:] for t in places[s]]
    return finish(dice, whole_a, whole_b, 0, chunk, room), end


def plain_sop(
    places: list[Span], dice: Dice, chunk: list[int], split: int, second: bool, room: int
) -> PlainInstance:
    whole_a = [t for s in chunk[:split] for t in places[s]]
    whole_b = [t for s in chunk[split:] for t in places[s]]
    if not whole_b:
        return finish(dice, whole_a, whole_b, -1, chunk, room + 1)
    made = finish(dice, whole_a, whole_b, int(second), chunk, room)
    if second:
        made.a, made.b = made.b, made.a
    return made


def plain_start(
    documents: list[list[int]], number: int, dice: Dice, elsewhere: str
) -> tuple[list[int], int]:
    """Another document, and which of its sentences."""
    others = documents[:number] + documents[number + 1 :]
    if elsewhere == "document":
        document = others[dice.up_to(names.DOCUMENT, len(others))]
        return document, dice.up_to(names.SENTENCE, len(document))
    starts = [(document, first) for document in others for first in range(len(document))]
    return starts[dice.up_to(names.SENTENCE, len(starts))]


def plain_other(places: list[Span], sentences: list[int], room: int) -> Span:
    found: Span = []
    for sentence in sentences:
        found += places[sentence]
        if len(found) >= room:
            break
    return found


def finish(
    dice: Dice, whole_a: Span, whole_b: Span, label: int, chunk: list[int], room: int
) -> PlainInstance:
    """Truncates: one token of the longer side, in front or at the end, until it fits."""
    sides = [list(whole_a), list(whole_b)]
    tossed = [0, 0]
    while len(sides[0]) + len(sides[1]) > room:
        side = 0 if len(sides[0]) > len(sides[1]) else 1
        is_front = dice.toss((names.CUT_A, names.CUT_B)[side], tossed[side])
        sides[side].pop(0 if is_front else -1)
        tossed[side] += 1
    return PlainInstance(sides[0], sides[1], label, chunk, whole_a, whole_b)


def plain_full(
    places: list[Span], documents: list[list[int]], config: InstanceConfig, key: Bits
) -> list[PlainInstance]:
    room = config.max_length - 2
    streams = [documents] if config.across_documents else [[d] for d in documents]
    found = []
    for stream in streams:
        rest = [(number, s) for number, document in enumerate(stream) for s in document]
        while rest:
            target = plain_target(Dice(key, rest[0][1]), config, room)
            taken = [rest.pop(0)]
            while rest:
                tokens = sum(len(places[s]) for _, s in [*taken, rest[0]])
                if tokens + rest[0][0] - taken[0][0] > target:
                    break
                taken.append(rest.pop(0))
            tokens = [t for _, s in taken for t in places[s]]
            chunk = [s for _, s in taken]
            parts = np.array_split(tokens, 1) if len(taken) > 1 else equal_parts(tokens, room)
            for part in parts:
                breaks = taken[-1][0] - taken[0][0]
                whole = [int(t) for t in part]
                found.append(PlainInstance(whole, [], -1, chunk, whole, [], breaks))
    return found


def equal_parts(tokens: Span, room: int) -> list[Span]:
    count = max(1, -(-len(tokens) // room))
    cuts = [len(tokens) * n // count for n in range(count + 1)]
    return [tokens[a:b] for a, b in pairwise(cuts)]
