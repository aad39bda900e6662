"""Batches: order, turns, room, and what becomes of those who leave or are wrong."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from bertie.errors import UserError
from bertie.infer.verb import Verb
from bertie.serve.batcher import Batcher, Size
from bertie.serve.metrics import Metrics
from bertie.serve.refusals import Refused
from bertie.serve.settings import Batching, Limits

Asking = Coroutine[Any, Any, list[str]]


class Slow:
    """A verb that answers a text with itself in capitals, once it is let; keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_go = threading.Event()
        self.verb = Verb(read=self.read, size=len, answer=self.answer)

    def read(self, item: object) -> str:
        if item == "wrong":
            raise UserError("this is wrong")
        return str(item)

    def answer(self, texts: Sequence[str]) -> list[str]:
        assert self.may_go.wait(20)
        self.batches.append(list(texts))
        if "poison" in texts:
            raise RuntimeError("out of memory")
        return [text.upper() for text in texts]


class Scene:
    """A batcher whose worker is busy with one text, so that all others wait together."""

    def __init__(self, tokens: int = 10, max_waiting: int = 100, wait_s: float = 0.001) -> None:
        self.slow, self.metrics = Slow(), Metrics()
        settings = Batching(tokens=tokens, wait_s=wait_s)
        limits = Limits(texts=1, waiting=max_waiting, waiting_s=2.0)
        self.batcher = Batcher(settings, limits, self.metrics)

    def ask(self, *texts: str, model: str = "m", key: str = "k", num_texts: int = 1) -> Asking:
        sizes = [Size(num_texts, len(text)) for text in texts]
        return self.batcher.ask(model, key, self.slow.verb, texts, sizes)

    async def busy(self) -> list[asyncio.Task[Any]]:
        running = asyncio.create_task(self.batcher.run())
        first = asyncio.create_task(self.ask("first"))
        while self.batcher.num_waiting or first.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        return [first, running]

    async def play(self, *asked: Asking) -> list[Any]:
        """All of these wait; then the worker goes on until the end."""
        first, running = await self.busy()
        waiting = [asyncio.create_task(one) for one in asked]
        await asyncio.sleep(0.01)
        self.slow.may_go.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await first
        self.batcher.close()
        await running
        batcher = self.batcher
        assert (batcher.num_waiting, batcher.num_tokens_waiting, batcher._lines) == (0, 0, {})
        return list(outcomes)


def test_those_who_wait_are_answered_together_each_with_its_own_in_order() -> None:
    scene = Scene()
    outcomes = asyncio.run(scene.play(scene.ask("b", "a"), scene.ask("dd"), scene.ask("c", "e")))
    assert outcomes == [["B", "A"], ["DD"], ["C", "E"]]
    assert scene.slow.batches == [["first"], ["b", "a", "dd", "c", "e"]]
    assert "bertie_batch_texts_sum" in scene.metrics.write()


def test_a_batch_has_no_more_tokens_than_allowed_unless_one_text_has() -> None:
    scene = Scene(tokens=4)
    asked = [scene.ask(text) for text in ("aaa", "bb", "c", "dddddd", "ee")]
    asyncio.run(scene.play(*asked))
    assert scene.slow.batches[1:] == [["aaa", "c"], ["bb", "ee"], ["dddddd"]]


def test_a_large_request_takes_a_batch_at_a_time_and_lets_others_between() -> None:
    scene = Scene(tokens=3)
    large = [f"l{n}" for n in range(4)]
    outcomes = asyncio.run(scene.play(scene.ask(*large), scene.ask("s"), scene.ask("t")))
    assert outcomes == [["L0", "L1", "L2", "L3"], ["S"], ["T"]]
    assert scene.slow.batches[1] == ["l0", "s"]
    assert scene.slow.batches[2] == ["t", "l1"]


def test_models_take_turns_however_long_their_lines_are() -> None:
    scene = Scene(tokens=1)
    asked = [scene.ask("a", model="a") for _ in range(4)] + [scene.ask("b", model="b")]
    asyncio.run(scene.play(*asked))
    assert scene.slow.batches[1:4] == [["a"], ["b"], ["a"]]


def test_other_settings_make_another_batch_the_oldest_first() -> None:
    scene = Scene()
    asked = [scene.ask(text, key=key) for text, key in (("a", "x"), ("b", "y"), ("c", "x"))]
    asyncio.run(scene.play(*asked))
    assert scene.slow.batches[1:] == [["a", "c"], ["b"]]


def test_what_is_wrong_harms_nobody_else() -> None:
    scene = Scene(tokens=100)
    asked = [scene.ask("a"), scene.ask("b", "wrong", "c"), scene.ask("wrong"), scene.ask("d")]
    a, b, wrong, d = asyncio.run(scene.play(*asked))
    assert (a, d) == (["A"], ["D"])
    assert str(b) == "text 2: this is wrong" and str(wrong) == "this is wrong"


def test_a_batch_that_fails_is_tried_again_one_by_one() -> None:
    scene = Scene(tokens=100)
    a, poison, d = asyncio.run(scene.play(scene.ask("a"), scene.ask("poison"), scene.ask("d")))
    assert (a, d) == (["A"], ["D"]) and isinstance(poison, RuntimeError)


