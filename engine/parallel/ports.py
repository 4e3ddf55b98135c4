"""Opening the ports of one rank, by the backend's name: dispatcher, vote, row groups, plans.

Opening is a collective: it returns when every rank of the world has opened with the same sizes and
the same layout, and every channel that carries rows has run once. `Ports.ready` is another one,
for when the rank has loaded its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.parallel.backends import require_backend
from engine.parallel.channels import GlooChannel
from engine.parallel.dispatch import Dispatcher, DispatchShape, LocalDispatcher
from engine.parallel.dispatch_gloo import GlooDispatcher
from engine.parallel.dispatch_shm import SharedMemoryDispatcher
from engine.parallel.errors import LayoutError
from engine.parallel.joining import ROW_CHANNELS, join_world
from engine.parallel.layout import Channel, RunLayout, data_parallel
from engine.parallel.ledger.record import (
    Ledger,
    RecordingDispatcher,
    RecordingRowGroup,
    RecordingTables,
    RecordingVote,
)
from engine.parallel.lockstep import VotePort
from engine.parallel.plans.queue import PlanQueue
from engine.parallel.rank_groups import LoneGroup, RankGroups
from engine.parallel.rows.gloo_group import GlooRowGroup
from engine.parallel.rows.modes import choose_path
from engine.parallel.rows.shm_group import SharedMemoryRowGroup
from engine.parallel.rows.transitions import RowGroup
from engine.parallel.shared_memory import Progress
from engine.parallel.table_rows import MappedTables, RowTable, lone_tables
from engine.parallel.votes import Doorbell, GlooVote, LocalVote, SharedMemoryVote
from engine.parallel.worker import RankContext
from engine.parallel.world import World

__all__ = ["Ports", "RankContext", "open_ports"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one rank, used by its step loop. `ring` and `abort` may come from any thread.

    Args:
        dispatcher: expert dispatch and combine.
        vote: step agreement, and the doorbell behind `vote.ring` and `vote.wait_for_work`; None on
            followers, for whom their leader votes.
        progress: what the rank is doing, for error messages; the step loop sets `step_kind`.
        ledger: the collectives of the rank; stays empty in a world of one, which has none.
        run: layout of the world.
        groups: who shares rows with this rank inside a step.
        plans: from the leader of an engine of several ranks to the others; None where each rank is
            an engine.
        tables: rows of sharded tables: a rank that owns some loads them before `ready`; None
            without tables.
        ready: waits until every rank called it, with the start timeout: a rank calls it when it is
            done loading, so that no peer meets it loading inside a step. Once.
        abort: marks the world as lost because of this rank, so that no peer waits for it.
        close: lets go of the segment. Twice is harmless.
    """

    dispatcher: Dispatcher
    vote: VotePort | None
    progress: Progress
    ledger: Ledger
    run: RunLayout
    groups: RankGroups = field(default_factory=RankGroups)
    plans: PlanQueue | None = None
    tables: RecordingTables | None = None
    ready: Callable[[], None]
    abort: Callable[[], None]
    close: Callable[[], None]

    @property
    def is_leader(self) -> bool:
        """Whether this rank schedules for its engine."""
        return self.plans is None or self.plans.is_leader


def open_ports(
    context: RankContext,
    *,
    hidden: int,
    top_k: int,
    max_tokens: int,
    run: RunLayout | None = None,
    tables: Sequence[RowTable] = (),
    result_hidden: int | None = None,
) -> Ports:
    """Opens the ports of this rank; a collective of the world.

    Args:
        context: from `run_group`, or `RankContext()` for a world of one rank.
        hidden: H, numbers per row.
        top_k: K, choices per row.
        max_tokens: most rows a rank ever dispatches in one step; memory is reserved (not
            touched) for ep * max_tokens * (top_k + 1) rows in each expert group.
        run: layout of the world, equal on all ranks; None is an engine on every rank, all of which
            share the experts.
        tables: tables whose rows the enp ranks share, equal on all ranks.
        result_hidden: numbers per result of an expert; None is H.

    Raises:
        GeometryMismatch: another rank opened with other sizes or another layout.
        GroupError: another rank is late or lost.
        LayoutError: the layout cannot exist, or is of another number of ranks.
        BackendMissing: a backend that cannot run on this host.
        ValueError: unknown backend, or a size below 1.
    """
    shape = DispatchShape(
        hidden=hidden, top_k=top_k, max_tokens=max_tokens, result_hidden=result_hidden
    )
    run = run or data_parallel(context.num_ranks)
    if context.num_ranks == 1 and run.layout.world_size == 1:
        return _open_local(shape, run, tables)
    require_backend(context.backend)
    if not run.layout.is_dp_family_sufficient:
        raise LayoutError(
            [("V2", f"the {run.layout.lockstep_block} ranks that step together do not fit {run}")]
        )
    world, mapped = join_world(context, run, shape, tables)
    return _open(world, shape, _BACKENDS[context.backend], mapped)


