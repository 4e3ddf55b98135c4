"""Opening the ports of one rank: dispatcher, vote and doorbell, by the backend's name.

Opening is a collective: it returns when every rank of the group has opened with the same sizes.
`Ports.ready` is another one, for when the rank has loaded its model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.parallel.channels import GlooChannel
from engine.parallel.dispatch import Dispatcher, DispatchShape, LocalDispatcher
from engine.parallel.dispatch_gloo import GlooDispatcher
from engine.parallel.dispatch_shm import SharedMemoryDispatcher
from engine.parallel.errors import GeometryMismatch
from engine.parallel.ledger.record import Ledger, RecordingDispatcher, RecordingVote
from engine.parallel.lockstep import VotePort
from engine.parallel.shared_memory import Exchange, Progress, Segment
from engine.parallel.votes import Doorbell, GlooVote, LocalVote, SharedMemoryVote
from engine.parallel.worker import RankContext

__all__ = ["Ports", "RankContext", "open_ports"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one rank, used by its step loop. `ring` and `abort` may come from any thread.

    Args:
        dispatcher: expert dispatch and combine.
        vote: step agreement, and the doorbell behind `vote.ring` and `vote.wait_for_work`.
        progress: what the rank is doing, for error messages; the step loop sets `step_kind`.
        ledger: the collectives of the rank; stays empty in a group of one, which has none.
        ready: waits until every rank called it, with the start timeout: a rank calls it when it is
            done loading, so that no peer meets it loading inside a step. Once.
        abort: marks the group as lost because of this rank, so that no peer waits for it.
        close: lets go of the segment. Twice is harmless.
    """

    dispatcher: Dispatcher
    vote: VotePort
    progress: Progress
    ledger: Ledger
    ready: Callable[[], None]
    abort: Callable[[], None]
    close: Callable[[], None]


def open_ports(context: RankContext, *, hidden: int, top_k: int, max_tokens: int) -> Ports:
    """Opens the ports of this rank; a collective of the group.

    Args:
        context: from `run_group`, or `RankContext()` for a group of one rank.
        hidden: H, numbers per row.
        top_k: K, choices per row.
        max_tokens: most rows a rank ever dispatches in one step; memory is reserved (not
            touched) for num_ranks * max_tokens * (top_k + 1) rows.

    Raises:
        GeometryMismatch: another rank opened with other sizes.
        GroupError: another rank is late or lost.
        ValueError: unknown backend, or a size below 1.
    """
    shape = DispatchShape(hidden=hidden, top_k=top_k, max_tokens=max_tokens)
    if context.num_ranks == 1:
        return _open_local(context, shape)
    if context.backend not in _BACKENDS:
        raise ValueError(
            f"backend {context.backend!r} is unknown for {context.num_ranks} ranks; "
            f"known: {', '.join(sorted(_BACKENDS))}"
        )
    return _BACKENDS[context.backend](context, shape)


def _open_local(context: RankContext, shape: DispatchShape) -> Ports:
    del context
    progress = Progress()
    return Ports(
        dispatcher=LocalDispatcher(shape),
        vote=LocalVote(progress),
        progress=progress,
        ledger=Ledger(),
        ready=_nothing,
        abort=_nothing,
        close=_nothing,
    )


def _open_shared_memory(context: RankContext, shape: DispatchShape) -> Ports:
    segment, progress, barrier = _join(context, shape)
    dispatcher = SharedMemoryDispatcher(
        segment, _exchange(context, segment, "experts", progress), context.rank, shape
    )
    vote = SharedMemoryVote(
        segment,
        _exchange(context, segment, "vote", progress),
        _doorbell(context, segment, progress),
        context.rank,
        progress,
    )
    barrier()
    return _ports(context, segment, dispatcher, vote, shape, progress, barrier)


def _open_gloo(context: RankContext, shape: DispatchShape) -> Ports:
    segment, progress, barrier = _join(context, shape)
    experts, votes = (
        GlooChannel(
            context.rendezvous_fd,
            segment,
            purpose,
            rank=context.rank,
            group=context.group_name,
            timeout_s=context.collective_timeout_s,
            start_timeout_s=context.start_timeout_s,
            progress=progress,
        )
        for purpose in ("experts", "vote")
    )
    vote = GlooVote(votes, _doorbell(context, segment, progress), progress)
    barrier()
    dispatcher = GlooDispatcher(experts, shape)
    return _ports(context, segment, dispatcher, vote, shape, progress, barrier)


def _join(
    context: RankContext, shape: DispatchShape
) -> tuple[Segment, Progress, Callable[[], None]]:
    """Maps the header, waits for all ranks and compares sizes; returns the barrier to end with."""
    segment = Segment(context.segment_fd, context.num_ranks)
    progress = Progress(step_kind="start")
    exchange = _exchange(context, segment, "start", progress)

    def barrier() -> None:
        exchange.publish()
        exchange.wait("start")

    geometry = segment.geometry()
    geometry[context.rank] = (shape.hidden, shape.top_k, shape.max_tokens)
    barrier()
    for rank, sizes in enumerate(geometry.tolist()):
        if sizes != geometry[context.rank].tolist():
            raise GeometryMismatch(
                f"group {context.group_name}: rank {context.rank} opened its ports with (hidden, "
                f"top_k, max_tokens) = {tuple(geometry[context.rank].tolist())}, rank {rank} with "
                f"{tuple(sizes)}: give all ranks the same model and limits"
            )
    return segment, progress, barrier


def _exchange(context: RankContext, segment: Segment, channel: str, progress: Progress) -> Exchange:
    return Exchange(
        segment,
        channel,
        rank=context.rank,
        group=context.group_name,
        timeout_s=context.collective_timeout_s,
        start_timeout_s=context.start_timeout_s,
        progress=progress,
    )


def _doorbell(context: RankContext, segment: Segment, progress: Progress) -> Doorbell:
    return Doorbell(segment, rank=context.rank, group=context.group_name, progress=progress)


def _ports(
    context: RankContext,
    segment: Segment,
    dispatcher: Dispatcher,
    vote: VotePort,
    shape: DispatchShape,
    progress: Progress,
    ready: Callable[[], None],
) -> Ports:
    ledger = Ledger()
    return Ports(
        dispatcher=RecordingDispatcher(dispatcher, ledger, shape.hidden),
        vote=RecordingVote(vote, ledger),
        progress=progress,
        ledger=ledger,
        ready=ready,
        abort=lambda: segment.abort(context.rank),
        close=segment.close,
    )


def _nothing() -> None:
    """What a group of one rank has to abort or close."""


_BACKENDS: dict[str, Callable[[RankContext, DispatchShape], Ports]] = {
    "gloo": _open_gloo,
    "shm": _open_shared_memory,
}
