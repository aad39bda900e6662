"""Room and time are limited; what goes wrong behind the gate is answered, counted and told."""

import asyncio
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from bertie.serve.gate import Gate
from bertie.serve.metrics import Metrics
from bertie.serve.settings import Limits
from tests.serve.servers import Server, begin, named, serving


async def break_down(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a mistake")


def ask(gate: Gate) -> list[Message]:
    sent: list[Message] = []
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if messages:
            return dict(messages.pop())
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/x/tag", "headers": [], "client": None}
    asyncio.run(gate(scope, receive, send))
    return sent


def test_a_mistake_of_ours_is_a_500_like_any_refusal(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    gate = Gate(break_down, limits=Limits(), keys=None, metrics=metrics)
    with caplog.at_level(logging.INFO):
        start, body = ask(gate)
    assert start["status"] == 500 and gate.num_open == 0
    assert {b"x-request-id", b"x-content-type-options"} <= {name for name, _ in start["headers"]}
    assert json.loads(body["body"])["error"]["type"] == "internal_error"
    assert 'status="500"' in metrics.write() and 'status="0"' not in metrics.write()
    assert "RuntimeError: a mistake" in caplog.text and '"status": 500' in caplog.text


def hold(server: Server, sent: object, path: str) -> socket.socket:
    """Sends a request and does not wait for its answer."""
    body = json.dumps(sent).encode()
    connection = begin(server, f"POST {path}", len(body))
    connection.sendall(body)
    return connection


def test_room_and_time_are_limited_and_a_client_that_leaves_frees_its_place(
    models: dict[str, Path],
) -> None:
    """The model is kept busy by texts that it needs long for."""
    heavy = {"texts": ["the city of Paris " * 1000] * 20}
    sets = ["limits.waiting=20", "limits.texts=20", "limits.seconds=2", "batching.tokens=5000"]
    sets += ["limits.characters=200000", "limits.body_bytes=9000000"]
    arguments = [word for one in sets for word in ("--set", one)]
    with serving(*named(models, ["names"]), *arguments) as server:
        held = hold(server, heavy, "/v1/names/tag")
        while not server.metrics()["bertie_waiting_texts"]:
            time.sleep(0.01)
        waiting = server.metrics()["bertie_waiting_texts"]
        assert 0 < waiting <= 20
        full = server.post("/v1/names/tag", heavy)
        assert full.status == 429 and int(full.headers["retry-after"]) >= 1
        assert f"is 20; ask again in {full.headers['retry-after']} s" in full.message
        assert "20 more were asked" in full.message
        held.close()
        while server.metrics()["bertie_waiting_texts"]:
            time.sleep(0.01)
        assert server.post("/v1/names/tag", {"texts": "Paris"}).status == 200
        late = server.post("/v1/names/tag", {"texts": ["the city of Paris " * 5000] * 20})
        assert late.status == 504 and "within the limit of 2 s" in late.message
        assert server.post("/v1/names/tag", {"texts": "Paris"}).status == 200
        slow = hold(server, {}, "/v1/names/tag")
        slow.close()
        assert server.stop() == 0
    statuses = [json.loads(line)["status"] for line in server.log]
    assert {429, 499, 504} <= set(statuses)


def test_a_body_that_never_ends_is_given_up(models: dict[str, Path]) -> None:
    with serving(*named(models, ["mood"]), "--set", "limits.seconds=0.5") as server:
        with begin(server, "POST /v1/x/tag", 9) as connection:
            connection.sendall(b"{")
            found = b""
            while b"}" not in found:
                found += connection.recv(4096)
        assert b" 408 " in found.split(b"\r\n")[0] and b"limit of 0.5 s" in found


def test_requests_at_one_time_are_limited(models: dict[str, Path]) -> None:
    with serving(*named(models, ["mood"]), "--set", "limits.requests=2") as server:
        slow = [begin(server, "POST /v1/mood/classify") for _ in range(2)]
        while (full := server.get("/v1/models")).status == 200:
            time.sleep(0.01)
        assert (full.status, full.headers["retry-after"]) == (429, "1")
        assert "2 requests are not yet answered; the limit is 2; ask again in 1 s" in full.message
        assert server.get("/health").status == 200
        for one in slow:
            one.close()
        while server.get("/v1/models").status != 200:
            time.sleep(0.01)


def test_the_log_has_a_json_object_for_each_request(models: dict[str, Path]) -> None:
    with serving(*named(models, ["mood"])) as server:
        answer = server.post("/v1/mood/classify", {"texts": ["a", "b"]}, **{"x-request-id": "my-7"})
        assert answer.headers["x-request-id"] == "my-7"
        assert (
            len(server.get("/health", **{"x-request-id": "\x1f" * 9}).headers["x-request-id"]) == 16
        )
        server.get("/v1/none")
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log if "/ready" not in line]
    assert [line["status"] for line in lines] == [200, 200, 404]
    first = lines[0]
    assert first["id"] == "my-7" and first["client"] == "127.0.0.1" and first["ms"] > 0
    assert (first["method"], first["path"]) == ("POST", "/v1/mood/classify")
    assert (first["texts"], first["tokens"]) == (2, 4)
