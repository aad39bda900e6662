"""What is not answered is refused in words, with the right status."""

import pytest

from tests.serve.servers import Server

WRONG: dict[str, tuple[str, object, int, str]] = {
    "no model": ("/v1/nope/fill", {"texts": "[MASK]"}, 404, "no model 'nope'; there are: masks,"),
    "another head": ("/v1/mood/tag", {"texts": "a"}, 404, "mood cannot tag, only classify, em"),
    "who can": ("/v1/mood/fill", {"texts": "[MASK]"}, 404, "attention; masks can"),
    "a long name": (f"/v1/{'x' * 999}/fill", {"texts": "a"}, 404, f"no model '{'x' * 57}...'; th"),
    "a long path": (f"/v1/x/{'y' * 999}", {}, 404, f"nothing at /v1/x/{'y' * 51}...; /docs"),
    "a long number": (
        "/v1/masks/attention",
        {"text": "a", "layer": 10**99},
        422,
        "layer must be a whole ",
    ),
    "no path": ("/v1/mood/nope", {}, 404, "nothing at /v1/mood/nope; /docs lists"),
    "texts for pairs": ("/v1/pairs/classify", {"texts": "a"}, 422, "fine-tuned on pairs; send"),
    "pairs for texts": ("/v1/mood/classify", {"pairs": ["a", "b"]}, 422, "on texts; send texts"),
    "neither": ("/v1/mood/classify", {}, 422, "give texts or pairs, and not both"),
    "both": ("/v1/mood/classify", {"texts": "", "pairs": ["", ""]}, 422, "and not both"),
    "three of a pair": ("/v1/pairs/classify", {"pairs": ["a", "b", "c"]}, 422, "found a list of 3"),
    "no text": (
        "/v1/mood/classify",
        {"texts": ["a", 1]},
        422,
        "texts must be a text, or a list of texts; item 2 is the number 1",
    ),
    "nothing": ("/v1/masks/fill", {}, 422, "texts is missing: a text, or a list of texts"),
    "no list": ("/v1/masks/similarity", {"texts": "a"}, 422, "must be a list of texts; found the"),
    "no object": ("/v1/masks/fill", ["a"], 422, "must be a JSON object; found a list of 1"),
    "a slip": (
        "/v1/masks/fill",
        {"texts": "[MASK]", "tob": 3},
        422,
        "no field 'tob'; there are:",
    ),
    "no mask": ("/v1/masks/fill", {"texts": "a city"}, 422, "no [MASK] in 'a city'; write [MASK]"),
    "no mask in one": ("/v1/masks/fill", {"texts": ["[MASK]", "b"]}, 422, "text 2: no [MASK] in"),
    "top": (
        "/v1/masks/fill",
        {"texts": "[MASK]", "top": 101},
        422,
        "from 1 to 100; found the numbe",
    ),
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
    "no pooling": ("/v1/mood/embed", {"texts": "a", "pooling": "sum"}, 422, "cls or max; fo"),
    "a alone": ("/v1/mood/similarity", {"a": "x"}, 422, "give a and b, or texts"),
    "uneven sides": ("/v1/mood/similarity", {"a": ["x"], "b": ["y", "z"]}, 422, "1 texts in a, 2"),
    "numbers for texts": (
        "/v1/embeddings",
        {"model": "mood", "input": [[1, 2]]},
        422,
        "input must be a text, or a list of texts; item 1 is a list of 2",
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
    "attention of too much": (
        "/v1/masks/attention",
        {"text": "the city " * 30},
        413,
        "a text of 92 pieces; the limit is 40 for attention",
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
    assert "list[str]" not in answer.message and "Input should" not in answer.message


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"{", 400), (b"\xff\xfe", 400), (b"[" * 90_000, 400), (b"null", 422)],
    ids=["nothing", "half", "no UTF-8", "deep", "null"],
)
def test_what_is_no_json_is_refused(server: Server, body: bytes, status: int) -> None:
    answer = server.request("POST", "/v1/mood/classify", body, {"content-type": "application/json"})
    assert answer.status == status, answer.body
    assert answer.message


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain", "x"])
def test_what_does_not_say_that_it_is_json_is_refused(server: Server, kind: str) -> None:
    """Pages of other sites can send these without being allowed to."""
    headers = {"content-type": kind} if kind else {}
    for path, sent in (
        ("/v1/mood/classify", b'{"texts": "a"}'),
        ("/v1/embeddings", b'{"model": "mood", "input": "a"}'),
    ):
        answer = server.request("POST", path, sent, headers)
        assert answer.status == 415
        assert "the header content-type: application/json is missing" in answer.message
        charset = {"content-type": "Application/JSON; charset=utf-8"}
        assert server.request("POST", path, sent, charset).status == 200


def test_a_lone_surrogate_is_answered_or_refused_but_does_no_harm(server: Server) -> None:
    for sent in (b'{"texts": "\\ud800 [MASK]"}', b'{"texts": "[MASK]", "\\ud800": 1}'):
        headers = {"content-type": "application/json"}
        assert server.request("POST", "/v1/masks/fill", sent, headers).status in (200, 422)


def test_a_method_that_is_not_taken(server: Server) -> None:
    answer = server.get("/v1/mood/classify")
    assert answer.status == 405 and "does not take GET" in answer.message
    assert answer.headers["allow"] == "POST"
