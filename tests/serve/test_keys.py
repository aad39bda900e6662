"""Keys are read from a file, and compared without giving anything away."""

import json
from pathlib import Path

import pytest

from bertie.errors import UserError
from bertie.serve.keys import Keys
from bertie.serve.refusals import Refused
from tests.serve.servers import named, serving

LONG = "0123456789abcdef"


def test_comments_and_blank_lines_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(f"{LONG}9\n# {LONG}0\n  {LONG}1  \n{LONG}中\n", "utf-8-sig")
    keys = Keys.read(path)
    first = keys.check({b"authorization": f"Bearer {LONG}1".encode()})
    second = keys.check({b"x-api-key": f"{LONG}中".encode()})
    assert keys.check({b"x-api-key": f"{LONG}9".encode()})  # behind the mark that Windows writes
    assert first != second and len(first) == len(second) == 8
    for wrong in (f"# {LONG}0", f"{LONG}0", "", LONG):
        with pytest.raises(Refused) as refused:
            keys.check({b"authorization": f"Bearer {wrong}".encode()})
        assert refused.value.status == 401


@pytest.mark.parametrize("scheme", ["Basic", "Bearer", ""])
def test_a_header_without_a_key_is_refused(scheme: str) -> None:
    with pytest.raises(Refused, match="Authorization: Bearer KEY"):
        Keys([LONG]).check({b"authorization": scheme.encode()})


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no key"), ("# x", "no key"), (f"{LONG}\nshort", "line 2: a key of")],
)
def test_a_file_that_protects_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        Keys.read(path)


def test_a_file_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    with pytest.raises(UserError, match=r"no file .*keys\.txt with API keys; make one: openssl"):
        Keys.read(path)
    with pytest.raises(UserError, match=r"cannot read the API keys in .*: Is a directory"):
        Keys.read(tmp_path)
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match="is not UTF-8"):
        Keys.read(path)


def test_keys_open_what_needs_them(models: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("# two\nthe-first-key-of-all\n\nthe-second-key-of-all\n", "utf-8")
    with serving(*named(models, ["mood"]), "--api-key-file", str(keys)) as locked:
        for path in ("/", "/docs", "/health", "/ready", "/openapi.json", "/page/style.css"):
            assert locked.get(path).status == 200, path
        for path in ("/v1/models", "/metrics", "/v1/nope"):
            assert locked.get(path).status == 401, path
        described = locked.get("/openapi.json").json
        for path, methods in described["paths"].items():
            wanted = path.startswith("/v1/") or path == "/metrics"
            assert all(("security" in how) == wanted for how in methods.values()), path
        sent = {"texts": "Paris"}
        refused = locked.post("/v1/mood/classify", sent)
        assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer KEY" in refused.message
        wrong = locked.post("/v1/mood/classify", sent, authorization="Bearer the-third")
        assert wrong.status == 401 and "not known here" in wrong.message
        for headers in (
            {"authorization": "Bearer the-first-key-of-all"},
            {"authorization": "bearer the-second-key-of-all"},
            {"x-api-key": "the-second-key-of-all"},
        ):
            assert locked.post("/v1/mood/classify", sent, **headers).status == 200
        assert locked.stop() == 0
    lines = "".join(locked.log)
    assert "key-of-all" not in lines, "a key has no place in the log"
    assert len({json.loads(line)["key"] for line in locked.log if '"key"' in line}) == 2
