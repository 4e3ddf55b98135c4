"""`/metrics` of a process, on a port of its own.

Served by threads: a page that hangs with the event loop would be missing when it is needed. What a
stranger can cost is bounded by the number of callers and by the time that each has; a scraper gets
in whatever others do.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from runtime.address import address_of, family_of
from runtime.clock import Clock, SystemClock
from runtime.logging import get_logger
from runtime.metrics.registry import Metrics
from runtime.settings import Settings, setting

_log = get_logger(__name__)

PATH = "/metrics"
MAX_CALLERS = 8
_CALLER_S = 5.0  # a caller may take from its connection to the last byte of its answer
_END_S = 1.0
_POLL_S = 0.1

Request = socket.socket | tuple[bytes, socket.socket]
"""As socketserver has it; of TCP always the first."""


class MetricsSettings(Settings):
    """The page for Prometheus, and what is on it."""

    port: int | None = setting(
        None,
        help="port of /metrics, plus the rank; 0 picks a free one; absent: no page",
        flag="--metrics-port",
        ge=0,
        le=65535,
    )
    host: str = setting("127.0.0.1", help="address of /metrics")
    per_rank: bool = setting(False, help="step times and batch sizes with a label for the rank")
    vllm_aliases: bool = setting(
        True, help="names of vLLM too, for gateways, autoscalers and stock dashboards"
    )


class PageError(OSError):
    """The page cannot be served at its address."""


@contextmanager
def serving_page(
    metrics: Metrics, settings: MetricsSettings, rank: int = 0, *, clock: Clock | None = None
) -> Iterator[str]:
    """Serves the page while the body runs, if the settings name a port for it.

    Args:
        rank: Added to the port, unless that is 0.
        clock: Of the time that callers have; the machine's if not given.

    Yields:
        Its address as host:port, or an empty text.

    Raises:
        PageError: The address cannot be listened on.
    """
    if settings.port is None:
        yield ""
        return
    wanted = settings.host, settings.port and settings.port + rank
    try:
        server = _Page(wanted, metrics, clock or SystemClock())
    except (OSError, OverflowError) as error:
        raise PageError(
            f"metrics cannot be served at {address_of(*wanted)}: {error}; choose another "
            "--metrics-port or 0"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
    )
    thread.start()
    try:
        yield address_of(settings.host, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.end()


class _Busy(Exception):
    """The page is being composed for somebody else, and that does not end."""


class _Page(HTTPServer):
    """Serves each caller on a thread of its own, so that none waits for another.

    A caller has a deadline for all of its request and answer, and beyond a number of callers the
    one that came first makes room: sockets that trickle bytes push one another out.
    """

    request_queue_size = 32

    def __init__(self, address: tuple[str, int], metrics: Metrics, clock: Clock) -> None:
        self.address_family = family_of(address[0])
        self.metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}  # first come, first
        self._threads: set[threading.Thread] = set()
        # Gauges are brought up to date by one caller at a time.
        self._composing = threading.Lock()
        super().__init__(address, _Caller)

    def server_bind(self) -> None:
        """As it is, without looking up a name for the address."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )

    def compose(self, accept: str) -> tuple[bytes, str]:
        """What a caller gets.

        Raises:
            _Busy: An earlier caller's answer is not ready either.
        """
        if not self._composing.acquire(timeout=_CALLER_S):
            raise _Busy
        try:
            return self.metrics.exposition(accept)
        finally:
            self._composing.release()

    def process_request(self, request: Request, client_address: object) -> None:
        """Begins to serve a caller; on the thread that accepts."""
        assert isinstance(request, socket.socket)
        with self._lock:
            first = next(iter(self._since)) if len(self._since) >= MAX_CALLERS else None
        if first is not None:
            self._drop(first, "too_many")
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="metrics-caller", daemon=True
        )
        with self._lock:
            self._since[request] = self._clock.now()
            self._threads.add(thread)
        thread.start()

    def service_actions(self) -> None:
        """Drops whoever is late; called in between by `serve_forever`."""
        before = self._clock.now() - _CALLER_S
        with self._lock:
            late = [request for request, since in self._since.items() if since < before]
        for request in late:
            self._drop(request, "slow")

    def end(self) -> None:
        """Lets everybody go; after `shutdown`."""
        with self._lock:
            requests, threads = list(self._since), list(self._threads)
            self._since.clear()
        for request in requests:
            _hang_up(request)
        for thread in threads:
            thread.join(_END_S)
        self.server_close()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Something ended a caller's thread."""
        del client_address
        if isinstance(sys.exc_info()[1], ConnectionError):
            assert isinstance(request, socket.socket)
            self._drop(request, "left")  # unless it was us who hung up
            return
        self.tell_bug()

    def tell_bug(self) -> None:
        """Logs and counts the exception that is being handled."""
        _log.exception("metrics.failed")
        self.metrics.count("disagg_internal_errors_total", method=PATH)

    def _serve(self, request: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._since.pop(request, None)
                self._threads.discard(threading.current_thread())
            self.shutdown_request(request)

    def _drop(self, request: socket.socket, cause: str) -> None:
        with self._lock:
            if self._since.pop(request, None) is None:
                return  # it ended by itself
        self.metrics.count("disagg_scrapes_dropped_total", cause=cause)
        _hang_up(request)


class _Caller(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: _Page
    server_version, sys_version = "disagg", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"there is only {PATH}")
            return
        try:
            data, content_type = self.server.compose(self.headers.get("accept", ""))
        except _Busy:
            self.server.metrics.count("disagg_scrapes_dropped_total", cause="busy")
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "an earlier answer is not ready")
            return
        except Exception:
            self.server.tell_bug()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the log of this process says why")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


def _hang_up(request: socket.socket) -> None:
    """Wakes whoever waits for this socket; its thread closes it."""
    with suppress(OSError):  # it may be closed by now
        request.shutdown(socket.SHUT_RDWR)
