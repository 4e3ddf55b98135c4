"""`disagg trace REQUEST_ID`: where the time of a request went, over all processes."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cli.access import access_of, add_access_flags
from cli.errors import CommandError, calls
from cli.output import show, show_json
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from disagg.v1 import traces_pb2

_TIMEOUT_S = 10.0
# Spans leave their processes in batches. A trace is whole when nothing came for one more look.
_LOOK_AGAIN_S = 0.3
_MAX_LOOKS = 12
_SHOWN_CHARS = 80


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "trace",
        help="draw where the time of a request went",
        description="Draws the spans of a request in all processes as a waterfall. The system has "
        "to run with traces: `disagg up --trace`. `disagg generate --json` prints the id of its "
        "request.",
        epilog="example:  disagg trace 3f0c9d2e-5a41-4c1e-9b7a-0d6f4f1f2a10",
        allow_abbrev=False,
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="id of a request")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the balancer it came to (default: the system that `disagg up` started here)",
    )
    add_access_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 if nothing is known of the request."""
    from cli.local import rendezvous
    from cli.traces.tree import traces_of
    from cli.traces.waterfall import DEFAULT_COLUMNS, Waterfall, plain

    address = options.address or rendezvous.find()
    if address is None:
        raise CommandError(
            "no system was started on this machine; run `disagg up --trace`, or give --address",
            ExitCode.CONFIGURATION,
        )
    collector = _collector_of(address, options)
    spans = _settled(collector, options.request_id)
    traces = traces_of(spans)
    if options.json:
        show_json(plain(options.request_id, traces))
        return ExitCode.OK
    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 0)).columns
    show(f"request {options.request_id}")
    for trace in traces:
        show()
        for line in Waterfall(trace, columns=columns, has_colours=sys.stdout.isatty()).lines():
            show(line)
    return ExitCode.OK


def _collector_of(address: str, options: argparse.Namespace) -> str:
    """Where the balancer at `address` sends its spans, as host:port."""
    from client.calls import errors_of
    from client.transport import open_channel
    from disagg.v1 import admin_pb2, admin_pb2_grpc

    access = access_of(options)
    with calls(address), errors_of(), open_channel(address, access) as channel:
        info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=_TIMEOUT_S, metadata=access.metadata
        )
    if not info.trace_endpoint:
        raise CommandError(
            f"the system at {address} records no traces; start it with `disagg up --trace`, or "
            "give its processes an endpoint (tracing.endpoint, OTEL_EXPORTER_OTLP_ENDPOINT)",
            ExitCode.FAILED,
        )
    return host_and_port(info.trace_endpoint)


def host_and_port(endpoint: str) -> str:
    """The host:port of an endpoint, which may be a URL."""
    return urlsplit(endpoint).netloc if "://" in endpoint else endpoint


def _settled(collector: str, request_id: str) -> list[traces_pb2.TraceSpan]:
    """The spans of a request once no more arrive."""
    pause = threading.Event()
    spans: list[traces_pb2.TraceSpan] = []
    for _ in range(_MAX_LOOKS):
        found = _ask(collector, request_id)
        if spans and len(found.spans) == len(spans) and not _misses_parents(found.spans):
            return spans
        spans = list(found.spans)
        pause.wait(_LOOK_AGAIN_S)
    if not spans:
        dropped = f", and {found.num_dropped} spans were dropped" if found.num_dropped else ""
        raise CommandError(
            f"no trace of request {_cut(request_id)!r} is kept: it never came, it runs still, "
            f"or it was dropped to make room ({found.num_traces} traces are kept{dropped}); check "
            "the id",
            ExitCode.FAILED,
        )
    return spans


def _cut(text: str) -> str:
    """Text of any length as far as a message repeats it."""
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _misses_parents(spans: Any) -> bool:  # Any: a repeated field has a class of its own
    """Whether a span of one of our processes has a parent that is not there yet."""
    known = {span.span_id for span in spans}
    return sum(span.parent_span_id not in known for span in spans) > len(
        {span.trace_id for span in spans}
    )


def _ask(collector: str, request_id: str) -> traces_pb2.FindTracesResponse:
    from client.calls import errors_of
    from client.checks import check_text
    from client.transport import Access, open_channel
    from disagg.v1 import traces_pb2, traces_pb2_grpc

    try:
        with calls(collector), errors_of():
            check_text("REQUEST_ID", request_id)
            with open_channel(collector, Access()) as channel:
                stub = traces_pb2_grpc.TraceServiceStub(channel)
                request = traces_pb2.FindTracesRequest(request_id=request_id)
                return stub.FindTraces(request, timeout=_TIMEOUT_S)
    except CommandError as error:
        if str(error).startswith("nothing answers at"):
            raise CommandError(
                f"the collector of the traces does not answer at {collector}, where the system's "
                "tracing endpoint points; start it again, or the system with `disagg up --trace`",
                ExitCode.FAILED,
            ) from error
        if str(error).startswith("DEADLINE_EXCEEDED"):
            raise CommandError(
                f"the collector of the traces at {collector} took the question and gave no answer "
                f"within {_TIMEOUT_S:g} s: it hangs or is overloaded; try again, or start the "
                "system anew with `disagg up --trace`",
                ExitCode.FAILED,
            ) from error
        if "UNIMPLEMENTED" not in str(error):
            raise
        raise CommandError(
            f"the spans of this system go to {collector}, which cannot be asked from here; look "
            "for the attribute disagg.request_id there, or start a system with `disagg up --trace`",
            ExitCode.FAILED,
        ) from error
