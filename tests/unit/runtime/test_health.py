"""Readiness: hysteresis, drain, the names that are published."""

import pytest
from grpc_health.v1 import health_pb2

from runtime.health import LIVENESS, READINESS, STARTUP, Health, ReadinessGate
from runtime.metrics import Metrics

SERVICE = "disagg.v1.DecodeService"


async def state(health: Health, name: str) -> str:
    reply = await health.servicer.Check(health_pb2.HealthCheckRequest(service=name), None)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def health(metrics: Metrics) -> Health:
    made = Health([SERVICE], role="decode", metrics=metrics)
    await made.start()
    return made


@pytest.mark.parametrize(
    ("reports", "ready"),
    [
        ([], False),
        ([True], True),
        ([True, False], True),
        ([True, False, False], False),
        ([True, False, True, False], True),
        ([True, False, False, True], True),
        ([False, True], True),
    ],
)
def test_two_bad_reports_go_down_one_good_goes_up(reports: list[bool], ready: bool) -> None:
    gate = ReadinessGate()
    for good in reports:
        gate.report(good)
    assert gate.is_ready is ready


def test_a_draining_gate_stays_down() -> None:
    gate = ReadinessGate(is_draining=True)
    assert gate.report(True) is False


async def test_a_starting_process_is_alive_and_not_ready(health: Health) -> None:
    states = {name: await state(health, name) for name in ("", LIVENESS, STARTUP, READINESS)}
    assert states == {
        "": "SERVING",
        LIVENESS: "SERVING",
        STARTUP: "NOT_SERVING",
        READINESS: "NOT_SERVING",
    }


async def test_service_names_follow_readiness(health: Health) -> None:
    await health.set_started()
    await health.report(True, "loaded")
    assert [await state(health, name) for name in (STARTUP, READINESS, SERVICE)] == ["SERVING"] * 3


async def test_a_dependency_flips_readiness_never_liveness(
    health: Health, metrics: Metrics
) -> None:
    await health.report(True, "loaded")
    await health.report(False, "store_down")
    assert health.is_ready
    await health.report(False, "store_down")
    assert not health.is_ready
    assert await state(health, READINESS) == "NOT_SERVING"
    assert await state(health, LIVENESS) == "SERVING"
    name = "disagg_readiness_transitions_total"
    assert metrics.value(name, to="ready", cause="loaded") == 1
    assert metrics.value(name, to="down", cause="store_down") == 1
    assert metrics.value("disagg_worker_ready", role="decode") == 0


async def test_a_drain_acts_at_once_and_can_be_taken_back(health: Health, metrics: Metrics) -> None:
    await health.report(True, "loaded")
    await health.drain()
    assert await state(health, SERVICE) == "NOT_SERVING"
    assert metrics.value("disagg_draining", role="decode") == 1
    await health.report(True, "loaded")
    assert await state(health, READINESS) == "NOT_SERVING"
    await health.drain(False)
    assert await state(health, READINESS) == "SERVING"


async def test_a_stuck_loop_flips_liveness(health: Health) -> None:
    await health.set_live(False)
    assert await state(health, LIVENESS) == "NOT_SERVING"
    assert await state(health, "") == "NOT_SERVING"
