"""Puts a balancer together and runs it: the only module here that knows all the others.

Life: read the tokenizer, listen, write one ready line to standard output (a JSON object with role,
address and process id, for launchers), serve until SIGTERM, drain, give everything back.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from balancer.admission import Admission
from balancer.cleanup import CleanUps
from balancer.config import BalancerSettings
from balancer.decisions import DecisionRing
from balancer.gate import Gate
from balancer.handoffs import StoreHandoffs
from balancer.journey import Limits
from balancer.membership import Membership, Role
from balancer.peers import GrpcPeers
from balancer.pipeline import Pipeline
from balancer.placement import Placer
from balancer.retry import RetryBudget
from balancer.routing.policies import make_policy
from balancer.running import RunningRequests
from balancer.server import (
    GENERATE,
    SERVICES,
    AdminFace,
    GenerationFace,
    MembershipFace,
    text_error,
)
from balancer.text import TextCodec, TextError
from disagg.v1 import admin_pb2_grpc, generation_pb2_grpc, membership_pb2_grpc
from kvstore import KvStoreConfig, open_store
from runtime.clock import Clock
from runtime.errors import ErrorMap
from runtime.logging import get_logger
from runtime.member import Condition, run_member
from runtime.metrics import Metrics
from runtime.serve import BALANCER_OPTIONS, Host, StopSignals

_log = get_logger(__name__)

_CLEANUP_S = 1.0


async def serve(
    settings: BalancerSettings,
    *,
    clock: Clock,
    stop: StopSignals,
    version: str,
    ready_to: TextIO = sys.stdout,
) -> None:
    """Runs a balancer until `stop` asks it to end.

    Args:
        ready_to: Where the ready line goes.

    Raises:
        ModelFilesError: The model directory cannot be used.
        ListenError: The address cannot be listened on.
    """
    codec = TextCodec(settings.model.path, name=settings.model.name)
    metrics = Metrics()
    membership = settings.membership
    members = Membership(
        stale_after_s=membership.stale_after_s, forget_after_s=membership.forget_after_s
    )
    errors = ErrorMap()
    errors.register(TextError, text_error)
    host = Host(
        role="balancer",
        clock=clock,
        metrics=metrics,
        work=frozenset({GENERATE}),
        services=SERVICES,
        listen=settings.listen,
        drain=settings.drain,
        errors=errors,
        options=BALANCER_OPTIONS,
    )
    store_config = KvStoreConfig(block_tokens=1, owner="balancer")
    handoffs = StoreHandoffs(
        lambda fingerprint: open_store(
            settings.store.url, store_config, fingerprint=fingerprint, clock=clock.now
        ),
        ping_s=settings.store.ping_s,
    )
    peers = GrpcPeers()
    running = RunningRequests(clock)
    admission = Admission(
        max_running=settings.admission.max_running, max_waiting=settings.admission.max_waiting
    )
    limits = _limits(settings)
    try:
        async with CleanUps(limit_s=_CLEANUP_S) as cleanups:
            placer = Placer(
                members=members,
                policy=make_policy(settings.routing.policy),
                decisions=DecisionRing(settings.routing.records),
                peers=peers,
                cleanups=cleanups,
                clock=clock,
                limits=limits,
                metrics=metrics,
            )
            pipeline = Pipeline(
                running=running,
                gate=Gate(admission, clock, max_wait_s=settings.admission.max_wait_s),
                placer=placer,
                members=members,
                peers=peers,
                handoffs=handoffs,
                cleanups=cleanups,
                budget=RetryBudget(settings.limits.retries_per_minute),
                make_text=codec.incremental,
                clock=clock,
                limits=limits,
                metrics=metrics,
            )
            generation_pb2_grpc.add_GenerationServiceServicer_to_server(
                GenerationFace(
                    pipeline=pipeline,
                    running=running,
                    codec=codec,
                    clock=clock,
                    default_timeout_s=settings.limits.default_timeout_s,
                    max_timeout_s=settings.limits.max_timeout_s,
                    fingerprint=lambda: _fingerprint(members, clock.now()),
                ),
                host.server,
            )
            membership_pb2_grpc.add_MembershipServiceServicer_to_server(
                MembershipFace(
                    members=members,
                    clock=clock,
                    interval_s=membership.interval_s,
                    on_change=placer.look_again,
                ),
                host.server,
            )
            admin_pb2_grpc.add_AdminServiceServicer_to_server(
                AdminFace(
                    host=host, version=version, statistics=lambda: _statistics(metrics, cleanups)
                ),
                host.server,
            )

            async def examine() -> Condition:
                now = clock.now()
                for member_id in members.sweep(now):
                    _log.info("member.forgotten", member=member_id)
                await peers.keep_only({view.member.address for view in members.views(now)})
                waiting = admission.statistics()
                metrics.set("disagg_requests_running", waiting.running, role="balancer")
                metrics.set("disagg_requests_waiting", waiting.waiting, role="balancer")
                if not members.can_serve(now):
                    return Condition(is_ready=False, cause="no_members")
                if not await handoffs.is_reachable():
                    return Condition(is_ready=False, cause="store_down")
                return Condition()

            address = await host.start()
            _log.info("balancer.listening", address=address, model=codec.card.name)
            line = {"event": "ready", "role": "balancer", "address": address, "pid": os.getpid()}
            ready_to.write(json.dumps(line) + "\n")
            ready_to.flush()
            await run_member(host, stop=stop, examine=examine)
    finally:
        await peers.close()
        handoffs.close()


def _limits(settings: BalancerSettings) -> Limits:
    limits = settings.limits
    return Limits(
        first_token_s=limits.first_token_s,
        progress_gap_s=limits.progress_gap_s,
        reserve_s=limits.reserve_s,
        slot_wait_s=limits.slot_wait_s,
        recovery_wait_s=limits.recovery_wait_s,
        prefill_retries=limits.prefill_retries,
        decode_retries=limits.decode_retries,
        suspect_s=limits.suspect_s,
    )


def _fingerprint(members: Membership, now: float) -> str:
    """Layout of the first ready decode member, hexadecimal; empty without one."""
    ready = (view for view in members.views(now, Role.DECODE) if view.exclusion is None)
    return next((view.member.fingerprint.hex() for view in ready), "")


def _statistics(metrics: Metrics, cleanups: CleanUps) -> dict[str, float]:
    values = metrics.snapshot()
    values["clean_ups_running"] = float(cleanups.running)
    values["clean_ups_failed"] = float(cleanups.failed.total())
    return values
