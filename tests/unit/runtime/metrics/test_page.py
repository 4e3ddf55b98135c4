"""The page of a process, over a real socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest
from structlog.testing import capture_logs

from runtime.clock import ManualClock
from runtime.metrics import Metrics, page
from runtime.metrics.page import MAX_CALLERS, MetricsSettings, PageError, serving_page
from tests.fakes.addresses import require_ipv6

DROPPED = "disagg_scrapes_dropped_total"


def get(address: str, path: str = "/metrics", accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode(), answer.headers["content-type"]


def test_the_page_has_both_forms() -> None:
    metrics = Metrics(role="decode")
    with serving_page(metrics, MetricsSettings(port=0)) as address:
        metrics.set("disagg_decode_kv_tokens", 5)
        text, kind = get(address)
        assert 'disagg_decode_kv_tokens{dp_rank="0"} 5.0' in text and kind.startswith("text/plain")
        text, kind = get(address, accept="application/openmetrics-text;version=1.0.0")
        assert text.endswith("# EOF\n") and kind.startswith("application/openmetrics-text")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(address, "/other")
    with pytest.raises(OSError):
        get(address)


def test_the_address_at_an_ipv6_number_is_one_that_clients_dial() -> None:
    require_ipv6()
    with serving_page(Metrics(), MetricsSettings(host="::1", port=0)) as address:
        assert address.startswith("[::1]:")
        assert "disagg" in get(address)[0]


def test_without_a_port_there_is_no_page() -> None:
    with serving_page(Metrics(), MetricsSettings()) as address:
        assert address == ""


def test_a_rank_takes_the_port_behind_the_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PageError, match=f":{port}: .*choose another --metrics-port"),
            serving_page(Metrics(), MetricsSettings(port=port - 3), rank=3),
        ):
            pass


def connect(address: str, said: bytes = b"GET /metrics HT") -> socket.socket:
    host, _, port = address.rpartition(":")
    caller = socket.create_connection((host, int(port)), timeout=5)
    caller.sendall(said)
    return caller


def is_hung_up(caller: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return caller.recv(1) == b""
    return True


def wait_for(metrics: Metrics, name: str, value: float, **labels: str) -> None:
    pause = threading.Event()
    for _ in range(500):
        if metrics.value(name, **labels) == value:
            return
        pause.wait(0.01)
    raise AssertionError(f"{name} is {metrics.value(name, **labels)}, not {value}")


def test_callers_that_say_half_of_it_keep_nobody_out() -> None:
    metrics = Metrics(role="decode")
    with (
        serving_page(metrics, MetricsSettings(port=0)) as address,
        contextlib.ExitStack() as stack,
    ):
        callers = [stack.enter_context(connect(address)) for _ in range(MAX_CALLERS + 3)]
        assert "disagg" in get(address)[0]
        assert is_hung_up(callers[0])
        wait_for(metrics, DROPPED, 4, cause="too_many")
    assert metrics.value(DROPPED) == 4  # the others had their time, and the end is no fault


def test_a_caller_has_a_deadline_for_all_of_it() -> None:
    metrics, clock = Metrics(role="decode"), ManualClock()
    with serving_page(metrics, MetricsSettings(port=0), clock=clock) as address:
        with connect(address) as caller:
            for _ in range(500):
                if any(thread.name == "metrics-caller" for thread in threading.enumerate()):
                    break
                threading.Event().wait(0.01)
            clock.advance(4.0)
            caller.sendall(b"TP/1.0\r\nx: ")  # bytes that come do not buy time
            clock.advance(2.0)
            assert is_hung_up(caller)
        wait_for(metrics, DROPPED, 1, cause="slow")
        assert metrics.value(DROPPED) == 1


def test_a_caller_that_says_nothing_does_not_stop_the_end() -> None:
    with serving_page(Metrics(), MetricsSettings(port=0)) as address:
        caller = connect(address, b"")
    with caller:
        assert is_hung_up(caller)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metrics")]


def test_a_scraper_that_leaves_is_counted_and_one_that_comes_meanwhile_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "_CALLER_S", 0.05)
    metrics, entered, release = Metrics(role="decode"), threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(5)

    metrics.before_exposition(hang)
    with serving_page(metrics, MetricsSettings(port=0), clock=ManualClock()) as address:
        caller = connect(address, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert entered.wait(5)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(address)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
        release.set()
        wait_for(metrics, DROPPED, 1, cause="left")
        assert metrics.value(DROPPED, cause="busy") == 1
        assert "disagg" in get(address)[0]


def test_a_bug_is_logged_and_counted() -> None:
    metrics = Metrics(role="decode")
    faults = [ZeroDivisionError("in a gauge")]

    def update() -> None:
        if faults:
            raise faults.pop()

    metrics.before_exposition(update)
    with capture_logs() as logs, serving_page(metrics, MetricsSettings(port=0)) as address:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            get(address)
        assert metrics.value("disagg_internal_errors_total", method="/metrics") == 1
        assert [(log["event"], log["exc_info"]) for log in logs] == [("metrics.failed", True)]
        assert 'disagg_internal_errors_total{method="/metrics"} 1.0' in get(address)[0]
