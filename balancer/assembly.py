"""Puts the parts of a balancer together: the only module here that knows all the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from balancer.admission import Admission
from balancer.config import BalancerSettings, LimitSettings
from balancer.explain.decisions import DecisionRing
from balancer.explain.journal import recorded_router
from balancer.facade.face import ENGINE_GENERATE
from balancer.facade.face import SERVICE as ENGINE_SERVICE
from balancer.gauges import publish_members, publish_sizes
from balancer.http.generation import CHAT, COMPLETIONS
from balancer.intake import Intake
from balancer.journey.attempt import Attempts, Handoffs
from balancer.journey.cleanup import CleanUps
from balancer.journey.gate import Gate
from balancer.journey.meter import Meter, Targets
from balancer.journey.placement import Placer
from balancer.journey.prefixes import Prefixes, PrefixStore
from balancer.journey.recent import RecentRequests
from balancer.journey.recovery import Recovery
from balancer.journey.retry import RetryBudget
from balancer.journey.running import RunningRequests
from balancer.journey.silence import Silence
from balancer.journey.state import Limits
from balancer.journey.tiers import Tiers
from balancer.membership import Membership, Role
from balancer.pipeline import Pipeline
from balancer.remote.peers import GrpcPeers
from balancer.route import ROUTE
from balancer.route import SERVICE as ROUTING_SERVICE
from balancer.router import Router
from balancer.routing.policies import make_policy
from balancer.server import (
    GENERATE,
    MEMBERSHIP,
    SERVICES,
    text_error,
)
from balancer.text import TextCodec, TextError
from balancer.ui.history import History
from kvstore.pressure import Pressure
from runtime.clock import Clock
from runtime.errors import ErrorMap, Reason
from runtime.logging import get_logger
from runtime.member import Condition
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security
from runtime.serve import BALANCER_OPTIONS, Host
from runtime.telemetry import NO_TRACER, Tracer

_log = get_logger(__name__)

_ENDPOINTS = {
    GENERATE: "generate",
    ROUTE: "route",
    ENGINE_GENERATE: "engine",
    CHAT: "chat",
    COMPLETIONS: "completions",
}


class SharedStore(Handoffs, PrefixStore, Protocol):
    """What a balancer asks of the shared store."""

    @property
    def pressure(self) -> Pressure | None:
        """How full it was when it was last looked at; None if it never told."""
        ...

    @property
    def is_down(self) -> bool:
        """Whether it did not answer when it was last asked; at once back."""
        ...

    async def is_reachable(self) -> bool:
        """Whether it answers; called some times a second, bounded by itself."""
        ...

    def look_at_pressure(self) -> None:
        """Begins to find out whether it has room; called twice a second, at once back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """The parts of one balancer, put together and not yet listening."""

    settings: BalancerSettings
    clock: Clock
    metrics: Metrics
    host: Host
    members: Membership
    router: Router
    tiers: Tiers
    admission: Admission
    running: RunningRequests
    peers: GrpcPeers
    placer: Placer
    pipeline: Pipeline
    cleanups: CleanUps
    store: SharedStore
    codec: TextCodec
    intake: Intake
    errors: ErrorMap
    recent: RecentRequests
    history: History

    async def examine(self) -> Condition:
        """Housekeeping, and whether requests could be served now."""
        now = self.clock.now()
        for member_id in self.members.sweep(now):
            _log.info("member.forgotten", member=member_id)
        await self.peers.keep_only({view.member.address for view in self.members.views(now)})
        publish_sizes(self.metrics, self.tiers.names, self.admission.statistics())
        publish_members(self.metrics, self.members.views(now))
        snapshot, knowledge = self.members.snapshot(now), self.router.knowledge()
        self.tiers.publish(self.metrics, knowledge.own, snapshot.decode, now)
        self.history.take(
            now,
            quota_tokens=[load.quota_tokens for load in self.tiers.loads(now)],
            num_ended=self.recent.num_ended,
            num_tokens=self.recent.num_tokens,
        )
        self.router.pass_time(now)
        self.store.look_at_pressure()
        # First, since members are not ready without the store.
        if not await self.store.is_reachable():
            return Condition(is_ready=False, cause="store_down")
        if not self.members.can_serve(now):
            return Condition(is_ready=False, cause="no_members")
        return Condition()

    def listen(self) -> None:
        """The event loop turned; to be called several times a second."""
        self.members.listen(self.clock.now())

    def statistics(self) -> dict[str, float]:
        """Named values for operators and tests."""
        values = self.metrics.snapshot()
        values["requests_running"] = float(len(self.running))
        values["clean_ups_running"] = float(self.cleanups.running)
        values["clean_ups_failed"] = float(self.cleanups.failed.total())
        return values

    def fingerprint(self) -> str:
        """KV layout of the first ready decode member, hexadecimal; empty without one."""
        views = self.members.views(self.clock.now(), Role.DECODE)
        ready = (view.member.fingerprint.hex() for view in views if view.exclusion is None)
        return next(ready, "")


