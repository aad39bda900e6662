"""Requests of many people, gathered into batches for one worker thread.

What waits is kept in a line for each model. The lines take turns, a batch each. A batch takes the
oldest request of a line and all others that ask the same (verb and settings), up to a number of
tokens. A request that does not fit into a batch gets what fits, and goes to the end of its line
with the rest. All of this happens on the event loop, so there are no locks; only the computing
happens elsewhere.
"""

import asyncio
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from bertie.errors import UserError
from bertie.infer.verb import Verb
from bertie.serve.metrics import Metrics
from bertie.serve.refusals import Refused, come_back
from bertie.serve.settings import Batching, Limits

MEMORY = 0.9  # of the speed so far, after each batch
A = TypeVar("A")


class Size(NamedTuple):
    """How much an item is."""

    num_texts: int  # that the model reads for it
    num_tokens: int  # of all of them, about


@dataclass(kw_only=True, slots=True, eq=False)
class Job(Generic[A]):
    """What a request asks, and as much of the answer as there is."""

    model: str
    key: Hashable  # of one model, equal keys are asked with equal verbs
    verb: Verb[Any, A]
    items: Sequence[object]
    sizes: Sequence[Size]  # of each item
    future: asyncio.Future[list[A]]
    num_taken: int = 0  # items that were given to the worker
    answers: list[A] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        return len(self.items) - self.num_taken

    @property
    def left(self) -> "Part":
        return Part(self, self.num_taken, len(self.items))

    def settle(self, outcome: "list[A] | Exception") -> None:
        """With the answers to the items that come next, or with what went wrong."""
        if self.future.done():  # nobody waits any more
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
            return
        self.answers += outcome
        if len(self.answers) == len(self.items):
            self.future.set_result(self.answers)


class Part(NamedTuple):
    """Some items of a job, in a row."""

    job: Job[Any]
    start: int
    end: int

    @property
    def num_texts(self) -> int:
        return sum(size.num_texts for size in self.job.sizes[self.start : self.end])

    @property
    def num_tokens(self) -> int:
        return sum(size.num_tokens for size in self.job.sizes[self.start : self.end])


