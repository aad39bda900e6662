"""The paths of a real server: what it has, what it tells of itself, who may ask."""

from pathlib import Path

import torch

from bertie.checkpoint.model_dir import open_model, save_model
from bertie.text.tokenizer import Tokenizer
from tests.infer.models import make_directory
from tests.serve.servers import Server, named, serving


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
    assert listed["mood"]["scripts"] == ["latin"]
    assert listed["mood"]["object"] == "model" and listed["mood"]["created"] > 1e9


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


def test_every_cut_is_told(models: dict[str, Path]) -> None:
    with serving(*named(models, ["reader"])) as server:
        for _ in range(3):
            sent = {"question": "Which city is the capital of France? " * 9, "context": "Paris"}
            assert server.post("/v1/reader/answer", sent).status == 200
        assert server.stop() == 0
    assert len([line for line in server.told if "CutOff" in line]) == 3


def test_a_broken_model_is_a_mistake_of_the_server(tmp_path: Path) -> None:
    made = make_directory(tmp_path)
    opened = open_model(made)
    (piece,) = Tokenizer.load(made).ids("中").tolist()
    with torch.no_grad():
        opened.model.embeddings.token.weight[piece] = float("nan")
    save_model(opened.model, made, card=opened.card, tokenizer_from=made)
    with serving(f"broken={made}") as server:
        for verb, sent in (
            ("fill", {"texts": "Paris [MASK]"}),  # each piece is a candidate
            ("embed", {"texts": ["Paris", "中"]}),
            ("attention", {"text": "中"}),
        ):
            answer = server.post(f"/v1/broken/{verb}", sent)
            assert answer.status == 500, answer.body
            assert answer.message.startswith("the model's numbers are not finite")
        assert server.post("/v1/broken/embed", {"texts": "Paris"}).status == 200
        assert server.stop() == 0


def test_it_lives_and_is_ready(server: Server) -> None:
    assert server.get("/health").json == server.get("/ready").json == {"status": "ok"}
    for path in ("/", "/docs", "/health", "/ready"):
        head = server.request("HEAD", path)
        assert head.status == 200 and head.body == b""
        assert head.headers["content-type"] == server.get(path).headers["content-type"]


def test_what_can_be_asked_is_written_down(server: Server) -> None:
    described = server.get("/openapi.json").json
    verbs = ["fill", "classify", "tag", "answer", "choose", "embed", "similarity", "attention"]
    for verb in verbs:
        path = described["paths"][f"/v1/{{model}}/{verb}"]["post"]
        assert path["description"] or path["summary"]
        wanted = "200 400 401 403 404 405 408 413 415 422 429 500 503 504"
        assert set(path["responses"]) == set(wanted.split())
    assert {"401", "405"} <= set(described["paths"]["/metrics"]["get"]["responses"])
    schemes = described["components"]["securitySchemes"].values()
    assert {one["type"] for one in schemes} == {"http", "apiKey"}
    assert "security" not in described["paths"]["/metrics"]["get"], "there is no key here"


def test_the_page_asks_nobody_else(server: Server) -> None:
    for path in ("/", "/docs"):
        page = server.get(path)
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-cache"
        assert b"://" not in page.body.replace(b"http://www.w3.org/2000/svg", b"")


def test_no_part_of_the_page_is_older_than_another(server: Server) -> None:
    for name in ("page.js", "style.css", "icon.svg"):
        first = server.get(f"/page/{name}")
        again = server.get(f"/page/{name}", **{"if-none-match": first.headers["etag"]})
        assert (first.status, again.status) == (200, 304)
        assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert server.get("/page/nope.js").status == 404
