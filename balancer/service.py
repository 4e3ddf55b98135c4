"""Runs a balancer.

Life: read the tokenizer, listen, write one ready line to standard output (a JSON object with role,
addresses and process id, for launchers), serve until SIGTERM, drain, give everything back.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TextIO

from balancer.assembly import SharedStore, assemble
from balancer.config import BalancerSettings, RoutingSettings
from balancer.faces import register, serving_http
from balancer.journey.cleanup import CleanUps
from balancer.recording import recording
from balancer.remote.peers import GrpcPeers
from runtime.build import tell_build
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.member import run_member
from runtime.metrics import Metrics
from runtime.metrics.page import serving_page
from runtime.security import open_security
from runtime.serve import StopSignals
from runtime.telemetry import Tracer
from runtime.tracing.exporting import tracing

_log = get_logger(__name__)

_CLEANUP_S = 1.0


async def serve(
    settings: BalancerSettings,
    *,
    clock: Clock,
    stop: StopSignals,
    store: SharedStore,
    version: str,
    metrics: Metrics | None = None,
    ready_to: TextIO = sys.stdout,
) -> None:
    """Runs a balancer until `stop` asks it to end.

    Args:
        store: The caller opens and closes it.
        metrics: Of this process; None: new ones.
        ready_to: Where the ready line goes.

    Raises:
        ModelFilesError: The model directory cannot be used.
        ListenError, PageError: An address cannot be listened on.
        RecordingError: The recording that is asked for cannot be made.
        SecretError: A certificate or a file of keys cannot be used.
        TracingUnavailable, SettingsError: Spans cannot be sent where they should go.
    """
    async with tracing(
        settings.tracing,
        role="balancer",
        version=version,
        instance=f"balancer-{uuid.uuid4().hex[:8]}",
        clock=clock,
    ) as tracer:
        await _serve(settings, clock, stop, store, version, metrics or Metrics(), tracer, ready_to)


async def _serve(
    settings: BalancerSettings,
    clock: Clock,
    stop: StopSignals,
    store: SharedStore,
    version: str,
    metrics: Metrics,
    tracer: Tracer,
    ready_to: TextIO,
) -> None:
    tell_build(metrics, role="balancer", version=version)
    security = open_security(settings.tls, settings.auth, role="balancer", metrics=metrics)
    peers = GrpcPeers(security, metrics=metrics, clock=clock)
    try:
        with ExitStack() as stack, _recorded(settings.routing, metrics) as record:
            # Clean-up work calls peers, so it ends before they are closed.
            async with CleanUps(limit_s=_CLEANUP_S) as cleanups:
                balancer = assemble(
                    settings,
                    clock=clock,
                    store=store,
                    peers=peers,
                    cleanups=cleanups,
                    metrics=metrics,
                    security=security,
                    tracer=tracer,
                    record=record,
                )
                register(balancer, version)
                async with serving_http(balancer, version) as http_address:
                    page = stack.enter_context(serving_page(metrics, settings.metrics))
                    address = await balancer.host.start()
                    _log.info("balancer.listening", address=address, model=balancer.codec.card.name)
                    _write_ready_line(
                        ready_to,
                        address=address,
                        http=http_address,
                        health=balancer.host.health_address,
                        metrics=page,
                    )
                    await run_member(
                        balancer.host,
                        stop=stop,
                        examine=balancer.examine,
                        on_turn=balancer.listen,
                    )
    finally:
        await peers.close()


def _recorded(
    settings: RoutingSettings, metrics: Metrics
) -> AbstractContextManager[Callable[[str], None] | None]:
    """What takes the inputs of placement while the body runs, if they are to be recorded."""
    if settings.record_path is None:
        return nullcontext()
    return recording(
        settings.record_path,
        max_bytes=settings.record_max_bytes,
        on_drop=lambda: metrics.count("disagg_recording_dropped_total"),
    )


def _write_ready_line(ready_to: TextIO, **addresses: str) -> None:
    """Tells launchers where the process listens; faces that are off are left out."""
    given = {name: address for name, address in addresses.items() if address}
    line = {"event": "ready", "role": "balancer", **given, "pid": os.getpid()}
    ready_to.write(json.dumps(line) + "\n")
    ready_to.flush()
