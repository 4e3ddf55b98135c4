"""The decode role: what a rank process of decode serves. Its life is `serving.rank`'s."""

from collections.abc import Mapping, Sequence

import grpc.aio

from decode_service.config import DecodeSettings
from decode_service.credits import Credits
from decode_service.decode import DecodePath
from decode_service.fetcher import Fetcher
from decode_service.prefetch import Prefetches
from decode_service.server import SERVICE, WORK, DecodeServicer, error_map
from disagg.v1 import decode_pb2_grpc
from engine.config import EngineRole
from engine.parallel.worker import RankContext
from runtime.budget import Budget
from runtime.sections import foreign_to
from serving import rank
from serving.events import publish_events
from serving.role import Parts, Role, Service


def open_service(parts: Parts[DecodeSettings]) -> Service:
    """Builds the path of a sequence and its servicer."""
    add_events = publish_events(parts.settings.events, parts.store, parts.clock, parts.metrics)
    fetch = parts.settings.fetch
    path = DecodePath(
        engine=parts.engine,
        fetcher=Fetcher(
            store=parts.store,
            layout=parts.layout,
            executor=parts.threads["read"],
            clock=parts.clock,
            metrics=parts.metrics,
        ),
        prefetches=Prefetches(
            store=parts.store,
            layout=parts.layout,
            executor=parts.threads["read"],
            # Nobody waits for these bytes: what does not fit is read after the ticket.
            budget=Budget("prefetched bytes", fetch.max_bytes_prefetched, max_waiting=0),
            metrics=parts.metrics,
        ),
        fingerprint=parts.store.fingerprint,
        credits=Credits(ttl_s=fetch.credit_ttl_s),
        budget=Budget(
            "bytes of fetched KV",
            fetch.max_bytes_in_flight,
            max_waiting=fetch.max_waiting,
            span="decode.queue",
        ),
        clock=parts.clock,
        metrics=parts.metrics,
    )
    servicer = DecodeServicer(
        path,
        credit_ttl_s=fetch.credit_ttl_s,
        default_timeout_s=parts.settings.limits.default_timeout_s,
    )

    def register(server: grpc.aio.Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)
        add_events(server)

    return Service(register=register, statistics=path.statistics, on_tick=path.expire_credits)


ROLE = Role(
    kind=EngineRole.DECODE,
    prog="decode_service",
    entry=f"{__name__}:serve_rank",
    description="Ticket to tokens.",
    settings=DecodeSettings,
    # A file or environment may hold the settings of all roles; these sections are not ours.
    foreign_sections=foreign_to(DecodeSettings),
    service=SERVICE,
    work=WORK,
    errors=error_map,
    threads=lambda settings: {"read": settings.fetch.readers},
    open=open_service,
)


def serve_rank(
    context: RankContext, options: Mapping[str, str | int | float | bool | None]
) -> None:
    """The entry of a rank process; see `serving.rank.serve_rank`."""
    rank.serve_rank(ROLE, context, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a group of decode ranks; see `serving.rank.supervise`."""
    return rank.supervise(ROLE, arguments)
