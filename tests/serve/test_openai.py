"""OpenAI's paths answer as its clients expect."""

import base64

import numpy as np

from bertie.infer.engine import Engine
from tests.serve.answers import TEXTS, close
from tests.serve.servers import Server


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
