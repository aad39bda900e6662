"""Runs the application: the socket, the log, the signals."""

import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from bertie.errors import UserError
from bertie.serve.settings import ServeRecipe


def open_socket(host: str, port: int) -> socket.socket:
    """Port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken; choose another: --port {port + 1}") from None
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
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
    uvicorn.Server(config).run(sockets=[listening])


def start_logs() -> None:
    """Requests as JSON on stdout, one a line; what goes wrong on stderr."""
    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(logging.Formatter("bertie: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[told], force=True)
    logging.captureWarnings(True)
    access = logging.getLogger("bertie.access")
    access.handlers = [logging.StreamHandler(sys.stdout)]
    access.setLevel(logging.INFO)
    access.propagate = False
