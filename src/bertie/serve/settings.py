"""What a server allows, and how it gathers requests. `bertie serve ... --set limits.texts=64`"""

from dataclasses import dataclass, field, fields

from bertie.errors import UserError

MOST = 1e12  # of any limit: seconds beyond are no time, nor are NaN and infinity


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Beyond each, a request is refused with a status of its own and a message that says it."""

    body_bytes: int = 1_048_576  # 413
    texts: int = 256  # that the model reads for one request; 413
    characters: int = 20_000  # of each text; 413
    masks: int = 64  # of each text: a long one is read once for each; 413
    options: int = 64  # of each prompt, which is read with each; 413
    requests: int = 512  # that are read or answered at one time; 429
    waiting: int = 1_024  # texts of all requests that are not yet computed; 429
    waiting_s: float = 5.0  # that what waits will take, by the speed so far; 429
    seconds: float = 30.0  # from the first byte of a request to its answer; 408, 504

    def __post_init__(self) -> None:
        check_positive(self)
        if self.texts > self.waiting:
            raise UserError(
                f"limits.texts is {self.texts}, but only {self.waiting} may wait "
                "(limits.waiting): the largest requests could never be answered"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Requests that come together are computed together, whatever their lengths."""

    # Of a batch, estimated by characters. A CPU core gains nothing from more than 700 (MiniLM), and
    # all that comes meanwhile has to wait; a GPU wants 16,384.
    tokens: int = 1_024
    wait_s: float = 0.002  # at most, for a batch as large as the one before

    def __post_init__(self) -> None:
        check_positive(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeRecipe:
    limits: Limits = field(default_factory=Limits)
    batching: Batching = field(default_factory=Batching)
    # By which it may be asked, beside localhost, where it listens on loopback without keys.
    allow_hosts: tuple[str, ...] = ()


def check_positive(settings: Limits | Batching) -> None:
    for one in fields(settings):
        value = getattr(settings, one.name)
        if not 0 < value <= MOST:
            raise UserError(f"{one.name} is more than 0, and {MOST:g} at most; found {value}")
