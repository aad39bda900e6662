"""What every request passes: key, size, time; whether its client is still there; the log."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertie.serve.hosts import check_host
from bertie.serve.keys import Keys
from bertie.serve.metrics import Metrics
from bertie.serve.refusals import CLIENT_LEFT, Refused, come_back, make_reply
from bertie.serve.settings import Limits

LOG = logging.getLogger("bertie.access")
TROUBLE = logging.getLogger("bertie.serve")
MAX_ID = 64
PATIENCE = 16  # a body so many times too large is read to its end: its client can hear why


@dataclass(kw_only=True, slots=True)
class Visit:
    """A request, as the log tells it."""

    id: str
    client: str
    method: str
    path: str
    started_at: float
    status: int = 0  # 0 until an answer begins
    key: str = ""
    model: str = ""
    verb: str = ""
    num_texts: int = 0
    num_tokens: int = 0


def visit_of(request: Request) -> Visit:
    visit: Visit = request.scope["bertie.visit"]
    return visit


class Gate:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        keys: Keys | None,
        metrics: Metrics,
        hosts: frozenset[str] | None = None,  # as `hosts.py` finds them
        wait_s: Callable[[], float] = lambda: 0.0,  # until what waits is answered, about
    ) -> None:
        self.app, self.limits, self.keys, self.metrics = app, limits, keys, metrics
        self.hosts, self.wait_s = hosts, wait_s
        self.num_open = 0  # requests that have no answer yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        visit = begin_visit(scope, headers)
        scope["bertie.visit"] = visit
        tell = noting(visit, send)
        self.num_open += 1
        try:
            await self.pass_on(scope, headers, receive, tell)
        except Refused as refused:
            if not visit.status:
                await send_reply(refused, tell)
        except Exception:
            TROUBLE.exception("request %s: %s %s", visit.id, visit.method, visit.path)
            if visit.status:  # too late for another one
                raise
            await send_reply(Refused(500, "a mistake of the server; its log says what"), tell)
        finally:
            self.num_open -= 1
            self.note(visit)

    async def pass_on(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, tell: Send
    ) -> None:
        visit: Visit = scope["bertie.visit"]
        check_host(headers, self.hosts)
        if self.keys is not None and needs_key(visit.path):
            visit.key = self.keys.check(headers)
        if visit.path == "/health":  # it lives, however many ask; and nobody's body is kept for it
            await self.handle(scope, b"", receive, tell)
            return
        if self.num_open > self.limits.requests:
            raise come_back(
                f"{self.num_open - 1} requests are not yet answered; the limit is "
                f"{self.limits.requests}",
                self.wait_s(),
            )
        body = await self.read_body(headers, receive)
        await self.handle(scope, body, receive, tell)

    async def read_body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        most = self.limits.body_bytes * PATIENCE
        try:
            async with asyncio.timeout(self.limits.seconds):
                whole = not length.isdigit() or int(length) <= most
                body = await read_up_to(self.limits.body_bytes, most, receive) if whole else None
        except TimeoutError:
            raise Refused(
                408, f"the body took longer than the limit of {self.limits.seconds:g} s"
            ) from None
        if body is None:
            raise Refused(
                413, f"the body is larger than the limit of {self.limits.body_bytes:,} bytes"
            )
        return body

    async def handle(self, scope: Scope, body: bytes, receive: Receive, tell: Send) -> None:
        """The application's answer, unless its time is up or its client leaves before."""
        visit: Visit = scope["bertie.visit"]
        left = self.limits.seconds - (time.monotonic() - visit.started_at)
        handling = asyncio.ensure_future(self.app(scope, repeat(body), tell))
        leaving = asyncio.ensure_future(wait_until_left(receive))
        try:
            await asyncio.wait(
                {handling, leaving}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if handling.done():
                handling.result()
            elif leaving.done():
                raise Refused(CLIENT_LEFT, "the client left")
            else:
                raise Refused(
                    504, f"no answer within the limit of {self.limits.seconds:g} s; ask for less"
                )
        finally:
            leaving.cancel()
            handling.cancel()

    def note(self, visit: Visit) -> None:
        seconds = time.monotonic() - visit.started_at
        # What is not known here is no label: anyone could make up paths without end.
        model, verb = visit.model, visit.verb
        self.metrics.requests.add(model=model, verb=verb, status=str(visit.status))
        if visit.model:
            self.metrics.latency.see(seconds, model=model, verb=verb)
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": visit.id,
            "client": visit.client,
            "method": visit.method,
            "path": visit.path,
            "status": visit.status,
            "ms": round(seconds * 1000, 1),
        }
        optional = {"key": visit.key, "texts": visit.num_texts, "tokens": visit.num_tokens}
        LOG.info(json.dumps(line | {name: one for name, one in optional.items() if one}))


def begin_visit(scope: Scope, headers: Mapping[bytes, bytes]) -> Visit:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    is_plain = given.isascii() and given.isprintable() and len(given) <= MAX_ID
    client = scope.get("client")
    return Visit(
        id=given if given and is_plain else uuid.uuid4().hex[:16],
        client=client[0] if client else "",
        method=scope["method"],
        path=scope["path"],
        started_at=time.monotonic(),
    )


def needs_key(path: str) -> bool:
    """All that tells of models or uses them; the page itself and the checks for life are open."""
    return path.startswith("/v1/") or path == "/metrics"


def noting(visit: Visit, send: Send) -> Send:
    """Sends, and notes the status on the way."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            visit.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", visit.id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return tell


def repeat(body: bytes) -> Receive:
    """What was read, for the application to read again."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # whoever leaves is noticed by the gate
        raise AssertionError

    return receive


async def read_up_to(limit: int, most: int, receive: Receive) -> bytes | None:
    """A body, or none if it is larger than the limit; after `most` bytes the rest is not read."""
    chunks, size, more = [], 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(CLIENT_LEFT, "the client left")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks) if size <= limit else None


async def wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_reply(refused: Refused, send: Send) -> None:
    reply = make_reply(refused)
    headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
