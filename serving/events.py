"""KV events of a rank: what its store client sees becomes vLLM's stream over ZeroMQ, and gRPC's.

Each rank binds sockets of its own, at the configured ports plus its number, as routers of vLLM's
events expect it of data-parallel ranks. Off unless an address is configured.
"""

from collections.abc import Callable, Sequence

import grpc.aio

from disagg.v1 import events_pb2_grpc
from kvstore.events.announcer import Announcer
from kvstore.events.form import Event
from kvstore.store import KvStore
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.serve import ListenError
from runtime.settings import Settings, setting

_log = get_logger(__name__)


class EventsSettings(Settings):
    """KV events for prefix routers."""

    endpoint: str = setting(
        "", help="ZeroMQ address of the stream, e.g. tcp://*:5557; plus the rank; empty: no events"
    )
    replay_endpoint: str = setting(
        "tcp://*:5657", help="ZeroMQ address where missed events are asked for; plus the rank"
    )
    topic: str = setting("", help="first frame of every event message")
    token_ids: bool = setting(True, help="events carry the token ids of their blocks")


def _nothing(_server: grpc.aio.Server) -> None:
    """No events, no face."""


def publish_events(
    settings: EventsSettings, store: KvStore, clock: Clock, metrics: Metrics
) -> Callable[[grpc.aio.Server], None]:
    """Publishes what a rank's store client does until the client is closed.

    Returns:
        Adds the gRPC form of the events to a server; does nothing without events.

    Raises:
        ListenError: An address cannot be bound, or the extra `events` is not installed.
    """
    if not settings.endpoint:
        return _nothing
    try:
        from kvstore.events.publisher import ZmqPublisher
        from serving.watch import KvEventServicer
    except ImportError as error:
        raise ListenError(
            f"events.endpoint is {settings.endpoint!r}, but pyzmq is not installed: install the "
            "extra `events`, or leave the setting empty"
        ) from error
    rank = store.config.owner_rank
    if _meets(settings.endpoint, settings.replay_endpoint, rank):
        raise ListenError(
            f"events.replay_endpoint is {settings.replay_endpoint!r}, which is the stream of "
            f"another rank: events.endpoint is {settings.endpoint!r}, and rank {rank} takes both "
            "ports plus its number; leave as many ports between them as there are ranks"
        )
    try:
        publisher = ZmqPublisher(
            wall=clock.wall,
            endpoint=at_rank(settings.endpoint, rank),
            replay_endpoint=at_rank(settings.replay_endpoint, rank),
            topic=settings.topic,
            dp_rank=rank,
        )
    except OSError as error:
        raise ListenError(f"events: {error}; choose other addresses") from error

    def publish(events: Sequence[Event]) -> None:
        publisher.publish(events)
        for event in events:
            metrics.count("disagg_kv_events_published_total", type=type(event).__name__)

    announcer = Announcer(publish, with_token_ids=settings.token_ids, end=publisher.close)
    store.listen(announcer)
    servicer = KvEventServicer(publisher.ring, announcer, metrics)
    _log.info("events.published", endpoint=publisher.endpoint, replay=publisher.replay_endpoint)
    return lambda server: events_pb2_grpc.add_KvEventServiceServicer_to_server(servicer, server)


def _meets(endpoint: str, replay: str, rank: int) -> bool:
    """Whether the streams of ranks up to this one reach the first port of the replays, or back."""
    ports = [_port(endpoint), _port(replay)]
    return 0 not in ports and abs(ports[0] - ports[1]) <= rank


def _port(endpoint: str) -> int:
    """The number of a TCP port; 0 if the system chooses it or there is none."""
    port = endpoint.rpartition(":")[2]
    return int(port) if endpoint.startswith("tcp:") and port.isdecimal() else 0


def at_rank(endpoint: str, rank: int) -> str:
    """The address of one rank: its port plus the rank; other addresses get the rank behind them.

    A port that the system chooses (0 or *) stays.
    """
    head, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp:") and port.isdecimal():
        return f"{head}:{int(port) + rank}" if int(port) else endpoint
    if endpoint.startswith("tcp:") or rank == 0:
        return endpoint
    return f"{endpoint}-{rank}"
