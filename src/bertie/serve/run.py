"""Runs the application: the socket, the log, the signals."""

import errno
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from bertie.errors import UserError
from bertie.infer.answers import CutOff
from bertie.serve.batcher import Batcher
from bertie.serve.settings import ServeRecipe


def open_socket(host: str, port: int) -> socket.socket:
    """Port 0 is any that is free."""
    if not host.strip():  # which would be all of the network
        raise UserError("--host is empty; leave it out, or give an address: 0.0.0.0 for all")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()  # another that is only bound, as while models load, is noticed here
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken; choose another: --port {port + 1}") from None
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    except (TypeError, ValueError):  # what cannot be a name at all
        made.close()
        raise UserError(f"no host {host!r}; give an address, or a name") from None
    return made


def run(
    app: FastAPI,
    listening: socket.socket,
    settings: ServeRecipe,
    *,
    on_start: Callable[[str], None] = lambda address: None,
) -> None:
    """Until it is told to stop; then what was taken is finished."""
    start_logs()
    config = uvicorn.Config(
        app,
        access_log=False,  # the gate has its own
        log_config=None,
        server_header=False,
        timeout_keep_alive=75,  # longer than proxies keep connections: they are the ones to close
        timeout_graceful_shutdown=int(settings.limits.seconds) + 1,
    )
    host, port = listening.getsockname()[:2]
    on_start(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    # uvicorn stops gently, and then raises the signal again: by now there is nothing to stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # Python lets a thread compute for 5 ms before another one may; who only wants to hand over
    # bytes should not wait so long for the one that calls the model.
    sys.setswitchinterval(0.0005)
    batcher: Batcher = app.state.batcher
    Server(config, batcher).run(sockets=[listening])
    if batcher.is_computing:  # and nobody waits for it, but Python would
        logging.getLogger("bertie.serve").warning("stopped in the midst of a batch")
        logging.shutdown()
        os._exit(0)


class Server(uvicorn.Server):
    """Takes nothing new from the signal on; uvicorn tells the application only at the end."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self.batcher = batcher

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.batcher.close()
        super().handle_exit(sig, frame)


def start_logs() -> None:
    """Requests as JSON on stdout, one a line; what goes wrong on stderr."""
    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(logging.Formatter("bertie: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[told], force=True)
    logging.captureWarnings(True)
    warnings.simplefilter("always", CutOff)  # each is about another request
    access = logging.getLogger("bertie.access")
    access.handlers = [logging.StreamHandler(sys.stdout)]
    access.setLevel(logging.INFO)
    access.propagate = False
    logging.raiseExceptions = False  # `bertie serve | head`: nobody reads, and it serves on
