"""Whatever is sent, as the description of the API has it or not, is answered or refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.servers import TUNED, Answer, Server

EXPECTED = {200, 400, 404, 405, 413, 415, 422}
MODELS = [*TUNED, "masks", "nope"]
TEXT = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["[MASK]", "Paris [MASK] is", "the city of Paris, France", "\u0000", "中文 😀"]
    ),
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def values(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a part of the description allows, as far as JSON can say it."""
    if "$ref" in schema:
        return values(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    if "anyOf" in schema:
        return st.one_of([values(one, schemas) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "object":
        return objects(schema, schemas)
    if schema.get("type") == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", 4)
        return st.lists(values(schema["items"], schemas), min_size=low, max_size=high)
    kinds = {
        "string": TEXT,
        "integer": st.integers(schema.get("minimum", -9), schema.get("maximum", 9)),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return kinds[schema["type"]]


def objects(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: values(one, schemas) for name, one in schema["properties"].items()}
    needed = schema.get("required", [])
    return st.fixed_dictionaries(
        {name: one for name, one in fields.items() if name in needed},
        optional={name: one for name, one in fields.items() if name not in needed},
    )


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/openapi.json").json
    return found


def bodies(described: dict[str, Any], path: str) -> st.SearchStrategy[Any]:
    schemas = described["components"]["schemas"]
    content = described["paths"][path]["post"]["requestBody"]["content"]
    return values(content["application/json"]["schema"], schemas)


def check(answer: Answer) -> None:
    assert answer.status in EXPECTED, answer.body
    if answer.status != 200:
        error = answer.json["error"]
        assert error["code"] == answer.status and error["message"] and error["type"]
    assert "x-request-id" in answer.headers


VERBS = ["fill", "classify", "tag", "answer", "choose", "embed", "similarity", "attention"]


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=40)
@given(data=st.data())
def test_what_the_description_allows_is_answered_or_refused(
    server: Server, described: dict[str, Any], verb: str, data: st.DataObject
) -> None:
    body = data.draw(bodies(described, f"/v1/{{model}}/{verb}"))
    check(server.post(f"/v1/{data.draw(st.sampled_from(MODELS))}/{verb}", body))


@settings(max_examples=40)
@given(data=st.data())
def test_so_it_is_with_openais_path(
    server: Server, described: dict[str, Any], data: st.DataObject
) -> None:
    body = data.draw(bodies(described, "/v1/embeddings"))
    if data.draw(st.booleans()):
        body |= {"model": "masks"}
    check(server.post("/v1/embeddings", body))


@settings(max_examples=60)
@given(
    verb=st.sampled_from(VERBS),
    model=st.sampled_from(MODELS),
    name=st.sampled_from(["texts", "pairs", "question", "top", "layer", "x"]),
    junk=JUNK,
    text=TEXT,
)
def test_what_it_does_not_allow_is_refused(
    server: Server, verb: str, model: str, name: str, junk: object, text: str
) -> None:
    for body in (junk, {"texts": text, name: junk}, {"text": text, name: junk}):
        check(server.post(f"/v1/{model}/{verb}", body))


@settings(max_examples=60)
@given(
    body=st.binary(max_size=60),
    kind=st.sampled_from(["application/json", "text/plain", "", "multipart/form-data", "a;b=c"]),
    method=st.sampled_from(["POST", "PUT", "DELETE", "PATCH", "GET"]),
    path=st.sampled_from(["/v1/mood/classify", "/v1/embeddings", "/v1//fill", "/v1/%00/tag", "/"]),
)
def test_bytes_of_any_kind_do_no_harm(
    server: Server, body: bytes, kind: str, method: str, path: str
) -> None:
    check(server.request(method, path, body, {"content-type": kind}))


def test_the_server_is_well_after_all_this(server: Server) -> None:
    assert json.loads(server.get("/ready").body) == {"status": "ok"}
    statuses = {json.loads(line)["status"] for line in server.log}
    assert min(statuses) >= 200 and max(statuses) < 500, "0 is no answer at all"
    assert not any("Traceback" in line for line in server.told)
