"""A site whose name leads to this machine reads nothing of a server that has no keys."""

from pathlib import Path

import pytest

from bertie.serve.hosts import check_host, find_hosts
from bertie.serve.refusals import Refused
from tests.serve.servers import Server, named, serving

OWN = ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80", ""]
OTHERS = [
    "a.example",
    "a.example:8000",
    "localhost.a.example",
    "10.0.0.1",
    "[::2]",
    "[",
    "a b",
    "@",
]


def is_taken(host: str, hosts: frozenset[str] | None) -> bool:
    try:
        check_host({b"host": host.encode("latin-1")}, hosts)
    except Refused as refused:
        assert refused.status == 403 and "localhost" in refused.message
        return False
    return True


def test_names_of_this_machine_are_taken_and_no_others() -> None:
    for address in ("127.0.0.1", "127.0.0.9", "::1"):
        hosts = find_hosts(address, ["B.example"], has_keys=False)
        assert all(is_taken(host, hosts) for host in (*OWN, "b.example", "b.EXAMPLE:443"))
        assert not any(is_taken(host, hosts) for host in OTHERS)


@pytest.mark.parametrize("address, has_keys", [("0.0.0.0", False), ("127.0.0.1", True)])
def test_a_server_for_others_or_with_keys_takes_any(address: str, has_keys: bool) -> None:
    hosts = find_hosts(address, [], has_keys=has_keys)
    assert all(is_taken(host, hosts) for host in OWN + OTHERS)


def test_another_name_is_refused_everywhere(server: Server) -> None:
    for path in ("/", "/docs", "/health", "/v1/models", "/openapi.json", "/page/page.js"):
        refused = server.get(path, host="a.example")
        assert refused.status == 403
        assert refused.message.startswith("this server is asked as localhost, and was asked as a.")
        assert server.get(path, host="localhost:1").status == 200


def test_names_can_be_allowed(models: dict[str, Path]) -> None:
    allowed = ("--set", 'allow_hosts=["a.example"]')
    with serving(*named(models, ["mood"]), *allowed) as server:
        assert server.get("/v1/models", host="a.example").status == 200
        assert server.get("/v1/models", host="b.example").status == 403