def assemble(
    settings: BalancerSettings,
    *,
    clock: Clock,
    store: SharedStore,
    peers: GrpcPeers,
    cleanups: CleanUps,
    metrics: Metrics | None = None,
    security: Security = NO_SECURITY,
    tracer: Tracer = NO_TRACER,
    record: Callable[[str], None] | None = None,
) -> Balancer:
    """The parts of a balancer.

    Args:
        metrics: Of this process; None: new ones.
        security: Of this process.
        tracer: Of this process.
        record: Takes every input of placement as a line; None: nothing is recorded.

    Raises:
        ModelFilesError: The model directory cannot be used.
    """
    codec = TextCodec(settings.model.path, name=settings.model.name)
    metrics = metrics or Metrics()
    members, router = _router(settings, record)
    tiers = Tiers(settings.routing.boundaries, settings.routing.round_s)
    errors = ErrorMap()
    errors.register(TextError, text_error)
    host = _host(settings, clock, metrics, errors, security, tracer)
    admission = Admission(
        max_running=settings.admission.max_running,
        max_waiting=settings.admission.max_waiting,
        max_waiting_per_class=settings.admission.max_waiting_per_class,
        num_classes=len(tiers.names),
        weights=settings.admission.tenant_weights,
        quantum_tokens=settings.admission.quantum_tokens,
        ageing_s=settings.admission.ageing_s,
    )
    running, limits = RunningRequests(clock), _limits(settings.limits)
    placer = Placer(
        members=members,
        router=router,
        tiers=tiers,
        peers=peers,
        cleanups=cleanups,
        clock=clock,
        limits=limits,
        metrics=metrics,
        is_store_down=lambda: store.is_down,
    )
    recent = RecentRequests()
    metrics.expect("disagg_slo_requests_total", tier=tiers.names)
    metrics.expect("disagg_route_decisions_total", policy=(router.policy.name,), tier=tiers.names)
    meter = Meter(
        metrics,
        lambda num_tokens: tiers.names[tiers.class_of(num_tokens)],
        Targets(
            ttft_s=settings.routing.ttft_slo_s,
            ttft_per_token_s=settings.routing.ttft_slo_per_token_s,
            tpot_s=settings.routing.tpot_slo_s,
        ),
    )
    attempts = Attempts(
        placer=placer,
        peers=peers,
        handoffs=store,
        cleanups=cleanups,
        silence=Silence(limits, clock, absolve=placer.absolve),
        clock=clock,
        metrics=metrics,
        meter=meter,
        overlap=settings.handoff.overlap,
    )
    recovery = Recovery(
        members=members,
        budget=RetryBudget(settings.limits.retries_per_minute),
        limits=limits,
        clock=clock,
        metrics=metrics,
    )
    pipeline = Pipeline(
        running=running,
        gate=Gate(admission, clock, max_wait_s=settings.admission.max_wait_s, metrics=metrics),
        placer=placer,
        prefixes=Prefixes(
            store, members, clock, limit_s=settings.routing.lookup_s, metrics=metrics
        ),
        attempts=attempts,
        recovery=recovery,
        handoffs=store,
        make_text=codec.incremental,
        clock=clock,
        limits=limits,
        metrics=metrics,
        meter=meter,
        recent=recent,
        is_closing=lambda: host.is_closing,
        says_vllm=settings.tracing.vllm_attributes,
    )
    return Balancer(
        settings=settings,
        clock=clock,
        metrics=metrics,
        host=host,
        members=members,
        router=router,
        tiers=tiers,
        admission=admission,
        running=running,
        peers=peers,
        placer=placer,
        pipeline=pipeline,
        cleanups=cleanups,
        store=store,
        codec=codec,
        errors=errors,
        recent=recent,
        history=History(),
        intake=Intake(
            codec=codec,
            clock=clock,
            default_timeout_s=settings.limits.default_timeout_s,
            max_timeout_s=settings.limits.max_timeout_s,
            on_text=lambda seconds: meter.phase("text", seconds),
        ),
    )


def _router(
    settings: BalancerSettings, record: Callable[[str], None] | None
) -> tuple[Membership, Router]:
    """Members and who chooses among them, written down or not."""
    routing, membership = settings.routing, settings.membership
    if record is not None:
        return recorded_router(
            record,
            policy=routing.policy,
            options=routing.options(),
            stale_after_s=membership.stale_after_s,
            forget_after_s=membership.forget_after_s,
            records=routing.records,
        )
    members = Membership(
        stale_after_s=membership.stale_after_s, forget_after_s=membership.forget_after_s
    )
    policy = make_policy(routing.policy, routing.options())
    return members, Router(members=members, policy=policy, decisions=DecisionRing(routing.records))


def _host(
    settings: BalancerSettings,
    clock: Clock,
    metrics: Metrics,
    errors: ErrorMap,
    security: Security,
    tracer: Tracer,
) -> Host:
    return Host(
        role="balancer",
        clock=clock,
        metrics=metrics,
        work=frozenset({GENERATE, ROUTE, ENGINE_GENERATE}),
        services=(
            *SERVICES,
            ROUTING_SERVICE,
            *((ENGINE_SERVICE,) if settings.facade.enabled else ()),
        ),
        listen=settings.listen,
        drain=settings.drain,
        errors=errors,
        options=BALANCER_OPTIONS,
        security=security,
        tracer=tracer,
        on_refused=lambda method: metrics.count(
            "disagg_requests_total",
            endpoint=_ENDPOINTS[method],
            outcome="failed",
            reason=Reason.DRAINING,
        ),
        # Heartbeats come from members, which have certificates and no keys.
        for_users=frozenset({*SERVICES, ROUTING_SERVICE, ENGINE_SERVICE}) - {MEMBERSHIP},
    )


def _limits(limits: LimitSettings) -> Limits:
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
