"""What is asked reaches the engine, and its answers come back whole."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bertie.infer.answers import to_json
from bertie.infer.engine import Engine
from tests.infer.models import SENTENCES
from tests.serve.answers import LONG, TEXTS, close
from tests.serve.servers import Server

MASKED = ["Paris is the [MASK] of France.", f"{LONG} [MASK] {LONG}", "中[MASK] [MASK]"]
PAIRS = [[SENTENCES[0], SENTENCES[1]], ["", "Paris"], [LONG, LONG]]
OPTIONS = [["Paris", "the capital of France", ""], ["is", "the capital"]]


def fills(engine: Engine, texts: Sequence[str], top: int) -> Any:
    return [one.to_json() for one in engine.fill(texts, top=top)]


def answers(engine: Engine, question: str, contexts: Sequence[str]) -> Any:
    found: Any = to_json(engine.answer(question, contexts))
    return [one if one["candidates"] else {**one, "no_answer": None} for one in found]


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
        lambda e: answers(e, "Which city?", TEXTS),
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


def test_where_there_is_nothing_to_compare_no_number_is_made_up(server: Server) -> None:
    sent = {"question": "Who?", "context": ["", "\u0000 "]}
    for answer in server.post("/v1/reader/answer", sent).json:
        assert (answer["text"], answer["probability"], answer["candidates"]) == ("", 1.0, [])
        assert answer["no_answer"] is None


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
