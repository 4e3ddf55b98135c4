"""The prefill role: what a rank process of prefill serves. Its life is `serving.rank`'s."""

from collections.abc import Mapping, Sequence

import grpc.aio

from disagg.v1 import prefill_pb2_grpc
from engine.config import EngineRole
from engine.parallel.worker import RankContext
from prefill_service.boundary import BoundaryPolicy
from prefill_service.config import PrefillSettings
from prefill_service.prefill import PrefillPath
from prefill_service.server import SERVICE, WORK, PrefillServicer, error_map
from runtime.budget import Budget
from runtime.sections import foreign_to
from serving import rank
from serving.events import publish_events
from serving.role import Parts, Role, Service


def open_service(parts: Parts[PrefillSettings]) -> Service:
    """Builds the path of a prompt and its servicer."""
    add_events = publish_events(parts.settings.events, parts.store, parts.clock, parts.metrics)
    publish = parts.settings.publish
    path = PrefillPath(
        engine=parts.engine,
        store=parts.store,
        layout=parts.layout,
        policy=BoundaryPolicy.parse(publish.boundary_states),
        budget=Budget(
            "bytes of KV in flight",
            publish.max_bytes_in_flight,
            max_waiting=publish.max_waiting,
            span="prefill.queue",
        ),
        executor=parts.threads["read"],
        writers=parts.threads["write"],
        clock=parts.clock,
        metrics=parts.metrics,
    )
    servicer = PrefillServicer(path, default_timeout_s=parts.settings.limits.default_timeout_s)

    def register(server: grpc.aio.Server) -> None:
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server)
        add_events(server)

    return Service(register=register, statistics=path.statistics)


ROLE = Role(
    kind=EngineRole.PREFILL,
    prog="prefill_service",
    entry=f"{__name__}:serve_rank",
    description="Prompt to ticket.",
    settings=PrefillSettings,
    # A file or environment may hold the settings of all roles; these sections are not ours.
    foreign_sections=foreign_to(PrefillSettings),
    service=SERVICE,
    work=WORK,
    errors=error_map,
    threads=lambda settings: {
        "write": settings.publish.writers,
        "read": settings.publish.readers,
    },
    open=open_service,
)


def serve_rank(
    context: RankContext, options: Mapping[str, str | int | float | bool | None]
) -> None:
    """The entry of a rank process; see `serving.rank.serve_rank`."""
    rank.serve_rank(ROLE, context, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a group of prefill ranks; see `serving.rank.supervise`."""
    return rank.supervise(ROLE, arguments)
