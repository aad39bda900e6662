"""The names by which a server is asked.

A page of another site can give its own name the address of this machine (DNS rebinding), and then
is no other site to the browser. What it cannot do is ask by another name than its own. So a server
for this machine alone, which asks for no key, answers to the names of this machine alone.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from bertie.serve.refusals import Refused, cut


def find_hosts(address: str, allowed: Collection[str], *, has_keys: bool) -> frozenset[str] | None:
    """The names to be taken, beside addresses of this machine; none where any name is."""
    if has_keys or not is_loopback(address):
        return None
    return frozenset(["localhost", *(name.lower() for name in allowed)])


def check_host(headers: Mapping[bytes, bytes], hosts: frozenset[str] | None) -> None:
    given = headers.get(b"host", b"").decode("latin-1")
    if hosts is None or not given:  # every browser sends one
        return
    name = name_of(given)
    if name not in hosts and not is_loopback(name):
        raise Refused(
            403,
            f"this server is asked as localhost, and was asked as {cut(given)}; to allow that "
            "name, put it into its setting allow_hosts",
        )


def name_of(host: str) -> str:
    """
    >>> name_of("LocalHost:8000"), name_of("[::1]:8000")
    ('localhost', '::1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
