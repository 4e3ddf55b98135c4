"""The command against a balancer that names a collector, and everything that can be missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from cli import trace
from cli.local import rendezvous
from cli.main import main
from cli.trace import host_and_port
from cli.traces.kept import KeptTraces
from disagg.v1 import admin_pb2, admin_pb2_grpc, traces_pb2, traces_pb2_grpc
from tests.fakes.trace_spans import a_request, a_span


class _Face(admin_pb2_grpc.AdminServiceServicer, traces_pb2_grpc.TraceServiceServicer):
    """A balancer and its collector in one."""

    def __init__(self, kept: KeptTraces) -> None:
        self.endpoint = ""
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._kept = kept

    def GetServerInfo(self, request, context):  # type: ignore[no-untyped-def]
        return admin_pb2.GetServerInfoResponse(role="balancer", trace_endpoint=self.endpoint)

    def FindTraces(self, request, context):  # type: ignore[no-untyped-def]
        self.asked += 1
        self.may_answer.wait(20)
        return traces_pb2.FindTracesResponse(
            spans=self._kept.find(request.request_id), num_traces=len(self._kept)
        )


@contextmanager
def running(*, collects: bool = True, traced: bool = True) -> Iterator[tuple[str, _Face]]:
    kept = KeptTraces()
    kept.add([*a_request(), a_span(9, "other", trace=9, disagg__request_id="r-9")])
    face = _Face(kept)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(face, server)
    if collects:
        traces_pb2_grpc.add_TraceServiceServicer_to_server(face, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    face.endpoint = f"http://127.0.0.1:{port}" if traced else ""
    try:
        yield f"127.0.0.1:{port}", face
    finally:
        face.may_answer.set()
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_LOOK_AGAIN_S", 0.01)


def test_a_collector_that_is_gone_is_named_and_the_system_is_not_blamed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running() as (address, face):
        face.endpoint = "http://127.0.0.1:1"
        assert main(["trace", "r-1", "--address", address]) == 1
    told = capsys.readouterr().err
    assert "the collector of the traces does not answer at 127.0.0.1:1" in told
    assert "--address" not in told


def test_a_collector_that_hangs_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as (address, face):
        face.may_answer.clear()
        monkeypatch.setattr(trace, "_TIMEOUT_S", 0.1)
        assert main(["trace", "r-1", "--address", address]) == 1
    told = capsys.readouterr().err
    assert f"the collector of the traces at {address} took the question" in told
    assert "disagg up --trace" in told
    assert "DEADLINE" not in told


def test_a_long_id_is_cut_in_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as (address, _):
        assert main(["trace", "x" * 120, "--address", address]) == 1
    assert f"'{'x' * 80}...'" in capsys.readouterr().err


def test_the_waterfall_of_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as (address, face):
        assert main(["trace", "r-1", "--address", address]) == 0
    out = capsys.readouterr().out
    assert out.startswith("request r-1\n\ntrace 0000")
    assert "prefill.commit" in out
    assert "<- kv_handoff prefill.commit" in out
    assert "\x1b" not in out  # no terminal, no colours
    assert face.asked == 2  # once more, since spans come in batches


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as (address, _):
        assert main(["trace", "r-1", "--address", address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(one["spans"]) for one in found["traces"]] == [6]


def test_the_system_of_this_machine_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as (address, _):
        monkeypatch.setattr(rendezvous, "find", lambda: address)
        assert main(["trace", "r-1"]) == 0


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"traced": False}, "records no traces; start it with `disagg up --trace`"),
        ({"collects": False}, "cannot be asked from here; look for the attribute disagg.request"),
        ({}, "no trace of request 'r-2' is kept: it never came"),
    ],
)
def test_what_is_missing_is_said_with_the_way_out(
    parts: dict[str, bool], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(**parts) as (address, _):
        assert main(["trace", "r-2", "--address", address]) == 1
    assert said in capsys.readouterr().err


def test_nothing_runs_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "find", lambda: None)
    assert main(["trace", "r-1"]) == 2
    assert "run `disagg up --trace`, or give --address" in capsys.readouterr().err


def test_endpoints_are_urls_or_addresses() -> None:
    assert host_and_port("http://h:1/v1/traces") == "h:1"
    assert host_and_port("h:1") == "h:1"
