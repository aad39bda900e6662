"""The socket, and how a server ends."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.serve.run import open_socket
from tests.serve.servers import begin, named, serving


def test_a_taken_port_is_noticed_before_anything_is_loaded() -> None:
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError) as refused:
            open_socket("127.0.0.1", port)
    assert str(refused.value) == f"port {port} is taken; choose another: --port {port + 1}"


@pytest.mark.parametrize(
    "host, message",
    [
        ("", "--host is empty; leave it out, or give an address"),  # as of an unset variable
        (" ", "--host is empty"),
        ("ä..b", "no host 'ä..b'; give an address, or a name"),
        ("a\0b", "no host"),
        ("nowhere.invalid", "cannot listen on nowhere.invalid, port 0"),
    ],
)
def test_what_is_no_host_is_told(host: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_socket(host, 0)


def test_shutting_down_finishes_what_was_taken(models: dict[str, Path]) -> None:
    heavy = {"texts": ["the city of Paris " * 1000] * 8}
    with serving(*named(models, ["names"])) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/names/tag", heavy)
        while not server.metrics()["bertie_waiting_texts"]:
            time.sleep(0.01)
        assert server.stop() == 0
        assert asked.result().status == 200 and len(asked.result().json) == 8


def finish(connection: socket.socket, rest: bytes) -> bytes:
    """The answer to a request whose last bytes these are."""
    connection.sendall(rest)
    found = b""
    while chunk := connection.recv(4096):
        found += chunk
    connection.close()
    return found


def test_it_serves_on_where_nobody_reads_its_log(models: dict[str, Path]) -> None:
    """As in `bertie serve | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with serving(*named(models, ["mood"]), stdout=writing) as server:
        os.close(writing)
        for _ in range(3):
            assert server.get("/health").status == 200
        server.stop()
    assert not [line for line in server.told if "Logging error" in line or "Traceback" in line]


def test_from_the_signal_on_nothing_new_is_taken(models: dict[str, Path]) -> None:
    with serving(*named(models, ["quiz"])) as server:
        sent = json.dumps({"model": "quiz", "input": "Paris"}).encode()
        asking = begin(server, "POST /v1/embeddings", len(sent))
        checking = begin(server, "GET /ready")
        server.get("/health")  # both heads were read before this
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)  # until uvicorn has seen it
        for found in (finish(checking, b"{}"), finish(asking, sent)):
            assert b" 503 " in found.split(b"\r\n")[0] and b"shutting down" in found
        assert server.process.wait(timeout=60) == 0


def test_a_batch_that_nobody_waits_for_does_not_keep_it_from_stopping(
    models: dict[str, Path],
) -> None:
    sets = ["limits.seconds=0.5", "limits.body_bytes=9000000", "batching.tokens=9000000"]
    arguments = [word for one in sets for word in ("--set", one)]
    with serving(*named(models, ["names"]), *arguments) as server:
        late = server.post("/v1/names/tag", {"texts": ["the city of Paris " * 1000] * 250})
        assert late.status == 504
        assert server.stop() == 0
    assert "bertie: stopped in the midst of a batch\n" in server.told
