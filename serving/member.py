"""A leader as a member of the cluster: its servicers, and what it announces to the balancers."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from disagg.admin import AdminServicer
from disagg.announce import Announcement, MemberCard, beat_over
from disagg.v1 import admin_pb2_grpc, membership_pb2
from engine.assembly import BuiltEngine
from engine.config import EngineRole
from engine.parallel.worker import RankContext
from runtime.build import software_version
from runtime.clock import system_random
from runtime.heartbeat import Heartbeat
from runtime.member import Announcing
from runtime.rank import gauges
from runtime.receivers import Receiver, Receivers
from runtime.serve import Host, StopSignals
from serving.role import Parts, Role, Service
from serving.settings import EngineProcessSettings

_MEMBER_ROLES = {
    EngineRole.PREFILL: membership_pb2.MEMBER_ROLE_PREFILL,
    EngineRole.DECODE: membership_pb2.MEMBER_ROLE_DECODE,
}

S = TypeVar("S", bound=EngineProcessSettings)


def equipment(role: Role[S], parts: Parts[S], service: Service) -> Callable[[Host], None]:
    """Returns what registers the servicers of a rank on its host's server."""

    def equip(host: Host) -> None:
        service.register(host.server)
        admin = AdminServicer(
            role=role.name,
            version=software_version(),
            fingerprint=parts.store.fingerprint,
            begin_drain=host.begin_drain,
            end_drain=host.end_drain,
            running=lambda: host.running,
            trace_endpoint=host.tracer.endpoint,
            statistics=lambda: (
                parts.metrics.snapshot()
                | gauges("path", service.statistics())
                | gauges("engine", parts.engine.statistics())
                | gauges("store", parts.store.statistics())
            ),
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, host.server)

    return equip


def announcer(
    role: Role[S],
    context: RankContext,
    parts: Parts[S],
    built: BuiltEngine,
    member_id: str,
    number: int,
    metrics_address: str = "",
) -> Callable[[Host, StopSignals, AsyncExitStack], Sequence[Announcing]]:
    """Returns what makes the heartbeats of a started host, one for each balancer there is.

    Args:
        role, context, parts, built: What the rank is and is made of.
        member_id: Its name in the cluster.
        number: Of its engine in the group.
        metrics_address: Of its page of metrics; empty without one.
    """
    settings, engine, layout = parts.settings, parts.engine, parts.layout

    def announce(host: Host, stop: StopSignals, _stack: AsyncExitStack) -> Sequence[Announcing]:
        announcement = Announcement(
            MemberCard(
                member_id=member_id,
                role=_MEMBER_ROLES[role.kind],
                address=host.address,
                group_id=context.group_name,
                rank=number,
                group_size=built.ports.run.layout.num_engines,
                fingerprint=parts.store.fingerprint,
                model=settings.model.name or settings.model.path.resolve().name,
                max_model_len=built.engine.context_tokens,
                block_tokens=layout.block_tokens,
                metrics_address=metrics_address,
                window_replay_tokens=layout.window_replay_tokens,
            ),
            load=engine.statistics,
            progress_age_s=engine.progress_age_s,
            is_ready=lambda: host.health.is_ready,
            is_draining=lambda: host.is_draining or stop.drain.is_set(),
        )

        @asynccontextmanager
        async def heartbeat(receiver: Receiver) -> AsyncIterator[Heartbeat]:
            channel = host.security.channel(receiver.address, server_name=receiver.host)
            try:
                beat = beat_over(channel, announcement, on_drain=host.begin_drain)
                yield Heartbeat(receiver.address, beat, clock=parts.clock, uniform=system_random())
            finally:
                await channel.close()

        names = settings.announce.balancers
        if not names:
            return []
        return [
            Receivers(
                names,
                heartbeat,
                version=lambda: host.security.version,
                on_look=lambda outcome: host.metrics.count(
                    "disagg_receiver_lookups_total", outcome=outcome
                ),
            )
        ]

    return announce
