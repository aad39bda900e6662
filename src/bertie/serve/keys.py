"""API keys: who may ask."""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from bertie.errors import UserError
from bertie.serve.refusals import Refused

MIN_CHARACTERS = 16


class Keys:
    """The keys of a file, as hashes."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """One key a line; blank lines and those that begin with # are left out."""
        lines = read_lines(path)
        keys = [line.strip() for line in lines]
        keys = [key for key in keys if key and not key.startswith("#")]
        if not keys:
            raise UserError(f"{path} has no key; write one a line")
        for number, line in enumerate(lines, start=1):
            if line.strip() in keys and len(line.strip()) < MIN_CHARACTERS:
                raise UserError(
                    f"{path}, line {number}: a key of {len(line.strip())} characters can be "
                    f"guessed; take {MIN_CHARACTERS} or more: openssl rand -hex 24"
                )
        return cls(keys)

    def check(self, headers: Mapping[bytes, bytes]) -> str:
        """The key's name in the log, which does not give it away."""
        given = given_key(headers)
        if not given:
            raise Refused(401, "an API key is needed: send the header Authorization: Bearer KEY")
        digest = sha256(given).digest()
        # Every key is compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Refused(401, "this API key is not known here")
        return digest.hex()[:8]


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UserError(
            f"no file {path} with API keys; make one: openssl rand -hex 24 > {path}"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read the API keys in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; write one key a line as plain text") from None


def given_key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