@dataclass(slots=True)
class Speed:
    """Of the last batches, the latest most of all."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self.num_tokens = self.num_tokens * MEMORY + num_tokens
        self.seconds = self.seconds * MEMORY + seconds

    def seconds_for(self, num_tokens: float) -> float:
        return num_tokens * self.seconds / self.num_tokens if self.num_tokens else 0.0


class Batcher:
    """Takes questions, and answers each when its turn comes."""

    def __init__(self, settings: Batching, limits: Limits, metrics: Metrics) -> None:
        self.settings, self.limits, self.metrics = settings, limits, metrics
        self.num_waiting = 0  # texts
        self.num_tokens_waiting = 0
        self.num_tokens_computed = 0  # in the batch at work
        self.speed = Speed()
        self.is_closing = False
        self.is_computing = False
        self._lines: dict[str, deque[Job[Any]]] = {}  # by model; the first has its turn
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bertie-model")
        self._changed = asyncio.Event()
        self._num_before = 1  # texts of the batch before

    async def ask(
        self,
        model: str,
        key: Hashable,
        verb: Verb[Any, A],
        items: Sequence[object],
        sizes: Sequence[Size],
    ) -> list[A]:
        """The answers, in order; whoever is cancelled while waiting leaves the line."""
        self._check_room(sum(size.num_texts for size in sizes))
        future: asyncio.Future[list[A]] = asyncio.get_running_loop().create_future()
        job = Job(model=model, key=key, verb=verb, items=items, sizes=sizes, future=future)
        self._lines.setdefault(model, deque()).append(job)
        self.num_waiting += job.left.num_texts
        self.num_tokens_waiting += job.left.num_tokens
        self._changed.set()
        try:
            return await future
        finally:
            self._leave(job)

    def _check_room(self, num_texts: int) -> None:
        if self.is_closing:
            raise Refused(503, "the server is shutting down; ask again in a moment")
        if (excess := self.num_waiting + num_texts - self.limits.waiting) > 0:
            raise come_back(
                f"{self.num_waiting} texts are waiting and {num_texts} more were asked; the limit "
                f"is {self.limits.waiting}",
                self.wait_s(min(1.0, excess / max(1, self.num_waiting))),
            )
        # How long a queue may be depends on how fast it moves. Something may always wait: the speed
        # of small batches says little about that of large ones.
        wait_s, limit_s = self.wait_s(), self.limits.waiting_s
        if self.num_tokens_waiting >= self.settings.tokens and wait_s > limit_s:
            raise come_back(
                f"what waits will take {wait_s:.1f} s; the limit is {limit_s:g} s", wait_s - limit_s
            )

    def wait_s(self, share: float = 1.0) -> float:
        """Until the batch at work and such a share of what waits are done, by the speed so far."""
        return self.speed.seconds_for(self.num_tokens_computed + share * self.num_tokens_waiting)

    def _leave(self, job: Job[Any]) -> None:
        if not job.num_left:
            return
        self.num_waiting -= job.left.num_texts
        self.num_tokens_waiting -= job.left.num_tokens
        self._lines[job.model].remove(job)
        if not self._lines[job.model]:
            del self._lines[job.model]

    async def run(self) -> None:
        """Answers what comes until it is closed and nothing is left."""
        loop = asyncio.get_running_loop()
        ended_at = 0.0  # the batch before, if this one was waiting already
        while await self._gather():
            parts = self._take()
            self._num_before = num_texts_of(parts)
            self.num_tokens_computed = num_tokens_of(parts)
            started_at = time.monotonic()
            self.is_computing = True
            outcomes = await loop.run_in_executor(self._worker, answer_parts, parts)
            self.is_computing = False
            self._count(parts, time.monotonic() - started_at)
            # Who waits for a batch waits for what lies between batches, too.
            self.speed.add(self.num_tokens_computed, time.monotonic() - (ended_at or started_at))
            self.num_tokens_computed = 0
            for part, outcome in zip(parts, outcomes, strict=True):
                part.job.settle(outcome)
            ended_at = time.monotonic() if self._lines else 0.0
        self._worker.shutdown()

    def close(self) -> None:
        self.is_closing = True
        self._changed.set()

    async def _gather(self) -> bool:
        """Until something waits, and a little longer where more is likely to come.

        Those who were answered just now often ask again at once. So a batch as large as the one
        before is worth a short wait; somebody who asks alone waits so only after a larger batch.
        """
        while not self._lines:
            if self.is_closing:
                return False
            self._changed.clear()
            await self._changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.wait_s):
                while self.num_waiting < self._num_before and not self.is_closing:
                    self._changed.clear()
                    await self._changed.wait()
        return True

    def _take(self) -> list[Part]:
        """The next batch; its line becomes the last."""
        if not self._lines:  # all left while we waited
            return []
        model = next(iter(self._lines))
        line, rest, unfinished = self._lines.pop(model), deque[Job[Any]](), deque[Job[Any]]()
        key, room, parts = line[0].key, self.settings.tokens, list[Part]()
        while line:
            job = line.popleft()
            part = fit(job, room, is_first=not parts) if job.key == key else None
            if part is None:
                rest.append(job)
                continue
            parts.append(part)
            room -= part.num_tokens
            job.num_taken = part.end
            if job.num_left:
                unfinished.append(job)
        self.num_waiting -= num_texts_of(parts)
        self.num_tokens_waiting -= num_tokens_of(parts)
        if rest or unfinished:
            self._lines[model] = rest + unfinished
        return parts

    def _count(self, parts: Sequence[Part], seconds: float) -> None:
        if not parts:
            return
        model = parts[0].job.model
        num_texts, num_tokens = num_texts_of(parts), num_tokens_of(parts)
        self.metrics.texts.add(num_texts, model=model)
        self.metrics.tokens.add(num_tokens, model=model)
        self.metrics.batch_texts.see(num_texts, model=model)
        self.metrics.batch_tokens.see(num_tokens, model=model)
        self.metrics.batch_seconds.see(seconds, model=model)


def num_texts_of(parts: Sequence[Part]) -> int:
    return sum(part.num_texts for part in parts)


def num_tokens_of(parts: Sequence[Part]) -> int:
    return sum(part.num_tokens for part in parts)


def fit(job: Job[Any], room: int, *, is_first: bool) -> Part | None:
    """As many of a job's items as have so many tokens; the first of a batch always fits."""
    start = end = job.num_taken
    sizes = [size.num_tokens for size in job.sizes]
    while end < len(sizes) and (sizes[end] <= room or (is_first and end == start)):
        room -= sizes[end]
        end += 1
    return Part(job, start, end) if end > start else None


# In the worker's thread.


def answer_parts(parts: Sequence[Part]) -> list[list[Any] | Exception]:
    """Answers, or errors; what goes wrong with one request does not harm its neighbours."""
    try:
        return answer_together(parts)
    except Exception as error:
        if len(parts) == 1:
            return [error]
        return [outcome for part in parts for outcome in answer_parts([part])]


def answer_together(parts: Sequence[Part]) -> list[list[Any] | Exception]:
    asked = [read_part(part) for part in parts]
    examples = [one for part in asked if not isinstance(part, Exception) for one in part]
    answers = iter(parts[0].job.verb.answer(examples) if examples else [])
    return [
        part if isinstance(part, Exception) else [next(answers) for _ in part] for part in asked
    ]


def read_part(part: Part) -> list[object] | UserError | Refused:
    """The items as the engine wants them; none of a request that was given up."""
    job = part.job
    if job.future.done():
        return []
    read: list[object] = []
    for number in range(part.start, part.end):
        try:
            read.append(job.verb.read(job.items[number]))
        except Refused as refused:
            return refused
        except UserError as error:
            where = f"{job.verb.what} {number + 1}: " if len(job.items) > 1 else ""
            return UserError(f"{where}{error}")
    return read
