"""Items of a stream that may pause, such as a pipe: what has come does not wait for the rest."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

PAUSE_S = 0.05  # with nothing new for so long, the stream pauses
PATIENCE_S = 1.0  # of one that drips without a pause, what has come is taken so often
AHEAD_ITEMS = 1_024  # read before they are asked for


class Pause:
    """Stands in a stream where the next item is not there yet."""


class End:
    """Stands behind the last item; `error` is what ended the stream, if anything did."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


PAUSE: Final = Pause()


def as_they_come(items: Iterable[object]) -> Iterator[object]:
    """The items in their order, and PAUSE where they are waited for; another thread reads them."""
    arrived: queue.Queue[object] = queue.Queue(AHEAD_ITEMS)
    is_left = threading.Event()
    threading.Thread(target=fetch, args=(items, arrived, is_left), daemon=True).start()
    try:
        yield from take(arrived)
    finally:
        is_left.set()


def fetch(items: Iterable[object], arrived: queue.Queue[object], is_left: threading.Event) -> None:
    try:
        for item in items:
            if not put(item, arrived, is_left):
                return
        put(End(), arrived, is_left)
    except BaseException as error:  # it belongs to whoever takes the items
        put(End(error), arrived, is_left)


def put(item: object, arrived: queue.Queue[object], is_left: threading.Event) -> bool:
    """Whether somebody still wants it."""
    while not is_left.is_set():
        try:
            arrived.put(item, timeout=PATIENCE_S)
            return True
        except queue.Full:
            continue
    return False


def take(arrived: queue.Queue[object]) -> Iterator[object]:
    paused_at: float | None = None  # none: since the last pause, nothing came
    while True:
        try:
            item = arrived.get(timeout=None if paused_at is None else PAUSE_S)
        except queue.Empty:
            paused_at = None
            yield PAUSE
            continue
        if isinstance(item, End):
            if item.error is not None:
                raise item.error
            return
        paused_at = paused_at or time.monotonic()
        yield item
        if time.monotonic() - paused_at > PATIENCE_S:
            paused_at = None
            yield PAUSE
