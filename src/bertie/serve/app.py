"""The application: its paths, and what goes in and out of each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from bertie import __version__
from bertie.errors import UserError
from bertie.infer.answers import Chosen, Classified, Tagged
from bertie.infer.batches import NotFinite
from bertie.serve import bodies
from bertie.serve.batcher import Batcher
from bertie.serve.desk import Desk
from bertie.serve.gate import Gate, needs_key
from bertie.serve.keys import Keys
from bertie.serve.metrics import Metrics
from bertie.serve.models import Models
from bertie.serve.openai import add_openai_routes
from bertie.serve.refusals import KINDS, Refused, cut, explain, make_reply
from bertie.serve.settings import ServeRecipe

PAGE = Path(str(files("bertie.serve") / "page"))
# Nothing from outside, whatever a text on the page should turn out to be.
CONTENT_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
FRESH = {"cache-control": "no-cache"}  # kept, and used if the server says that it is the same
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": bodies.ErrorAnswer, "description": KINDS[status]}
    for status in (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503, 504)
}
LOCKS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}

LAST_WAIT_S = 2.0
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


def make_app(
    models: Models,
    settings: ServeRecipe,
    *,
    keys: Keys | None,
    origins: Sequence[str],
    hosts: frozenset[str] | None,
) -> FastAPI:
    """All that a server does, for uvicorn to run."""
    metrics = Metrics()
    batcher = Batcher(settings.batching, settings.limits, metrics)
    metrics.now["bertie_waiting_texts"] = lambda: batcher.num_waiting

    app = FastAPI(
        title="bertie",
        version=__version__,
        summary="BERT models: masks, classes, tags, answers, choices, vectors.",
        lifespan=living(batcher),
        docs_url=None,  # these load scripts from elsewhere; ours is /docs of the page
        redoc_url=None,
    )
    app.state.batcher = batcher
    desk = Desk(models, batcher, settings.limits)
    add_head_routes(app, desk)
    add_encoder_routes(app, desk)
    add_openai_routes(app, desk, REFUSALS)
    add_state_routes(app, batcher, metrics)
    add_page_routes(app)
    add_refusals(app)
    describe_locks(app, are_locked=keys is not None)
    app.add_middleware(
        Gate,
        limits=settings.limits,
        keys=keys,
        metrics=metrics,
        hosts=hosts,
        wait_s=batcher.wait_s,
    )
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


class PageFiles(StaticFiles):
    """What the page is made of; all of it is asked for anew, so that no two versions meet."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(FRESH)
        return response


def living(batcher: Batcher) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        """What was taken is finished before the end."""
        running = asyncio.create_task(batcher.run())
        yield
        batcher.close()
        with suppress(TimeoutError):  # by now all were answered or refused: the rest is for nobody
            await asyncio.wait_for(running, LAST_WAIT_S)

    return live


def posting(app: FastAPI) -> Callable[[str, Any], Callable[[Handler], Handler]]:
    """Answers are sent as the engine made them: their types are for those who read /docs."""

    def post(verb: str, answer: Any) -> Callable[[Handler], Handler]:
        return app.post(
            f"/v1/{{model}}/{verb}",
            response_model=answer,
            responses=REFUSALS,
            dependencies=[Depends(bodies.check_json)],
            tags=["verbs"],
        )

    return post


def add_head_routes(app: FastAPI, desk: Desk) -> None:
    """What some heads can do."""
    post = posting(app)

    @post("fill", bodies.FillAnswer | list[bodies.FillAnswer])
    async def fill(model: str, body: bodies.FillBody, request: Request) -> Response:
        """The best pieces for each mask of a text."""
        return as_json(await desk.answer(request, model, "fill", body))

    @post("classify", Classified | list[Classified])
    async def classify(model: str, body: bodies.ClassifyBody, request: Request) -> Response:
        """The class of a text or of a pair of texts; its labels; or its number."""
        return as_json(await desk.answer(request, model, "classify", body))

    @post("tag", Tagged | list[Tagged])
    async def tag(model: str, body: bodies.TagBody, request: Request) -> Response:
        """The spans of a text, such as names, and the tags of its words."""
        return as_json(await desk.answer(request, model, "tag", body))

    @post("answer", bodies.SpanAnswer | list[bodies.SpanAnswer])
    async def answer(model: str, body: bodies.AnswerBody, request: Request) -> Response:
        """The answer to a question, cut from its context, and the next best candidates."""
        return as_json(await desk.answer(request, model, "answer", body))

    @post("choose", Chosen | list[Chosen])
    async def choose(model: str, body: bodies.ChooseBody, request: Request) -> Response:
        """The option that fits a prompt best."""
        return as_json(await desk.answer(request, model, "choose", body))


