"""Joining a world of ranks: the segment is mapped, everybody has come, and has the same sizes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from engine.parallel.areas import AreaPlan
from engine.parallel.dispatch import DispatchShape
from engine.parallel.errors import GeometryMismatch, LayoutError
from engine.parallel.exchange import Exchange
from engine.parallel.layout import Channel, RunLayout
from engine.parallel.shared_memory import Progress, Segment
from engine.parallel.table_rows import RowTable
from engine.parallel.worker import RankContext


class World:
    """One rank's view of its world, from which the ends of its channels are made.

    Args:
        context: from `run_group`, of several ranks.
        run: layout of the world.
        shape: sizes of the dispatch ports.
        tables: whose rows the world holds.

    Raises:
        LayoutError: the layout is of another number of ranks.
        GeometryMismatch: another rank came with other sizes or another layout.
        GroupError: another rank is late or lost.
    """

    def __init__(
        self,
        context: RankContext,
        run: RunLayout,
        shape: DispatchShape,
        tables: Sequence[RowTable] = (),
    ) -> None:
        """Waits for all ranks; a collective."""
        layout = run.layout
        if layout.world_size != context.num_ranks:
            raise LayoutError(
                [
                    (
                        "SIZE",
                        f"layout {run} has {layout.world_size} ranks, but {context.num_ranks} were "
                        f"started: start as many as the layout has",
                    )
                ]
            )
        self.context = context
        self.rank = context.rank
        self.run = run
        self.progress = Progress(step_kind="start")
        self.segment = Segment(context.segment_fd, context.num_ranks)
        self.channels = {
            channel.purpose: channel
            for channel in layout.channels(context.rank, has_domain=not run.all_to_all)
        }
        self._start = self.exchange("start")
        self._body: memoryview | None = None
        self._areas = AreaPlan()
        self._compare(shape, tables)

    def meet(self) -> None:
        """Waits until every rank of the world has called it as often."""
        self._start.publish()
        self._start.wait("start")

    def map_areas(self, areas: AreaPlan) -> None:
        """Maps the body; every rank with an equal plan, once."""
        self._areas = areas
        self._body = self.segment.map_body(areas.num_bytes)

    def area(self, channel: Channel) -> memoryview:
        """This rank's group's area of a channel."""
        assert self._body is not None, "areas are mapped first"
        return self._areas.find(self._body, channel.purpose, channel.members)

    def exchange(self, purpose: str, channel: Channel | None = None) -> Exchange:
        """This rank's end of a channel, in shared memory; without a channel over all ranks."""
        return Exchange(
            self.segment,
            purpose,
            rank=self.rank,
            group=self.name_of(channel),
            timeout_s=self.context.collective_timeout_s,
            start_timeout_s=self.context.start_timeout_s,
            progress=self.progress,
            members=channel.members if channel else None,
        )

    def name_of(self, channel: Channel | None) -> str:
        """Name of a group in messages: that of the world alone where it has all ranks."""
        name = self.context.group_name
        if channel is None or len(channel.members) == self.context.num_ranks:
            return name
        return f"{name} {channel}"

    def _compare(self, shape: DispatchShape, tables: Sequence[RowTable]) -> None:
        geometry = self.segment.geometry()
        told = (self.run, shape.result_hidden, *tables)
        layout_code = zlib.crc32(" ".join(map(str, told)).encode())
        geometry[self.rank] = (shape.hidden, shape.top_k, shape.max_tokens, layout_code)
        self.meet()
        mine = geometry[self.rank].tolist()
        for rank, sizes in enumerate(geometry.tolist()):
            if sizes[:3] != mine[:3]:
                raise GeometryMismatch(
                    f"group {self.context.group_name}: rank {self.rank} opened its ports with "
                    f"(hidden, top_k, max_tokens) = {_text(mine)}, rank {rank} with "
                    f"{_text(sizes)}: give all ranks the same model and limits"
                )
            if sizes != mine:
                raise GeometryMismatch(
                    f"group {self.context.group_name}: rank {self.rank} came with layout "
                    f"{self.run} and {len(tables)} tables, rank {rank} with others: give all ranks "
                    "the same"
                )


def _text(sizes: Sequence[int]) -> str:
    return str(tuple(sizes[:3]))
