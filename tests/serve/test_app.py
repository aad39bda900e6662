"""A real server answers what the engine answers, and says in words what it does not answer."""

import base64
import json
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import bertie
from bertie.infer.answers import to_json
from bertie.infer.engine import Engine
from tests.infer.models import SENTENCES
from tests.serve.servers import Server, named, serving

LONG = " ".join(SENTENCES * 4)
TEXTS = [*SENTENCES, "", "Paris", LONG, "[SEP] [MASK]", "\u0000 of", "a 😀 b"]
MASKED = ["Paris is the [MASK] of France.", f"{LONG} [MASK] {LONG}", "中[MASK] [MASK]"]
PAIRS = [[SENTENCES[0], SENTENCES[1]], ["", "Paris"], [LONG, LONG]]
OPTIONS = [["Paris", "the capital of France", ""], ["is", "the capital"]]


def close(found: Any, wanted: Any) -> bool:
    """Equal, but for what the last digit of a number says."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return (
        found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted
    )


def fills(engine: Engine, texts: Sequence[str], top: int) -> Any:
    names = ("piece", "id", "probability", "span")
    return [
        {
            "text": one.text,
            "best": one.best,
            "masks": [[{n: getattr(f, n) for n in names} for f in mask] for mask in one.masks],
        }
        for one in engine.fill(texts, top=top)
    ]


# model, verb, what is sent, what the engine says; all as lists
ASKED: dict[str, tuple[str, str, dict[str, Any], Callable[[Engine], Any]]] = {
    "fill": ("masks", "fill", {"texts": MASKED, "top": 3}, lambda e: fills(e, MASKED, 3)),
    "classes": ("mood", "classify", {"texts": TEXTS}, lambda e: e.classify(TEXTS)),
    "labels": ("topics", "classify", {"texts": TEXTS}, lambda e: e.classify(TEXTS)),
    "number": ("stars", "classify", {"texts": TEXTS}, lambda e: e.classify(TEXTS)),
    "pairs": ("pairs", "classify", {"pairs": PAIRS}, lambda e: e.classify_pairs(PAIRS)),
    "tag": ("names", "tag", {"texts": TEXTS}, lambda e: e.tag(TEXTS)),
    "answer": (
        "reader",
        "answer",
        {"question": ["Which city?"] * len(TEXTS), "context": TEXTS},
        lambda e: e.answer("Which city?", TEXTS),
    ),
    "one context": (
        "reader",
        "answer",
        {"question": ["Which city?", "Who plays?"], "context": LONG},
        lambda e: e.answer(["Which city?", "Who plays?"], LONG),
    ),
    "choose": (
        "quiz",
        "choose",
        {"prompt": TEXTS[:2], "options": OPTIONS},
        lambda e: e.choose(TEXTS[:2], OPTIONS),
    ),
    "embed": ("masks", "embed", {"texts": TEXTS}, lambda e: e.embed(TEXTS).tolist()),
    "embed otherwise": (
        "mood",
        "embed",
        {"texts": TEXTS, "pooling": "cls", "layer": 1, "normalise": True},
        lambda e: e.embed(TEXTS, pooling="cls", layer=1, normalise=True).tolist(),
    ),
    "similarity": (
        "masks",
        "similarity",
        {"a": TEXTS[:4], "b": "Paris"},
        lambda e: e.similarity(TEXTS[:4], "Paris"),
    ),
    "matrix": (
        "masks",
        "similarity",
        {"texts": TEXTS[:4]},
        lambda e: [e.similarity(TEXTS[:4], text) for text in TEXTS[:4]],
    ),
}


@pytest.fixture(scope="module")
def engines(models: dict[str, Path]) -> dict[str, Engine]:
    return {name: bertie.load(path, device="cpu") for name, path in models.items()}


@pytest.mark.parametrize("name", ASKED)
def test_the_server_answers_what_the_engine_answers(
    server: Server, engines: dict[str, Engine], name: str
) -> None:
    model, verb, sent, ask = ASKED[name]
    answer = server.post(f"/v1/{model}/{verb}", sent)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert close(answer.json, json.loads(json.dumps(to_json(ask(engines[model])))))


ONE = {
    "fill": ("masks", {"texts": MASKED[0]}, {"texts": MASKED[:1]}),
    "classify": ("mood", {"texts": "Paris"}, {"texts": ["Paris"]}),
    "classify pairs": ("pairs", {"pairs": ["a", "b"]}, {"pairs": [["a", "b"]]}),
    "tag": ("names", {"texts": LONG}, {"texts": [LONG]}),
    "answer": (
        "reader",
        {"question": "Who?", "context": LONG},
        {"question": ["Who?"], "context": [LONG]},
    ),
    "choose": (
        "quiz",
        {"prompt": "Paris", "options": OPTIONS[0]},
        {"prompt": ["Paris"], "options": OPTIONS[:1]},
    ),
    "embed": ("quiz", {"texts": "Paris"}, {"texts": ["Paris"]}),
    "similarity": ("quiz", {"a": "Paris", "b": "France"}, {"a": ["Paris"], "b": "France"}),
}


@pytest.mark.parametrize("name", ONE)
def test_one_item_gets_one_answer_and_a_list_a_list(server: Server, name: str) -> None:
    model, one, many = ONE[name]
    path = f"/v1/{model}/{name.split()[0]}"
    assert close([server.post(path, one).json], server.post(path, many).json)


def test_an_empty_list_is_answered_with_one(server: Server) -> None:
    for model, verb in (("mood", "classify"), ("masks", "fill"), ("masks", "similarity")):
        assert server.post(f"/v1/{model}/{verb}", {"texts": []}).json == []
    assert server.post("/v1/quiz/choose", {"prompt": [], "options": []}).json == []


def test_many_at_once_each_get_their_own(server: Server, engines: dict[str, Engine]) -> None:
    texts = [f"{SENTENCES[n % 4]} {n} {'the city ' * (n % 7)}" for n in range(120)]
    kinds = [("mood", "classify"), ("names", "tag"), ("masks", "embed")]
    wanted = {
        "classify": to_json(engines["mood"].classify(texts)),
        "tag": to_json(engines["names"].tag(texts)),
        "embed": engines["masks"].embed(texts).tolist(),
    }

    def ask(number: int) -> bool:
        model, verb = kinds[number % 3]
        answer = server.post(f"/v1/{model}/{verb}", {"texts": texts[number]})
        return close(answer.json, json.loads(json.dumps(wanted[verb][number])))

    before = server.metrics()
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(len(texts))))
    after = server.metrics()
    names = [name for name in after if name.startswith("bertie_batch_texts_count")]
    num_batches = sum(after[name] - before.get(name, 0) for name in names)
    assert num_batches < len(texts), "none were gathered"


# Models.


def test_the_list_of_models_says_what_each_can_do(server: Server) -> None:
    listed = {one["id"]: one for one in server.get("/v1/models").json["data"]}
    always = ["embed", "similarity", "attention"]
    verbs = {name: one["verbs"] for name, one in listed.items()}
    assert verbs == {
        "masks": ["fill", *always],
        "mood": ["classify", *always],
        "pairs": ["classify", *always],
        "topics": ["classify", *always],
        "stars": ["classify", *always],
        "names": ["tag", *always],
        "reader": ["answer", *always],
        "quiz": ["choose", *always],
    }
    assert listed["mood"]["labels"] == ["bad", "good", "中"]
    pairs = {name: one["pairs"] for name, one in listed.items()}
    assert (pairs["mood"], pairs["pairs"], pairs["topics"]) == (False, True, None)
    assert server.get("/v1/models/mood").json == listed["mood"]
    assert listed["mood"]["object"] == "model" and listed["mood"]["created"] > 1e9


def test_vectors_as_openai_sends_them(server: Server, engines: dict[str, Engine]) -> None:
    wanted = engines["masks"].embed(TEXTS)
    for format in ("float", "base64"):
        sent = {"model": "masks", "input": TEXTS, "encoding_format": format, "user": "x", "new": 1}
        answer = server.post("/v1/embeddings", sent).json
        assert [one["index"] for one in answer["data"]] == list(range(len(TEXTS)))
        rows = [one["embedding"] for one in answer["data"]]
        if format == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
        assert close(rows, wanted.tolist())
        num_tokens = sum(len(engines["masks"].tokenizer.encode(text).ids) for text in TEXTS)
        assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        assert (answer["object"], answer["model"]) == ("list", "masks")
    one = server.post("/v1/embeddings", {"model": "masks", "input": "Paris", "dimensions": 24})
    assert close(one.json["data"][0]["embedding"], engines["masks"].embed("Paris").tolist())


# What is refused.

WRONG: dict[str, tuple[str, object, int, str]] = {
    "no model": ("/v1/nope/fill", {"texts": "[MASK]"}, 404, "no model 'nope'; there are: masks,"),
    "another head": ("/v1/mood/tag", {"texts": "a"}, 404, "mood cannot tag, only classify, em"),
    "who can": ("/v1/mood/fill", {"texts": "[MASK]"}, 404, "attention; masks can"),
    "a long name": (f"/v1/{'x' * 999}/fill", {"texts": "a"}, 404, f"no model '{'x' * 57}...'; th"),
    "a long path": (f"/v1/x/{'y' * 999}", {}, 404, f"nothing at /v1/x/{'y' * 51}...; /docs"),
    "a long number": ("/v1/masks/attention", {"text": "a", "layer": 10**99}, 422, "less than or"),
    "no path": ("/v1/mood/nope", {}, 404, "nothing at /v1/mood/nope; /docs lists"),
    "texts for pairs": ("/v1/pairs/classify", {"texts": "a"}, 422, "fine-tuned on pairs; send"),
    "pairs for texts": ("/v1/mood/classify", {"pairs": ["a", "b"]}, 422, "on texts; send texts"),
    "neither": ("/v1/mood/classify", {}, 422, "give texts or pairs, and not both"),
    "both": ("/v1/mood/classify", {"texts": "", "pairs": ["", ""]}, 422, "and not both"),
    "three of a pair": ("/v1/pairs/classify", {"pairs": ["a", "b", "c"]}, 422, "at most 2 items"),
    "no text": ("/v1/mood/classify", {"texts": [1]}, 422, "texts"),
    "a slip": (
        "/v1/masks/fill",
        {"texts": "[MASK]", "tob": 3},
        422,
        "no field 'tob'; there are:",
    ),
    "no mask": ("/v1/masks/fill", {"texts": "a city"}, 422, "no [MASK] in 'a city'; write [MASK]"),
    "no mask in one": ("/v1/masks/fill", {"texts": ["[MASK]", "b"]}, 422, "text 2: no [MASK] in"),
    "top": ("/v1/masks/fill", {"texts": "[MASK]", "top": 101}, 422, "top: Input should be less"),
    "no question": ("/v1/reader/answer", {"question": " ", "context": "a"}, 422, "a question"),
    "uneven": (
        "/v1/reader/answer",
        {"question": ["a", "b"], "context": ["c"]},
        422,
        "2 questions and 1 contexts",
    ),
    "one option": ("/v1/quiz/choose", {"prompt": "a", "options": ["b"]}, 422, "two options"),
    "lists of options": (
        "/v1/quiz/choose",
        {"prompt": "a", "options": [["b", "c"]]},
        422,
        "one prompt goes with one list of options",
    ),
    "no lists of options": (
        "/v1/quiz/choose",
        {"prompt": ["a", "b"], "options": ["b", "c"]},
        422,
        "as many lists",
    ),
    "no layer": ("/v1/mood/embed", {"texts": "a", "layer": 9}, 422, "no layer 9: the model has 0"),
    "no pooling": ("/v1/mood/embed", {"texts": "a", "pooling": "sum"}, 422, "pooling"),
    "a alone": ("/v1/mood/similarity", {"a": "x"}, 422, "give a and b, or texts"),
    "uneven sides": ("/v1/mood/similarity", {"a": ["x"], "b": ["y", "z"]}, 422, "1 texts in a, 2"),
    "numbers for texts": (
        "/v1/embeddings",
        {"model": "mood", "input": [[1, 2]]},
        422,
        "input",
    ),
    "fewer dimensions": (
        "/v1/embeddings",
        {"model": "mood", "input": "a", "dimensions": 8},
        422,
        "mood has vectors of 24 numbers; leave dimensions out",
    ),
    "too many texts": (
        "/v1/mood/classify",
        {"texts": ["a"] * 257},
        413,
        "257 texts; the limit is 256 in a request",
    ),
    "too many options": (
        "/v1/quiz/choose",
        {"prompt": ["a"] * 129, "options": [["b", "c"]] * 129},
        413,
        "258 texts; the limit is 256",
    ),
    "too long a text": (
        "/v1/mood/classify",
        {"texts": ["a", "x" * 20_001]},
        413,
        "a text of 20,001 characters; the limit is 20,000",
    ),
    "too many masks": (
        "/v1/masks/fill",
        {"texts": ["[MASK]" * 50] * 4, "top": 51},
        413,
        "200 masks x 51 pieces; the limit is 10,000",
    ),
    "too many masks in a text": (
        "/v1/masks/fill",
        {"texts": ["[MASK]", "[MASK]" * 65]},
        413,
        "65 masks; the limit is 64 in a text",
    ),
    "too many options of a prompt": (
        "/v1/quiz/choose",
        {"prompt": "a", "options": ["b"] * 65},
        413,
        "65 options; the limit is 64 for a prompt",
    ),
    "too large a body": (
        "/v1/mood/classify",
        {"texts": "x" * 1_100_000},
        413,
        "larger than the limit of 1,048,576 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_the_right_status(server: Server, name: str) -> None:
    path, sent, status, message = WRONG[name]
    answer = server.post(path, sent)
    assert (answer.status, answer.json["error"]["code"]) == (status, status), answer.body
    assert message in answer.message and len(answer.message) < 300
    assert "/tmp" not in answer.message, "paths of the server are nobody's business"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"{", 400), (b"\xff\xfe", 400), (b"[" * 90_000, 400), (b"null", 422)],
    ids=["nothing", "half", "no UTF-8", "deep", "null"],
)
def test_what_is_no_json_is_refused(server: Server, body: bytes, status: int) -> None:
    answer = server.request("POST", "/v1/mood/classify", body, {"content-type": "application/json"})
    assert answer.status == status, answer.body
    assert answer.message


def test_a_lone_surrogate_is_answered_or_refused_but_does_no_harm(server: Server) -> None:
    for sent in (b'{"texts": "\\ud800 [MASK]"}', b'{"texts": "[MASK]", "\\ud800": 1}'):
        headers = {"content-type": "application/json"}
        assert server.request("POST", "/v1/masks/fill", sent, headers).status in (200, 422)


def test_a_method_that_is_not_taken(server: Server) -> None:
    answer = server.get("/v1/mood/classify")
    assert answer.status == 405 and "does not take GET" in answer.message
    assert answer.headers["allow"] == "POST"


def test_pages_of_other_sites_may_not_ask(server: Server, models: dict[str, Path]) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in server.get("/v1/models", **asked).headers
    assert server.request("OPTIONS", "/v1/mood/classify", headers=asked).status == 405
    arguments = (*named(models, ["mood"]), "--allow-origin", "https://a.example")
    with serving(*arguments) as open_one:
        allowed = open_one.request("OPTIONS", "/v1/mood/classify", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = open_one.get("/v1/models", origin="https://b.example")
        assert "access-control-allow-origin" not in other.headers
        # Errors have the header, too, or a page could not read them.
        wrong = open_one.post("/v1/nope/fill", {"texts": ""}, origin="https://a.example")
        assert wrong.headers["access-control-allow-origin"] == "https://a.example"


def test_keys_open_what_needs_them(models: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("# two\nthe-first-key-of-all\n\nthe-second-key-of-all\n", "utf-8")
    with serving(*named(models, ["mood"]), "--api-key-file", str(keys)) as locked:
        for path in ("/", "/docs", "/health", "/ready", "/openapi.json", "/page/style.css"):
            assert locked.get(path).status == 200, path
        for path in ("/v1/models", "/metrics", "/v1/nope"):
            assert locked.get(path).status == 401, path
        sent = {"texts": "Paris"}
        refused = locked.post("/v1/mood/classify", sent)
        assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer KEY" in refused.message
        wrong = locked.post("/v1/mood/classify", sent, authorization="Bearer the-third")
        assert wrong.status == 401 and "not known here" in wrong.message
        for headers in (
            {"authorization": "Bearer the-first-key-of-all"},
            {"authorization": "bearer the-second-key-of-all"},
            {"x-api-key": "the-second-key-of-all"},
        ):
            assert locked.post("/v1/mood/classify", sent, **headers).status == 200
        assert locked.stop() == 0
    lines = "".join(locked.log)
    assert "key-of-all" not in lines, "a key has no place in the log"
    assert len({json.loads(line)["key"] for line in locked.log if '"key"' in line}) == 2


# Time, room, and clients that leave.


def hold(server: Server, sent: object, path: str) -> socket.socket:
    """Sends a request and does not wait for its answer."""
    host, port = urlsplit(server.address).netloc.split(":")
    connection = socket.create_connection((host, int(port)))
    body = json.dumps(sent).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
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
        assert (full.status, full.headers["retry-after"]) == (429, "1")
        assert "the limit is 20; ask again" in full.message
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
        host, port = urlsplit(server.address).netloc.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/x/tag HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            found = b""
            while b"}" not in found:
                found += connection.recv(4096)
        assert b" 408 " in found.split(b"\r\n")[0] and b"limit of 0.5 s" in found


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


def begin(server: Server, head: str, length: int = 2) -> socket.socket:
    """Sends a request but for its body."""
    host, port = urlsplit(server.address).netloc.split(":")
    connection = socket.create_connection((host, int(port)))
    fields = "host: x\r\ncontent-type: application/json\r\n"
    fields += f"content-length: {length}\r\n"
    connection.sendall(f"{head} HTTP/1.1\r\n{fields}\r\n".encode())
    return connection


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


def test_requests_at_one_time_are_limited(models: dict[str, Path]) -> None:
    with serving(*named(models, ["mood"]), "--set", "limits.requests=2") as server:
        slow = [begin(server, "POST /v1/mood/classify") for _ in range(2)]
        while (full := server.get("/v1/models")).status == 200:
            time.sleep(0.01)
        assert (full.status, full.headers["retry-after"]) == (429, "1")
        assert "2 requests are not yet answered, and the limit is 2" in full.message
        assert server.get("/health").status == 200
        for one in slow:
            one.close()
        while server.get("/v1/models").status != 200:
            time.sleep(0.01)


# What is told.


def test_every_cut_is_told(models: dict[str, Path]) -> None:
    with serving(*named(models, ["reader"])) as server:
        for _ in range(3):
            sent = {"question": "Which city is the capital of France? " * 9, "context": "Paris"}
            assert server.post("/v1/reader/answer", sent).status == 200
        assert server.stop() == 0
    assert len([line for line in server.told if "CutOff" in line]) == 3


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


def test_metrics_count_what_happens(server: Server) -> None:
    before = server.metrics()
    server.post("/v1/mood/classify", {"texts": ["a", "b", "c"]})
    server.post("/v1/made-up-name/classify", {"texts": "a"})
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    labels = '{model="mood",verb="classify"'
    assert grown(f'bertie_requests_total{labels},status="200"}}') == 1
    assert grown(f"bertie_request_seconds_count{labels}}}") == 1
    assert grown(f'bertie_request_seconds_bucket{labels},le="+Inf"}}') == 1
    assert grown('bertie_texts_total{model="mood"}') == 3
    assert grown('bertie_batch_texts_sum{model="mood"}') == 3
    assert after["process_resident_memory_bytes"] > 1e7
    assert not any("made-up" in name for name in after)


def test_it_lives_and_is_ready(server: Server) -> None:
    assert server.get("/health").json == server.get("/ready").json == {"status": "ok"}


def test_what_can_be_asked_is_written_down(server: Server) -> None:
    described = server.get("/openapi.json").json
    verbs = ["fill", "classify", "tag", "answer", "choose", "embed", "similarity", "attention"]
    for verb in verbs:
        path = described["paths"][f"/v1/{{model}}/{verb}"]["post"]
        assert path["description"] or path["summary"]
        assert {"200", "400", "401", "404", "413", "422", "429", "503", "504"} <= set(
            path["responses"]
        )


def test_the_page_asks_nobody_else(server: Server) -> None:
    for path in ("/", "/docs"):
        page = server.get(path)
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert b"://" not in page.body.replace(b"http://www.w3.org/2000/svg", b"")
