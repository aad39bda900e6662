"""OpenAI's API, as far as BERT can follow: the list of models, and vectors of texts."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from fastapi import Depends, FastAPI, Request, Response

from bertie.infer.verb import Verb
from bertie.serve.bodies import EmbeddingsAnswer, EmbeddingsBody, check_json
from bertie.serve.desk import Desk, write_answer
from bertie.serve.models import Served
from bertie.serve.refusals import Refused, write_json

FRAME = 2  # [CLS] and [SEP]


def add_openai_routes(app: FastAPI, desk: Desk, refusals: Mapping[int | str, Any]) -> None:
    some: dict[int | str, Any] = {status: refusals[status] for status in (401, 405, 429)}

    @app.get("/v1/models", responses=some, tags=["models"])
    async def models() -> dict[str, Any]:
        """All models, and what each can do."""
        return {"object": "list", "data": [describe(one) for one in desk.models]}

    more = some | {status: refusals[status] for status in (404, 422)}

    @app.get("/v1/models/{model}", responses=more, tags=["models"])
    async def model_info(model: str) -> dict[str, Any]:
        """One of them."""
        return describe(desk.models.get(model))

    @app.post(
        "/v1/embeddings",
        responses=dict(refusals),
        dependencies=[Depends(check_json)],
        response_model=EmbeddingsAnswer,
        tags=["models"],
    )
    async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
        """Vectors, for programs that were written for OpenAI's API."""
        return Response(await answer(desk, request, body), media_type="application/json")


def describe(served: Served) -> dict[str, Any]:
    fixed = {"id": served.name, "object": "model", "created": served.created}
    return fixed | {"owned_by": "bertie"} | asdict(served.about)


async def answer(desk: Desk, request: Request, body: EmbeddingsBody) -> bytes:
    served = desk.find(request, body.model, "embed")
    size = served.about.hidden_size
    if body.dimensions not in (None, size):
        raise Refused(
            422, f"{body.model} has vectors of {size} numbers; leave dimensions out", "dimensions"
        )
    texts = [body.input] if isinstance(body.input, str) else body.input
    verb = counted_verb(served, is_base64=body.encoding_format == "base64")
    counted = await desk.ask(request, served, ("openai", body.encoding_format), verb, texts)
    items = (
        b'{"object":"embedding","index":%d,"embedding":%s}' % (number, one.vector)
        for number, one in enumerate(counted)
    )
    num_tokens = sum(one.num_tokens for one in counted)
    return b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (
        b",".join(items),
        write_json(body.model),
        write_json({"prompt_tokens": num_tokens, "total_tokens": num_tokens}),
    )


class Counted(NamedTuple):
    """A text's vector as JSON, and how many tokens it has."""

    vector: bytes
    num_tokens: int


def counted_verb(served: Served, *, is_base64: bool) -> Verb[str, Counted]:
    usual = served.engine.embed_verb(None, None, False)
    count = served.engine.tokenizer.ids
    write = write_base64 if is_base64 else write_answer

    def answer(texts: Sequence[str]) -> list[Counted]:
        vectors = usual.answer(texts)
        pairs = zip(vectors, texts, strict=True)
        return [Counted(write(vector), len(count(text)) + FRAME) for vector, text in pairs]

    return Verb(read=usual.read, size=usual.size, answer=answer)


def write_base64(vector: np.ndarray) -> bytes:
    return b'"%s"' % base64.b64encode(vector.astype("<f4").tobytes())