def test_a_request_that_fails_in_its_first_batch_leaves_no_rest() -> None:
    scene = Scene(tokens=6)
    outcomes = asyncio.run(scene.play(scene.ask("wrong", "b" * 6, "c" * 6), scene.ask("d")))
    assert isinstance(outcomes[0], UserError) and outcomes[1] == ["D"]


def test_whoever_leaves_frees_the_place() -> None:
    scene = Scene(max_waiting=2)

    async def leave() -> None:
        first, running = await scene.busy()
        waiting = asyncio.create_task(scene.ask("a", "b"))
        await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            await scene.ask("c")
        assert refused.value.status == 429 and "the limit is 2" in refused.value.message
        waiting.cancel()
        await asyncio.sleep(0)
        assert scene.batcher.num_waiting == scene.batcher.num_tokens_waiting == 0
        last = asyncio.create_task(scene.ask("c"))
        await asyncio.sleep(0.01)
        scene.slow.may_go.set()
        assert await last == ["C"]
        await first
        scene.batcher.close()
        await running

    asyncio.run(leave())
    assert scene.slow.batches == [["first"], ["c"]]


def test_room_is_counted_in_texts_whatever_they_are_part_of() -> None:
    scene = Scene(max_waiting=5)

    async def fill() -> None:
        first, running = await scene.busy()
        waiting = asyncio.create_task(scene.ask("a", num_texts=4))
        await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            await scene.ask("b", num_texts=2)
        assert refused.value.status == 429
        told = "4 texts are waiting and 2 more were asked; the limit is 5; ask again in 1 s"
        assert refused.value.message == told
        scene.slow.may_go.set()
        assert await waiting == ["A"] and scene.batcher.num_waiting == 0
        await first
        scene.batcher.close()
        await running

    asyncio.run(fill())


def test_a_queue_may_be_as_long_as_it_moves_fast() -> None:
    scene = Scene(tokens=10)

    async def fill() -> None:
        first, running = await scene.busy()
        scene.batcher.speed.add(100, 50.0)  # 2 tokens a second
        waiting = [asyncio.create_task(scene.ask(text)) for text in ("aaaaa", "bbbb", "c")]
        await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            await scene.ask("d")
        assert refused.value.status == 429
        # "first" is counted, too.
        told = "what waits will take 7.5 s; the limit is 2 s; ask again in 6 s"
        assert refused.value.message == told
        assert refused.value.headers == {"retry-after": "6"}
        scene.batcher.speed.add(1000, 1.0)
        waiting.append(asyncio.create_task(scene.ask("d")))
        await asyncio.sleep(0.01)
        scene.slow.may_go.set()
        assert await asyncio.gather(*waiting) == [["AAAAA"], ["BBBB"], ["C"], ["D"]]
        await first
        scene.batcher.close()
        await running

    asyncio.run(fill())


def test_who_finds_no_room_is_told_when_there_will_be_some() -> None:
    scene = Scene(tokens=100, max_waiting=4)

    async def fill() -> None:
        first, running = await scene.busy()
        scene.batcher.speed.add(100, 50.0)  # 2 tokens a second
        waiting = asyncio.create_task(scene.ask("a" * 10, "b" * 10, "c" * 10, "d" * 10))
        await asyncio.sleep(0.01)
        for texts, seconds in ((("x",), 8), (("x", "y"), 13), (("x",) * 9, 23)):
            with pytest.raises(Refused) as refused:  # 5 tokens of "first", 10 of each that waits
                await scene.ask(*texts)
            assert refused.value.headers == {"retry-after": str(seconds)}
        scene.slow.may_go.set()
        await asyncio.gather(first, waiting)
        assert scene.batcher.wait_s() == 0
        scene.batcher.close()
        await running

    asyncio.run(fill())


def test_closing_finishes_what_was_taken_and_takes_nothing_more() -> None:
    scene = Scene()

    async def close() -> None:
        first, running = await scene.busy()
        waiting = asyncio.create_task(scene.ask("a"))
        await asyncio.sleep(0.01)
        scene.batcher.close()
        with pytest.raises(Refused) as refused:
            await scene.ask("b")
        assert refused.value.status == 503
        scene.slow.may_go.set()
        assert (await first, await waiting) == (["FIRST"], ["A"])
        await running

    asyncio.run(close())


def test_somebody_alone_does_not_wait_for_company() -> None:
    scene = Scene(wait_s=60)
    scene.slow.may_go.set()

    async def alone() -> None:
        running = asyncio.create_task(scene.batcher.run())
        for text in ("a", "b", "c"):
            async with asyncio.timeout(10):
                assert await scene.ask(text) == [text.upper()]
        scene.batcher.close()
        await running

    asyncio.run(alone())


def test_a_batch_as_large_as_the_one_before_is_waited_for_but_not_for_ever() -> None:
    scene = Scene(wait_s=0.05)
    scene.slow.may_go.set()

    async def company() -> None:
        running = asyncio.create_task(scene.batcher.run())
        await scene.ask("a", "b", "c")
        first = asyncio.create_task(scene.ask("d"))
        await asyncio.sleep(0)
        await asyncio.gather(first, scene.ask("e", "f"))
        await scene.ask("g")
        scene.batcher.close()
        await running

    asyncio.run(company())
    assert scene.slow.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
