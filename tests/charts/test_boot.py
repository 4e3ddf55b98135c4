"""The rendered settings run: real processes from the files of the CPU preset answer a completion.

A cluster is not at hand, so each pod becomes a process: its arguments, its file, its variables.
What a cluster would resolve (names, pod addresses, a port per pod) is put in their place by
variables, which go before the file; everything else is as rendered.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from charts.golden import CHART
from kvstore import embedded
from runtime.clock import SystemClock
from tests.charts.conftest import Objects, Rendered
from tests.charts.objects import config, container, one
from tests.fakes.processes import ROOT

pytestmark = [pytest.mark.medium, pytest.mark.timeout(300)]

START_S = 200.0
END_S = 30.0
PROBES = ("startup", "liveness", "readiness")


def free_ports(number: int) -> list[int]:
    """Ports of which nobody listens on any, next to each other."""
    for first in range(20_000, 30_000, number):
        with ExitStack() as stack:
            try:
                for port in range(first, first + number):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return list(range(first, first + number))
    raise AssertionError("no free ports")


@contextmanager
def process(
    objects: Objects, role: str, directory: Path, variables: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """One pod as a process; asked to stop, and waited for, at the end."""
    name = f"demo-disagg-{role}"
    only = container(one(objects, "Deployment", name)["spec"]["template"])
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config(objects, name)), encoding="utf-8")
    program, flag, _ = only["args"]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "proto", ROOT / "kernels")))
    fixed = {item["name"]: item["value"] for item in only["env"] if "value" in item}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, **fixed, **variables}
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", program, flag, str(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield running
        except BaseException:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-3000:])
            raise
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def probe(objects: Objects, role: str, port: int) -> dict[str, str]:
    """What the kubelet's probes of a pod would hear, by kind."""
    only = container(one(objects, "Deployment", f"demo-disagg-{role}")["spec"]["template"])
    heard = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = health_pb2_grpc.HealthStub(channel)
        for kind in PROBES:
            request = health_pb2.HealthCheckRequest(service=only[f"{kind}Probe"]["grpc"]["service"])
            answer = ask.Check(request, timeout=only[f"{kind}Probe"]["timeoutSeconds"] * 5)
            heard[kind] = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return heard


def test_the_cpu_preset_answers_a_completion(rendered: Rendered, tmp_path: Path) -> None:
    objects = rendered("--values", str(CHART / "ci" / "cpu-demo-values.yaml"))
    balancer, http, prefill, *decode = free_ports(5)
    clock = SystemClock()
    with ExitStack() as stack:
        url = stack.enter_context(embedded.start(tmp_path / "store")).url
        common = {
            "DISAGG_STORE__URL": url,
            "DISAGG_MODEL__PATH": str(ROOT / "models" / "tiny-v4"),
            "DISAGG_LISTEN__HOST": "127.0.0.1",
            "DISAGG_DRAIN__PROPAGATION_S": "0.1",
            # The pods have it each for themselves; here they share an address.
            "DISAGG_METRICS__PORT": "0",
        }
        member = common | {"DISAGG_ANNOUNCE__BALANCERS": f"127.0.0.1:{balancer}"}
        places = {
            "balancer": common
            | {"DISAGG_LISTEN__PORT": str(balancer), "DISAGG_HTTP__PORT": str(http)},
            "prefill": member
            | {"DISAGG_LISTEN__PORT": str(prefill), "DISAGG_GROUP__NAME": "demo-disagg-prefill-x"},
            "decode": member
            | {"DISAGG_LISTEN__PORT": str(decode[0]), "DISAGG_GROUP__NAME": "demo-disagg-decode-x"},
            "janitor": {"DISAGG_SERVER__URL": url, "DISAGG_METRICS__PORT": "0"},
        }
        running = {
            role: stack.enter_context(process(objects, role, tmp_path, variables))
            for role, variables in places.items()
        }
        script = tmp_path / "completion_check.py"
        script.write_text(
            one(objects, "ConfigMap", "demo-disagg-test-completion")["data"][script.name],
            encoding="utf-8",
        )
        test = container(one(objects, "Pod", "demo-disagg-test-completion"))
        arguments = [sys.executable, str(script), f"http://127.0.0.1:{http}", test["args"][1]]
        deadline = clock.now() + START_S
        while True:
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            # Who ends now ends too early; else this is the pause before the next question.
            for role, item in running.items():
                with suppress(subprocess.TimeoutExpired):
                    pytest.fail(f"{role} ended with {item.wait(timeout=0.2)}")
            assert clock.now() < deadline, done.stderr
        assert done.stdout.startswith("8 tokens as asked: ")
        for role, port in (("balancer", balancer), ("prefill", prefill), ("decode", decode[0])):
            serving = dict.fromkeys(PROBES, "SERVING")
            # A process examines itself twice a second, and may answer before it has said so.
            while (heard := probe(objects, role, port)) != serving and clock.now() < deadline:
                pass
            assert heard == serving, role
    assert {role: item.returncode for role, item in running.items()} == dict.fromkeys(running, 0)
