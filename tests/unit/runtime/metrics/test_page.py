"""The page of a process, over a real socket."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from runtime.metrics import Metrics
from runtime.metrics.page import MetricsSettings, PageError, serving_page
from tests.fakes.addresses import require_ipv6


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


def test_a_caller_that_says_nothing_does_not_stop_the_end() -> None:
    with (
        serving_page(Metrics(), MetricsSettings(port=0)) as address,
        socket.create_connection((address.split(":")[0], int(address.split(":")[1]))),
    ):
        pass
