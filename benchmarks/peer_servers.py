"""Servers as people write them around `transformers`: the peers of benchmarks/serving.py.

    python benchmarks/peer_servers.py plain MODEL --port 8001     # one request at a time
    python benchmarks/peer_servers.py padded MODEL --port 8002    # whatever is queued, padded

Both take and give what bertie's classify does, for one text a request.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
import transformers
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

MOST = 64  # texts of a padded batch


class Body(BaseModel):
    texts: str


class Classifier:
    """A model and its tokenizer."""

    def __init__(self, directory: str, max_length: int) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.model = transformers.BertForSequenceClassification.from_pretrained(directory).eval()
        self.max_length = max_length

    @torch.inference_mode()
    def classify(self, texts: list[str]) -> list[dict[str, Any]]:
        encoded = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        shares = self.model(**encoded).logits.softmax(-1).tolist()
        labels = self.model.config.id2label
        return [
            {
                "label": labels[max(range(len(row)), key=row.__getitem__)],
                "scores": {labels[n]: share for n, share in enumerate(row)},
            }
            for row in shares
        ]


def plain(classifier: Classifier) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/{name}/classify")
    async def classify(name: str, body: Body) -> dict[str, Any]:
        return classifier.classify([body.texts])[0]

    return app


def padded(classifier: Classifier) -> FastAPI:
    queue: asyncio.Queue[tuple[str, asyncio.Future[dict[str, Any]]]] = asyncio.Queue()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await queue.get()]
            while len(batch) < MOST and not queue.empty():
                batch.append(queue.get_nowait())
            texts = [text for text, _ in batch]
            answers = await loop.run_in_executor(None, classifier.classify, texts)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        working = asyncio.create_task(work())
        yield
        working.cancel()

    app = FastAPI(lifespan=live)

    @app.post("/v1/{name}/classify")
    async def classify(name: str, body: Body) -> dict[str, Any]:
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        queue.put_nowait((body.texts, future))
        return await future

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=("plain", "padded"))
    parser.add_argument("model", help="directory of a BertForSequenceClassification")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    classifier = Classifier(options.model, options.max_length)
    app = {"plain": plain, "padded": padded}[options.kind](classifier)
    uvicorn.run(app, port=options.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
