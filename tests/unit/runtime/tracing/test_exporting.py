"""What a tracer is opened with; spans on a real wire are tests/integration/test_tracing.py."""

import gzip
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from runtime.clock import SystemClock
from runtime.settings import SettingsError
from runtime.telemetry import NO_TRACER
from runtime.tracing import exporting
from runtime.tracing.exporting import TracingUnavailable, open_tracer, resource_of
from runtime.tracing.settings import TracingPlan, TracingSettings, resolve

PLAN = TracingPlan(endpoint="http://127.0.0.1:1", resource={"k8s.pod.name": "p-0"})
WHO = {"role": "decode", "version": "1.2", "instance": "decode-0-r1"}


def test_no_endpoint_no_tracer() -> None:
    assert open_tracer(TracingPlan(), clock=SystemClock(), **WHO) is NO_TRACER


def test_the_resource_says_who_it_is_and_variables_win() -> None:
    assert resource_of(PLAN, **WHO, dp_rank="1") == {
        "service.name": "disagg-decode",
        "service.namespace": "disagg",
        "service.version": "1.2",
        "service.instance.id": "decode-0-r1",
        "disagg.role": "decode",
        "disagg.dp_rank": "1",
        "k8s.pod.name": "p-0",
    }
    plan = TracingPlan(endpoint="e", service_name="mine", resource={"service.name": "theirs"})
    assert resource_of(plan, **WHO)["service.name"] == "mine"


def test_what_exports_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(TracingUnavailable, match=r"disagg\[trace\]"):
        open_tracer(PLAN, clock=SystemClock(), **WHO)


def test_an_endpoint_over_http_is_a_url() -> None:
    plan = TracingPlan(endpoint="127.0.0.1:4318", protocol="http/protobuf")
    with pytest.raises(SettingsError, match="http://"):
        open_tracer(plan, clock=SystemClock(), **WHO)


@pytest.mark.parametrize(
    ("sampler", "ratio", "is_recorded"),
    [
        ("always_on", 0.0, True),
        ("always_off", 1.0, False),
        ("parentbased_traceidratio", 1.0, True),
        ("parentbased_traceidratio", 0.0, False),
        ("traceidratio", 0.0, False),
    ],
)
def test_the_sampler_of_the_plan(sampler: str, ratio: float, is_recorded: bool) -> None:
    plan = TracingPlan(endpoint="e:1", sampler=sampler, ratio=ratio)  # type: ignore[arg-type]
    chosen = exporting._sampler(plan)
    decision = chosen.should_sample(None, 2**100, "a.B/C").decision
    assert decision.is_recording() == is_recorded


def test_a_tenth_is_a_tenth_and_the_caller_decides() -> None:
    """The share of trace ids, drawn by a fixed rule; a sampled parent is always followed."""
    sampler = exporting._sampler(TracingPlan(endpoint="e:1"))
    ids = [(index * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128 for index in range(1, 20_001)]
    taken = sum(sampler.should_sample(None, one, "x").decision.is_recording() for one in ids)
    assert 0.09 < taken / len(ids) < 0.11


@pytest.mark.medium
def test_a_process_without_an_endpoint_loads_nothing_that_records_or_exports() -> None:
    # redis-py loads the metrics of an installed OpenTelemetry by itself.
    program = (
        "import balancer.__main__, client; parts = ('opentelemetry.sdk.trace', 'opentelemetry.exp'"
        "'orter'); print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


class _Collector(BaseHTTPRequestHandler):
    """Takes what is posted to it."""

    posted: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.posted.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_spans_over_http() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        plan = resolve(
            TracingSettings(sample_ratio=1.0),
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
        )
        tracer = open_tracer(plan, clock=SystemClock(), **WHO)
        with tracer.serve("a.B/C", ()):
            pass
        tracer.close()
        server.shutdown()
        thread.join()
    ((path, body),) = _Collector.posted
    assert path == "/v1/traces"
    export = ExportTraceServiceRequest.FromString(
        gzip.decompress(body) if body[:1] == b"\x1f" else body
    )
    assert export.resource_spans[0].scope_spans[0].spans[0].name == "a.B/C"
