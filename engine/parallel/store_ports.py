"""Opening the ports of a store rank: one that owns table rows and runs no step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.parallel.dispatch import DispatchShape
from engine.parallel.errors import LayoutError
from engine.parallel.joining import join_world
from engine.parallel.layout import RunLayout
from engine.parallel.table_rows import MappedTables, RowTable
from engine.parallel.worker import RankContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePorts:
    """The ports of a store rank, which owns table rows and runs no step.

    It loads its rows and calls `ready`. What it wrote stays while the world lives, so it may end.

    Args:
        tables: takes its rows.
        ready, abort, close: as in `Ports`.
    """

    tables: MappedTables
    ready: Callable[[], None]
    abort: Callable[[], None]
    close: Callable[[], None]


def open_store(
    context: RankContext,
    *,
    hidden: int,
    top_k: int,
    max_tokens: int,
    run: RunLayout,
    tables: Sequence[RowTable],
) -> StorePorts:
    """Opens the ports of a store rank: the counterpart of `open_ports`, with equal arguments.

    Raises:
        LayoutError: the layout gives this rank a step to run.
        GeometryMismatch, GroupError: as `open_ports`.
    """
    if context.rank < run.layout.num_engine_ranks:
        raise LayoutError(
            [("ROLE", f"rank {context.rank} of {run} runs an engine: open it with open_ports")]
        )
    shape = DispatchShape(hidden=hidden, top_k=top_k, max_tokens=max_tokens)
    world, mapped = join_world(context, run, shape, tables)
    if mapped is None:
        raise LayoutError([("ROLE", f"rank {context.rank} of {run} holds rows, but of no table")])
    world.meet()
    return StorePorts(
        tables=mapped,
        ready=world.meet,
        abort=lambda: world.segment.abort(world.rank),
        close=world.segment.close,
    )