def _open_local(shape: DispatchShape, run: RunLayout, tables: Sequence[RowTable]) -> Ports:
    progress, ledger = Progress(), Ledger()
    return Ports(
        dispatcher=LocalDispatcher(shape),
        vote=LocalVote(progress),
        progress=progress,
        ledger=ledger,
        run=run,
        tables=RecordingTables(lone_tables(tables), ledger) if tables else None,
        ready=_nothing,
        abort=_nothing,
        close=_nothing,
    )


@dataclass(frozen=True, slots=True)
class _Backend:
    """How the ends of channels are made over one transport."""

    dispatcher: Callable[[World, Channel, DispatchShape], Dispatcher]
    vote: Callable[[World, Channel, Doorbell], VotePort]
    row_group: Callable[[World, Channel], RowGroup]


def _open(
    world: World, shape: DispatchShape, backend: _Backend, tables: MappedTables | None
) -> Ports:
    """Opens the channels of a rank, in the order of `Layout.channels` on every rank."""
    ledger, context, progress = Ledger(), world.context, world.progress
    vote: VotePort | None = None
    plans: PlanQueue | None = None
    dispatcher: Dispatcher | None = None
    rows: dict[str, RowGroup] = {}
    for purpose, channel in world.channels.items():
        if purpose == "vote":
            doorbell = Doorbell(
                world.segment,
                rank=world.rank,
                group=world.name_of(channel),
                progress=progress,
                members=channel.members,
            )
            vote = RecordingVote(backend.vote(world, channel, doorbell), ledger)
        elif purpose == "plans" and len(channel.members) > 1:
            plans = PlanQueue(
                world.segment,
                world.area(channel),
                members=channel.members,
                rank=world.rank,
                group=world.name_of(channel),
                timeout_s=context.collective_timeout_s,
                progress=progress,
            )
        elif purpose == "experts":
            made = backend.dispatcher(world, channel, shape)
            dispatcher = RecordingDispatcher(made, ledger, shape.hidden, shape.result_hidden)
        elif purpose in ROW_CHANNELS and len(channel.members) > 1:
            rows[purpose] = RecordingRowGroup(backend.row_group(world, channel), ledger, purpose)
    world.meet()
    assert dispatcher is not None
    return Ports(
        dispatcher=dispatcher,
        vote=vote,
        progress=progress,
        ledger=ledger,
        run=world.run,
        groups=_rank_groups(world.run, rows),
        plans=plans,
        tables=RecordingTables(tables, ledger) if tables is not None else None,
        ready=world.meet,
        abort=lambda: world.segment.abort(world.rank),
        close=world.segment.close,
    )


def _rank_groups(run: RunLayout, rows: dict[str, RowGroup]) -> RankGroups:
    """The row groups by the names layers know them by; those of one rank move nothing."""
    layout = run.layout
    path = choose_path(attn_dp=layout.dp, attn_tp=layout.attn_tp, all_to_all=run.all_to_all)
    return RankGroups(
        cp=rows.get("sequence", LoneGroup("cp")),
        attn_tp=rows.get("attention", LoneGroup("attn_tp")),
        domain=rows.get("domain", LoneGroup("domain")),
        path=path,
        moe_ep=1 if run.all_to_all else layout.ep,
    )


def _shm_dispatcher(world: World, channel: Channel, shape: DispatchShape) -> Dispatcher:
    return SharedMemoryDispatcher(world.area(channel), world.exchange("experts", channel), shape)


def _shm_vote(world: World, channel: Channel, doorbell: Doorbell) -> VotePort:
    exchange = world.exchange("vote", channel)
    return SharedMemoryVote(world.segment, exchange, doorbell, world.progress)


def _shm_row_group(world: World, channel: Channel) -> RowGroup:
    exchange = world.exchange(channel.purpose, channel)
    return SharedMemoryRowGroup(channel.family, exchange, world.area(channel))


def _gloo_channel(world: World, channel: Channel) -> GlooChannel:
    return GlooChannel(
        world.context.rendezvous_fd,
        world.segment,
        channel.purpose,
        rank=world.rank,
        group=world.name_of(channel),
        timeout_s=world.context.collective_timeout_s,
        start_timeout_s=world.context.start_timeout_s,
        progress=world.progress,
        members=channel.members,
    )


def _gloo_dispatcher(world: World, channel: Channel, shape: DispatchShape) -> Dispatcher:
    return GlooDispatcher(_gloo_channel(world, channel), shape)


def _gloo_vote(world: World, channel: Channel, doorbell: Doorbell) -> VotePort:
    return GlooVote(_gloo_channel(world, channel), doorbell, world.progress)


def _gloo_row_group(world: World, channel: Channel) -> RowGroup:
    return GlooRowGroup(world.context, channel, world.progress)


def _nothing() -> None:
    """What a world of one rank has to abort or close."""


_BACKENDS = {
    "gloo": _Backend(_gloo_dispatcher, _gloo_vote, _gloo_row_group),
    "shm": _Backend(_shm_dispatcher, _shm_vote, _shm_row_group),
}
