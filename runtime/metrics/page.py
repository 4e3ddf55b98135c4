"""`/metrics` of a process, on a port of its own.

Served by a thread: a page that hangs with the event loop would be missing when it is needed. One
request at a time is enough for a scraper, and bounds what a stranger can cost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from runtime.address import address_of, family_of
from runtime.metrics.registry import Metrics
from runtime.settings import Settings, setting

PATH = "/metrics"
_READ_S = 2.0  # a caller may take to say what it wants
_POLL_S = 0.1


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
def serving_page(metrics: Metrics, settings: MetricsSettings, rank: int = 0) -> Iterator[str]:
    """Serves the page while the body runs, if the settings name a port for it.

    Args:
        rank: Added to the port, unless that is 0.

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
        server = _server(wanted, metrics)
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
        server.server_close()


def _server(address: tuple[str, int], metrics: Metrics) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        """Answers one connection."""

        timeout = _READ_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(HTTPStatus.NOT_FOUND, f"there is only {PATH}")
                return
            data, content_type = metrics.exposition(self.headers.get("accept", ""))
            self.send_response(HTTPStatus.OK)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line."""

    class Server(HTTPServer):
        address_family = family_of(address[0])

        def handle_error(self, request: object, client_address: object) -> None:
            """A scraper that leaves in the middle is no event."""

        def server_bind(self) -> None:
            """As it is, without looking up a name for the address."""
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = (
                str(self.server_address[0]),
                int(self.server_address[1]),
            )

    return Server(address, Handler)
