"""What goes wrong behind the gate is answered, counted and told."""

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from bertie.serve.gate import Gate
from bertie.serve.metrics import Metrics
from bertie.serve.settings import Limits


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
