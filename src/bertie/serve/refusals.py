"""Answers that are no answers: a status, and words that say what to do."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

KINDS = {
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    422: "invalid_request",
    429: "queue_full",
    500: "internal_error",
    503: "unavailable",
    504: "time_limit",
}
AGAIN_LATER = {429, 503}
MAX_PROBLEMS = 3  # that are told of one request
MAX_ECHO = 60  # characters of what was sent, in a message
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
        headers["retry-after"] = "1"
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Reply(refused.status, write_json({"error": error}), headers)


def cut(text: str) -> str:
    """What somebody sent, by its beginning where it is long."""
    return text if len(text) <= MAX_ECHO else f"{text[: MAX_ECHO - 3]}..."


def write_json(value: object) -> bytes:
    """UTF-8; of a text with lone surrogates, which UTF-8 has no bytes for, plain ASCII."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def explain(problems: Sequence[Mapping[str, object]]) -> Refused:
    """What pydantic found wrong, in a line; what is no JSON at all is another status."""
    if any(problem["type"] == "json_invalid" for problem in problems):
        return Refused(400, "the body is no JSON")
    found = [tell_problem(problem) for problem in problems[:MAX_PROBLEMS]]
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    return Refused(422, "; ".join(found) + more, found[0].partition(":")[0])


def tell_problem(problem: Mapping[str, object]) -> str:
    place = ".".join(map(str, tuple(problem["loc"])[1:]))  # type: ignore[arg-type]
    return f"{place or 'body'}: {str(problem['msg']).removeprefix('Value error, ')}"