def add_encoder_routes(app: FastAPI, desk: Desk) -> None:
    """What every model can do."""
    post = posting(app)

    @post("embed", list[float] | list[list[float]])
    async def embed(model: str, body: bodies.EmbedBody, request: Request) -> Response:
        """The vector of a text."""
        return as_json(await desk.answer(request, model, "embed", body))

    @post("similarity", float | list[float] | list[list[float]])
    async def similarity(model: str, body: bodies.SimilarityBody, request: Request) -> Response:
        """The cosine of texts' vectors: of a and b, or of each text with each."""
        return as_json(await desk.similarity(request, model, body))

    @post("attention", bodies.AttentionAnswer)
    async def attention(model: str, body: bodies.AttentionBody, request: Request) -> Response:
        """How much each piece of a text looks at each other one, in each head of a layer."""
        return as_json(await desk.answer(request, model, "attention", body))


def as_json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def refusing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: REFUSALS[status] for status in statuses}


def add_state_routes(app: FastAPI, batcher: Batcher, metrics: Metrics) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=refusing(403, 405), tags=["state"])
    async def health() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", responses=refusing(403, 405, 429, 503), tags=["state"])
    async def ready() -> dict[str, str]:
        """Whether it takes requests: models are open, and it is not shutting down."""
        if batcher.is_closing:
            raise Refused(503, "the server is shutting down")
        return {"status": "ok"}

    @app.get(
        "/metrics", response_class=Response, responses=refusing(401, 403, 405, 429), tags=["state"]
    )
    async def show_metrics() -> Response:
        """Numbers, for Prometheus."""
        return Response(metrics.write(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_page_routes(app: FastAPI) -> None:
    headers = {"content-security-policy": CONTENT_POLICY, **FRESH}

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=headers)

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html", headers=headers)

    app.mount("/page", PageFiles(directory=PAGE), name="page")


def describe_locks(app: FastAPI, *, are_locked: bool) -> None:
    """Adds to the description how keys are sent, and which paths need one here."""
    described = app.openapi()  # which keeps what it made
    described["components"]["securitySchemes"] = LOCKS
    for path, methods in described["paths"].items():
        if are_locked and needs_key(path):
            for how in methods.values():
                how["security"] = [{name: []} for name in LOCKS]


def add_refusals(app: FastAPI) -> None:
    """Whatever goes wrong is told in one form."""

    def reply(refused: Refused) -> Response:
        made = make_reply(refused)
        return Response(made.body, made.status, headers=made.headers)

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            return reply(error)
        if isinstance(error, RequestValidationError):
            return reply(explain(error.errors()))
        if isinstance(error, HTTPException):
            return reply(explain_http(request, error))
        if isinstance(error, NotFinite):
            return reply(Refused(500, str(error)))
        return reply(Refused(422, str(error)))

    # What else goes wrong is a mistake of ours, and the gate's business.
    for kind in (Refused, RequestValidationError, HTTPException, UserError):
        app.add_exception_handler(kind, refuse)


def explain_http(request: Request, error: HTTPException) -> Refused:
    """Of the framework's own."""
    path = cut(request.scope["path"])
    if error.status_code == 404:
        return Refused(404, f"there is nothing at {path}; /docs lists what there is")
    if error.status_code == 405:
        message = f"{path} does not take {cut(request.method)}; /docs says what it takes"
        return Refused(405, message, headers=error.headers)
    if error.status_code == 400:
        return Refused(400, "the body is not JSON")
    return Refused(error.status_code, str(error.detail))
