"""A real server process on loopback, with a model for each head; and a client in a few lines."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bertie.tasks import KnownTask
from bertie.tasks.choice import Choice
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from tests.infer.models import make_directory, make_tuned

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TUNED: dict[str, KnownTask] = {
    "mood": Classify(
        kind="classes", labels=("bad", "good", "中"), columns={"first": "t"}, max_length=24
    ),
    "pairs": Classify(
        kind="classes", labels=("a", "b"), columns={"first": "t", "second": "u"}, max_length=32
    ),
    "topics": Classify(kind="multi-label", labels=("x", "y"), thresholds={"x": 0.7}, max_length=24),
    "stars": Classify(kind="regression", center=3, spread=2, max_length=16),
    "names": Tag(kind="spans", labels=TAGS, level="word", max_length=20),
    "reader": Span(max_length=30, max_question=9, stride=7, may_be_unanswerable=True),
    "quiz": Choice(max_length=40),
}


def make_models(folder: Path) -> dict[str, Path]:
    """Directories by name, one for each kind of task, and a pre-trained one."""
    made = {name: make_tuned(folder / name, task) for name, task in TUNED.items()}
    return {"masks": make_directory(folder / "masks"), **made}


def make_chinese(folder: Path) -> Path:
    """One whose pieces are Chinese characters."""
    made = make_directory(folder)
    pieces = (made / "vocab.txt").read_text("utf-8").splitlines()
    chinese = [
        piece if piece.startswith("[") else chr(0x4E00 + number)
        for number, piece in enumerate(pieces)
    ]
    (made / "vocab.txt").write_text("\n".join(chinese) + "\n", "utf-8")
    return made


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class Server(NamedTuple):
    """One that runs."""

    address: str
    process: subprocess.Popen[str]
    told: list[str]  # lines of stderr
    log: list[str]  # lines of stdout

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, value: object, **headers: str) -> Answer:
        given = {"content-type": "application/json"} | headers
        return self.request("POST", path, json.dumps(value).encode(), given)

    def metrics(self) -> dict[str, float]:
        lines = self.get("/metrics").body.decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def stop(self) -> int:
        """As a service manager does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def serving(
    *arguments: str, env: dict[str, str] | None = None, stdout: int = subprocess.PIPE
) -> Iterator[Server]:
    """`bertie serve` with these arguments, on a port of its own."""
    command = [sys.executable, "-m", "bertie", "serve", *arguments, "--port", "0"]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **(env or {})}
    process = subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | settings,
    )
    assert process.stderr is not None
    told, log = list[str](), list[str]()
    first = process.stderr.readline()
    told.append(first)
    found = re.search(r"http://\S+", first)
    readers = [
        threading.Thread(target=drain, args=(pipe, lines), daemon=True)
        for pipe, lines in ((process.stderr, told), (process.stdout or (), log))
    ]
    for reader in readers:
        reader.start()
    try:
        assert found, first + process.communicate(timeout=20)[1]
        yield wait_until_ready(Server(found[0], process, told, log))
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def drain(pipe: Any, lines: list[str]) -> None:
    lines.extend(pipe)


def wait_until_ready(server: Server) -> Server:
    for _ in range(300):
        try:
            if server.get("/ready").status == 200:
                return server
        except ConnectionError:
            threading.Event().wait(0.1)
    raise AssertionError("it does not get ready")


def named(models: dict[str, Path], names: Sequence[str] | None = None) -> list[str]:
    return [f"{name}={path}" for name, path in models.items() if names is None or name in names]


def begin(server: Server, head: str, length: int = 2) -> socket.socket:
    """Sends a request but for its body."""
    host, port = urlsplit(server.address).netloc.split(":")
    connection = socket.create_connection((host, int(port)))
    fields = "host: localhost\r\ncontent-type: application/json\r\n"
    fields += f"content-length: {length}\r\n"
    connection.sendall(f"{head} HTTP/1.1\r\n{fields}\r\n".encode())
    return connection
