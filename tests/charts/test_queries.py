"""Every query of every dashboard and rule, asked of a real Prometheus that scrapes a real system.

The load has what the panels show: prompts with a stored prefix, a caller that leaves, a cancelled
request, one that is too late and one that is refused. An empty answer is a mistake in the query or
in the metrics; what may rightly be zero says `or vector(0)` in its query.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.dashboards import DIRECTORY
from charts.golden import CHART
from cli.local.launcher import System
from client import Client, ClientError, Sampling
from runtime.metrics.table import TABLE
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

Api = Callable[..., Any]
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
LONG = "It was the best of times, it was the worst of times. " * 8
READY_S = 40.0
VARIABLES = {
    "$__rate_interval": "8s",
    "$__interval": "2s",
    "$__range": "30s",
    "$namespace": ".*",
    "$release": ".*",
    "$model_name": ".*",
    "$tier": ".*",
}
NOT_HERE = {
    # TLS is off, no events are published, nothing is recorded to a file.
    "disagg_secret_reload_success",
    "disagg_tls_cert_expiry_timestamp_seconds",
    "disagg_kv_events_published_total",
    "disagg_kv_events_dropped_total",
    # No body had a field that we do not know.
    "disagg_http_unknown_fields_total",
}


@contextmanager
def prometheus(system: System, directory: Path) -> Iterator[Api]:
    """A Prometheus over all processes of a system; yields its HTTP API."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("NO PROMETHEUS, QUERIES ARE NOT TESTED (Debian: apt-get install prometheus)")
    targets: dict[str, list[str]] = {}
    for row in system.rows():
        if row.metrics:
            targets.setdefault(row.role, []).append(row.metrics)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [
            {
                "job_name": f"disagg-{role}",
                "static_configs": [
                    {"targets": addresses, "labels": {"namespace": "llm", "release": "demo"}}
                ],
            }
            for role, addresses in targets.items()
        ],
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [
        f"--config.file={path}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    log = (directory / "prometheus.log").open("wb")
    running = subprocess.Popen([program, *arguments], stdout=log, stderr=subprocess.STDOUT)

    def ask(path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    try:
        wait_ready(f"http://127.0.0.1:{port}/-/ready", running)
        yield ask
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(20)
        log.close()


def wait_ready(url: str, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        assert running.poll() is None and time.monotonic() < deadline, "Prometheus does not start"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)


def load(system: System, stop: threading.Event) -> None:
    """Requests of every kind, one round after the other, until `stop`."""
    number = 0
    with Client(system.address, timeout_s=30.0) as client:
        while not stop.is_set():
            number += 1
            client.generate(LONG, sampling=Sampling(max_tokens=12))  # a stored prefix from 2 on
            client.generate(f"{number} is the number", sampling=Sampling(max_tokens=8))
            with suppress(ClientError):  # too late
                client.generate(LONG[number:], sampling=Sampling(max_tokens=400), timeout_s=0.05)
            for _ in client.stream(f"{number} leaves", sampling=Sampling(max_tokens=200)):
                break
            completion(system, {"prompt": "x", "max_tokens": 3})
            completion(system, {"prompt": "x", "max_tokens": -3})  # refused


def completion(system: System, body: dict[str, Any]) -> None:
    """A call of the HTTP face, whatever it answers."""
    request = urllib.request.Request(
        f"http://{system.http_address}/v1/completions",
        data=json.dumps({"model": "tiny-v4", **body}).encode(),
        headers={"content-type": "application/json"},
    )
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=30).read()


def panel_queries() -> dict[str, str]:
    """Queries of all panels, by board, panel and legend."""
    return {
        f"{path.stem} / {panel['title']} / {target['legendFormat']}": target["expr"]
        for path in sorted(DIRECTORY.glob("*.json"))
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        for target in panel.get("targets", [])
        if "expr" in target
    }


def recorded() -> list[str]:
    """Names of all recording rules."""
    return [
        rule["record"]
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "record" in rule
    ]


def filled(query: str) -> str:
    """As Grafana asks it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def has_numbers(answer: Any) -> bool:
    """Whether an instant query gave at least one number."""
    result = answer["result"]
    values = (
        [result[1]] if answer["resultType"] == "scalar" else [item["value"][1] for item in result]
    )
    return any(value != "NaN" for value in values)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A Prometheus that has seen a system under load; the load goes on."""
    directory = tmp_path_factory.mktemp("prometheus")
    stop = threading.Event()
    with (
        launched(prefill_ranks=1, decode_ranks=2, http_port=0, has_traces=True) as system,
        prometheus(system, directory) as ask,
    ):
        worker = threading.Thread(target=load, args=(system, stop))
        worker.start()
        try:
            yield ask
        finally:
            stop.set()
            worker.join(60)


def test_every_query_has_an_answer(watched: Api) -> None:
    queries = {name: filled(query) for name, query in panel_queries().items()}
    queries |= {name: name for name in recorded()}
    deadline = time.monotonic() + READY_S
    empty = dict(queries)
    while empty and time.monotonic() < deadline:
        empty = {
            name: query
            for name, query in empty.items()
            if not has_numbers(watched("query", query=query))
        }
        time.sleep(0.2)  # the scrape interval is a second
    assert empty == {}


def test_every_metric_of_the_table_is_there(watched: Api) -> None:
    names = set(watched("label/__name__/values"))
    wanted = {
        f"{row.name}_count" if row.kind == "histogram" else row.name
        for row in TABLE
        if row.name not in NOT_HERE
    }
    assert wanted - names == set()


def test_alerts_are_silent_in_a_healthy_system(watched: Api) -> None:
    groups = watched("rules")["groups"]
    problems = {
        rule["name"]: rule.get("lastError", "")
        for group in groups
        for rule in group["rules"]
        if rule["health"] == "err"
    }
    assert problems == {}
    firing = {
        rule["name"]
        for group in groups
        for rule in group["rules"]
        if rule["type"] == "alerting" and rule["state"] == "firing"
    }
    assert firing == set()


def test_variables_have_values(watched: Api) -> None:
    for path in DIRECTORY.glob("*.json"):
        board = json.loads(path.read_text(encoding="utf-8"))
        for track in board["annotations"]["list"]:  # without an event they are rightly empty
            watched("query", query=filled(track["expr"]))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
                assert match is not None, variable["definition"]
                found = watched(f"label/{match[2]}/values", **{"match[]": filled(match[1])})
                assert found, f"{path.stem}: {variable['name']}"


def test_exemplars_lead_to_traces(watched: Api) -> None:
    found = watched(
        "query_exemplars",
        query="gen_ai_server_time_to_first_token_seconds_bucket",
        start=str(time.time() - 60),
        end=str(time.time()),
    )
    traces = {item["labels"]["trace_id"] for series in found for item in series["exemplars"]}
    assert traces
    assert all(re.fullmatch(r"[0-9a-f]{32}", trace) for trace in traces)
