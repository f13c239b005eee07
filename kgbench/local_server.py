"""A server of pages for this machine alone, of which no client can hold more than a little."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kgbench.errors import InputError

HOST = "127.0.0.1"


class LocalServer(ThreadingHTTPServer):
    """Takes as many connections at once as a busy browser opens, and waits for none for long."""

    request_queue_size = 64
    daemon_threads = True
    limit = 30.0
    """Seconds after which a connection is closed that neither sends nor takes anything."""
    most = 256
    """Connections at once; a further one is closed."""

    def __init__(self, handlers: Callable[..., BaseHTTPRequestHandler], port: int) -> None:
        """Listen; `serve_forever` answers.

        Args:
            handlers: Makes a handler of a connection.
            port: Port on this machine; 0 takes a free one.

        Raises:
            InputError: The port cannot be had.
        """
        self._free = threading.BoundedSemaphore(self.most)
        try:
            super().__init__((HOST, port), handlers)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen on port {port}: {error}; give another one by --port, or 0 for a "
                "free one"
            ) from error

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, where there are not too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request; one that does not go on within the limit is closed."""
        request.settimeout(self.limit)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error; anything else is a warning in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            warnings.warn(f"a request was not answered: {error!r}", RuntimeWarning, stacklevel=1)


def names_this_machine(headers: Message) -> bool:
    """Whether a request names this machine, as one that another site's page caused does not."""
    name = (headers.get("Host") or "").rsplit(":", 1)[0]
    return name in (HOST, "localhost")
