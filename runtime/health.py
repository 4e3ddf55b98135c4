"""Health of a process: liveness, start-up and readiness, under the names probes and gateways ask.

`""` and `liveness`: the process and its loops turn. `startup`: loaded and warm. `readiness` and
each service name: can take new work now. A dependency that is out flips readiness, never liveness.

    not ready ──1 good report──► ready ──2 bad reports in a row──► not ready
        ▲                          │
        └────────── drain ─────────┘ (until undrained)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpc_health.v1 import health, health_pb2

from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

LIVENESS, STARTUP, READINESS = "liveness", "startup", "readiness"
FAILURES_TO_GO_DOWN = 2

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(slots=True)
class ReadinessGate:
    """Decides readiness from reports; pure."""

    is_ready: bool = False
    is_draining: bool = False
    bad_in_a_row: int = 0

    def report(self, good: bool) -> bool:
        """Take one report; returns whether readiness is given now."""
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        if good:
            self.is_ready = True
        elif self.bad_in_a_row >= FAILURES_TO_GO_DOWN:
            self.is_ready = False
        return self.is_ready and not self.is_draining


class Health:
    """The health service of one process and the state behind it. Event loop only.

    Args:
        services: Full names of the services whose state is that of readiness.
        role: Label of the gauges.
        metrics: Where transitions are counted.
    """

    def __init__(self, services: Iterable[str], *, role: str, metrics: Metrics) -> None:
        self.servicer = health.aio.HealthServicer()
        self._services = tuple(services)
        self._role = role
        self._metrics = metrics
        for name in ("disagg_worker_ready", "disagg_draining"):
            metrics.set(name, 0, role=role)
        self._gate = ReadinessGate()
        self._announced: bool | None = None

    @property
    def is_ready(self) -> bool:
        """Whether new work can be taken now."""
        return self._gate.is_ready and not self._gate.is_draining

    async def start(self) -> None:
        """Publish the state of a process that is alive and not loaded yet."""
        await self.set_live(True)
        await self.servicer.set(STARTUP, _NOT_SERVING)
        await self._publish("starting")

    async def set_live(self, live: bool) -> None:
        """Say whether the loops of the process turn."""
        for name in ("", LIVENESS):
            await self.servicer.set(name, _SERVING if live else _NOT_SERVING)

    async def set_started(self) -> None:
        """Say that everything is loaded and warm."""
        await self.servicer.set(STARTUP, _SERVING)

    async def report(self, good: bool, cause: str) -> None:
        """Report whether work could be taken; two bad reports in a row take readiness away.

        Args:
            good: Whether everything needed is there.
            cause: A short fixed word for logs and metrics, such as `store_down`.
        """
        self._gate.report(good)
        await self._publish(cause)

    async def drain(self, draining: bool = True) -> None:
        """Take readiness away at once, or give it back."""
        self._gate.is_draining = draining
        self._metrics.set("disagg_draining", float(draining), role=self._role)
        await self._publish("drain" if draining else "undrain")

    async def _publish(self, cause: str) -> None:
        ready = self.is_ready
        if ready == self._announced:
            return
        if self._announced is not None:
            _log.info("readiness.changed", ready=ready, cause=cause)
            self._metrics.count(
                "disagg_readiness_transitions_total", to="ready" if ready else "down", cause=cause
            )
        self._announced = ready
        self._metrics.set("disagg_worker_ready", float(ready), role=self._role)
        for name in (READINESS, *self._services):
            await self.servicer.set(name, _SERVING if ready else _NOT_SERVING)
