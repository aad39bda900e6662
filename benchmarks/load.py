"""A load generator: requests over connections that stay open, each answer checked."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Check = Callable[[int, bytes], bool]  # status and body -> whether it is as it must be


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A request, and what its answer must be."""

    path: str
    body: bytes
    check: Check
    method: str = "POST"
    leaves_after_s: float | None = None  # the client goes before the answer

    def head(self) -> bytes:
        return (
            f"{self.method} {self.path} HTTP/1.1\r\nhost: load\r\n"
            f"content-type: application/json\r\ncontent-length: {len(self.body)}\r\n\r\n"
        ).encode()


@dataclass(kw_only=True, slots=True)
class Seen:
    """What came back."""

    seconds: list[float] = field(default_factory=list)  # of those that were answered with 200
    refused: list[float] = field(default_factory=list)  # of 429 and 503
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # answers that are not as they must be
    left: int = 0

    def add(self, ask: Ask, status: int, body: bytes, seconds: float) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(seconds)
        elif status in (429, 503, 504):
            if status != 504:
                self.refused.append(seconds)
            return
        if not ask.check(status, body):
            self.wrong.append(f"{ask.path} {ask.body[:80]!r}: {status} {body[:200]!r}")


class Client:
    """One connection, opened again where the server closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def request(self, ask: Ask) -> tuple[int, bytes]:
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        self.writer.write(ask.head() + ask.body)
        status, length, closes = await read_head(self.reader)
        body = await self.reader.readexactly(length)
        if closes:
            self.close()
        return status, body

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


async def read_head(reader: asyncio.StreamReader) -> tuple[int, int, bool]:
    """Status, length of the body, whether the connection ends."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
    closes = headers.get(b"connection") == b"close"
    return int(lines[0].split()[1]), int(headers.get(b"content-length", b"0")), closes


async def send(client: Client, ask: Ask, seen: Seen, started_at: float | None = None) -> None:
    """`started_at` is when it should have begun: a late start counts as waiting."""
    started_at = time.perf_counter() if started_at is None else started_at
    try:
        async with asyncio.timeout(ask.leaves_after_s):
            status, body = await client.request(ask)
    except TimeoutError:
        client.close()
        seen.left += 1
        return
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        client.close()
        seen.wrong.append(f"{ask.path} {ask.body[:80]!r}: {error!r}")
        return
    seen.add(ask, status, body, time.perf_counter() - started_at)


async def closed_loop(
    port: int, num_clients: int, num_requests: int, make: Callable[[int], Ask]
) -> tuple[Seen, float]:
    """Each client asks again as soon as it is answered; what was seen, and the seconds."""
    seen, numbers = Seen(), iter(range(num_requests))

    async def work() -> None:
        client = Client(port)
        for number in numbers:
            await send(client, make(number), seen)
        client.close()

    started_at = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(num_clients)))
    return seen, time.perf_counter() - started_at


async def open_loop(
    port: int, waits_s: Sequence[float], make: Callable[[int], Ask]
) -> tuple[Seen, float]:
    """A request after each wait, answered or not; connections are used again."""
    seen, idle, tasks = Seen(), list[Client](), list[Awaitable[None]]()

    async def one(number: int, due_at: float) -> None:
        client = idle.pop() if idle else Client(port)
        await send(client, make(number), seen, due_at)
        idle.append(client)

    due_at = started_at = time.perf_counter()
    for number, wait_s in enumerate(waits_s):
        due_at += wait_s
        await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(number, due_at)))
    await asyncio.gather(*tasks)
    for client in idle:
        client.close()
    return seen, time.perf_counter() - started_at


def describe_seconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, in ms."""
    ranked = sorted(seconds)
    if not ranked:
        return {}
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
    last = len(ranked) - 1
    return {name: round(ranked[round(last * share)] * 1000, 1) for name, share in shares.items()}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
