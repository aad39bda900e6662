"""Answers that are no answers: a status, and words that say what to do."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

KINDS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "queue_full",
    500: "internal_error",
    503: "unavailable",
    504: "time_limit",
}
AGAIN_LATER = {429, 503}
MAX_ECHO = 60  # characters of what was sent, in a message
# The fields of all bodies, in words.
TEXTS = "a text, or a list of texts"
WANTED = {
    "texts": TEXTS,
    "pairs": "two texts in a list, or a list of such pairs",
    "question": TEXTS,
    "context": TEXTS,
    "prompt": TEXTS,
    "options": "a list of texts; of many prompts, such a list for each",
    "a": TEXTS,
    "b": TEXTS,
    "text": "a text",
    "top": "a whole number from 1 to 100",
    "layer": "a whole number from -99 to 99",
    "pooling": "mean, cls or max",
    "normalise": "true or false",
    "model": "the name of a model",
    "input": TEXTS,
    "encoding_format": "float or base64",
    "dimensions": "a whole number",
    "user": "a text",
}
LENGTHS = {"too_long", "too_short"}
CLIENT_LEFT = 499  # in the log alone: nobody is there to read it


class Refused(Exception):
    """A request that gets no answer, and why."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.headers = headers or {}


def come_back(message: str, wait_s: float) -> Refused:
    """There is no room now, but there should be in so many seconds."""
    whole_s = max(1, math.ceil(wait_s))
    headers = {"retry-after": str(whole_s)}
    return Refused(429, f"{message}; ask again in {whole_s} s", headers=headers)


class Reply(NamedTuple):
    """What is sent."""

    status: int
    body: bytes
    headers: dict[str, str]


def make_reply(refused: Refused) -> Reply:
    """In the form that clients of OpenAI's API know, too."""
    error = {
        "message": refused.message,
        "type": KINDS.get(refused.status, "error"),
        "param": refused.param,
        "code": refused.status,
    }
    headers = {"content-type": "application/json"}
    headers |= {name.lower(): value for name, value in refused.headers.items()}
    if refused.status in AGAIN_LATER:
        headers.setdefault("retry-after", "1")
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Reply(refused.status, write_json({"error": error}), headers)


def cut(text: str) -> str:
    """What somebody sent, by its beginning where it is long."""
    return text if len(text) <= MAX_ECHO else f"{text[: MAX_ECHO - 3]}..."


def write_json(value: object) -> bytes:
    """UTF-8; of a text with lone surrogates, which UTF-8 has no bytes for, plain ASCII."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def explain(problems: Sequence[Mapping[str, Any]]) -> Refused:
    """What pydantic found wrong, in a sentence; what is no JSON at all is another status."""
    if any(problem["type"] == "json_invalid" for problem in problems):
        return Refused(400, "the body is not JSON")
    by_field: dict[str, list[Mapping[str, Any]]] = {}
    for problem in problems:
        place = problem["loc"][1:]  # within the body; of the body as a whole, none
        by_field.setdefault(str(place[0]) if place else "", []).append(problem)
    field, *others = by_field
    more = f"; also wrong: {', '.join(others)}" if others else ""
    return Refused(422, tell_field(field, by_field[field]) + more, field or None)


def tell_field(field: str, problems: Sequence[Mapping[str, Any]]) -> str:
    """Of a field that may be one thing or another, pydantic has a problem with each of them."""
    # Where the length of a list is wrong, that is it; else what lies deepest.
    problem = max(problems, key=lambda one: (one["type"] in LENGTHS, len(one["loc"])))
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if not field:
        found = "none" if problem["type"] == "missing" else name_value(problem["input"])
        return f"the body must be a JSON object; found {found}"
    wanted = WANTED[field]
    if problem["type"] == "missing":
        return f"{field} is missing: {wanted}"
    within = problem["loc"][2:]  # numbers of items, and names of the types that were tried
    if field == "texts" and not any(isinstance(one, str) for one in within):
        wanted = "a list of texts"  # of similarity: a single one has nothing to be compared with
    places = [one + 1 for one in within if isinstance(one, int)]
    found = name_value(problem["input"])
    where = f"item {' of item '.join(map(str, reversed(places)))} is" if places else "found"
    return f"{field} must be {wanted}; {where} {found}"


def name_value(value: object) -> str:
    """What somebody sent, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"the number {cut(str(value))}"
    if isinstance(value, str):
        return f"the text {cut(value)!r}"
    return f"a list of {len(value)}" if isinstance(value, list) else "an object"
