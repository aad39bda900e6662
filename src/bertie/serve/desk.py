"""Where a checked request becomes a question to a model, and its answer becomes JSON."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request

from bertie.infer.answers import Answered, to_json
from bertie.infer.embed import cosines
from bertie.infer.engine import Engine
from bertie.infer.fill import Filled
from bertie.infer.verb import Verb
from bertie.serve.attention import Looks
from bertie.serve.batcher import Batcher, Size
from bertie.serve.bodies import (
    AnyBody,
    ClassifyBody,
    EmbedBody,
    FillBody,
    SimilarityBody,
    fill_size,
    num_masks,
    num_read,
    size_of,
    texts_of,
)
from bertie.serve.gate import visit_of
from bertie.serve.models import Models, Served
from bertie.serve.refusals import Refused, write_json
from bertie.serve.settings import Limits

DECIMALS = 7  # of vectors' numbers, which float32 holds about as exactly
SHOWN_DECIMALS = 4  # of attention, which is looked at
A = TypeVar("A")
B = TypeVar("B")


class Desk:
    """Takes bodies of requests to the batcher."""

    def __init__(self, models: Models, batcher: Batcher, limits: Limits) -> None:
        self.models, self.batcher, self.limits = models, batcher, limits

    def find(self, request: Request, name: str, verb: str) -> Served:
        """The model, noted for the log."""
        served = self.models.get_for(name, verb)
        visit = visit_of(request)
        visit.model, visit.verb = name, verb
        return served

    async def answer(self, request: Request, name: str, verb: str, body: AnyBody) -> bytes:
        """What the engine answers, as JSON; it is written in the worker's thread."""
        served = self.find(request, name, verb)
        if isinstance(body, ClassifyBody):
            check_pairing(served, is_paired=body.pairs is not None)
        asked = body.asked()
        is_fill = isinstance(body, FillBody)
        if is_fill:
            self.check_masks(asked.items, served.engine)
        size = fill_size if is_fill else size_of
        way = written(body.verb(served.engine), write_answer)
        answers = await self.ask(request, served, (body.key(), "json"), way, asked.items, size)
        return answers[0] if asked.is_one else b"[" + b",".join(answers) + b"]"

    async def similarity(self, request: Request, name: str, body: SimilarityBody) -> bytes:
        served = self.find(request, name, "similarity")
        if body.texts is not None:
            vectors = await self.embed(request, served, body.texts)
            return await asyncio.to_thread(write_matrix, vectors)
        sides = [[one] if isinstance(one, str) else one for one in (body.a, body.b)]
        vectors = await self.embed(request, served, [text for side in sides for text in side or []])
        length = len(sides[0] or [])
        found = np.round(cosines(vectors[:length], vectors[length:]), DECIMALS)
        is_one = isinstance(body.a, str) and isinstance(body.b, str)
        return write_json(float(found[0]) if is_one else found.tolist())

    async def embed(self, request: Request, served: Served, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length 1, (N, D)."""
        body = EmbedBody(texts=list(texts), normalise=True)
        rows = await self.ask(
            request, served, (body.key(), "rows"), body.verb(served.engine), texts
        )
        size = served.about.hidden_size
        return np.stack(rows) if rows else np.zeros((0, size), np.float32)

    async def ask(
        self,
        request: Request,
        served: Served,
        key: Hashable,
        verb: Verb[Any, A],
        items: Sequence[object],
        size: Callable[[object, Engine], Size] = size_of,
    ) -> list[A]:
        """The answers to all items, in order."""
        self.check_size(items)
        sizes = [size(item, served.engine) for item in items]
        visit = visit_of(request)
        visit.num_texts = sum(size.num_texts for size in sizes)
        visit.num_tokens = sum(size.num_tokens for size in sizes)
        if not items:
            return []
        return await self.batcher.ask(served.name, key, verb, items, sizes)

    def check_size(self, items: Sequence[object]) -> None:
        num_texts = sum(map(num_read, items))
        if num_texts > self.limits.texts:
            raise Refused(413, f"{num_texts} texts; the limit is {self.limits.texts} in a request")
        most = max(map(num_read, items), default=0)
        if most > self.limits.options:
            raise Refused(413, f"{most} options; the limit is {self.limits.options} for a prompt")
        longest = max((len(text) for item in items for text in texts_of(item)), default=0)
        if longest > self.limits.characters:
            raise Refused(
                413,
                f"a text of {longest:,} characters; the limit is {self.limits.characters:,}",
            )

    def check_masks(self, texts: Sequence[object], engine: Engine) -> None:
        most = max((num_masks(str(text), engine) for text in texts), default=0)
        if most > self.limits.masks:
            raise Refused(
                413, f"{most:,} masks; the limit is {self.limits.masks} in a text", "texts"
            )


def check_pairing(served: Served, *, is_paired: bool) -> None:
    if served.about.pairs is (not is_paired):
        field = "texts" if is_paired else "pairs"
        raise Refused(422, f"{served.name} was fine-tuned on {field}; send {field}", field)


def written(verb: Verb[Any, A], write: Callable[[A], B]) -> Verb[Any, B]:
    """The verb, its answers put into another form."""

    def answer(examples: Sequence[Any]) -> list[B]:
        return [write(one) for one in verb.answer(examples)]

    return Verb(read=verb.read, size=verb.size, answer=answer, what=verb.what)


def write_matrix(vectors: np.ndarray) -> bytes:
    """The cosines of each with each, (N, D) -> (N, N)."""
    exact = vectors.astype(np.float64)
    return write_json(np.round(exact @ exact.T, DECIMALS).tolist())


def write_answer(answer: object) -> bytes:
    if isinstance(answer, np.ndarray):
        return write_json(np.round(answer.astype(np.float64), DECIMALS).tolist())
    if isinstance(answer, Filled):
        return write_json(to_json(answer.to_json()))
    if isinstance(answer, Looks):
        return write_json(look_fields(answer))
    if isinstance(answer, Answered) and not answer.candidates:  # then there is nothing to compare
        return write_json(asdict(answer) | {"no_answer": None})
    return write_json(to_json(answer))


def look_fields(looks: Looks) -> dict[str, object]:
    return {
        "tokens": looks.tokens,
        "layer": looks.layer,
        "num_layers": looks.num_layers,
        "heads": np.round(looks.heads.astype(np.float64), SHOWN_DECIMALS).tolist(),
    }
