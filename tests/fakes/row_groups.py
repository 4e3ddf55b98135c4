"""Row groups whose ranks are threads: the same code as between processes, without processes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.parallel.dispatch import Dispatched, DispatchHandle, order_local
from engine.parallel.rows.transitions import Gather, Gathered

BOUND_S = 20.0


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=BOUND_S)
        self.values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class ThreadGroup:
    """One member of a group; `log` holds (operation, rows sent, or those of all)."""

    def __init__(self, name: str, rank: int, meeting: _Meeting) -> None:
        self.name = name
        self.rank = rank
        self.size = len(meeting.values)
        self.log: list[tuple[str, int]] = []
        self._meeting = meeting

    def all_reduce(self, rows: Tensor) -> Tensor:
        return torch.stack(self._meet("all_reduce", rows)).sum(0)

    def all_gather(self, rows: Tensor) -> Tensor:
        parts = self._meet("all_gather", rows)
        assert len({part.shape for part in parts}) == 1, "members bring equally many rows"
        return torch.cat(parts)

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        assert len(rows) == sizes[self.rank]
        # Members bring different numbers; the size all of them agree on is that of the whole.
        parts = self._meet("sized_gather", rows, sum(sizes))
        assert [len(part) for part in parts] == list(sizes), "members bring what was agreed"
        return torch.cat(parts)

    def start_all_gather(self, rows: Tensor) -> Gather:
        return Gathered(self.all_gather(rows))

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        assert len(rows) == sum(sizes)
        summed = torch.stack(self._meet("reduce_scatter", rows)).sum(0)
        return summed.split(list(sizes))[self.rank]

    def _meet(self, operation: str, rows: Tensor, size: int | None = None) -> list[Tensor]:
        self.log.append((operation, len(rows) if size is None else size))
        # A copy: members may go on and write into what they sent.
        met = self._meeting.exchange(self.rank, (operation, rows.clone()))
        assert len({other for other, _ in met}) == 1, [other for other, _ in met]
        return [values for _, values in met]


class ThreadDispatcher:
    """One rank's member of an expert group made of threads.

    `sent` holds the rows of each dispatch that had at least one choice.
    """

    def __init__(self, group: ThreadGroup) -> None:
        self.rank = group.rank
        self.num_ranks = group.size
        self.sent: list[int] = []
        self._meeting = group._meeting
        self._number = 0

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        self.sent.append(int((slot_ids >= 0).any(1).sum()))
        met = self._meeting.exchange(self.rank, (rows.clone(), slot_ids.clone(), weights.clone()))
        ids = torch.cat([part[1] for part in met]).flatten().to(torch.int32).numpy()
        entries, slots = order_local(ids, self.rank * slots_per_rank, slots_per_rank)
        every = torch.from_numpy(entries)
        self._number += 1
        # All entries before those of this rank, so that results find back.
        self._first = sum(part[1].numel() for part in met[: self.rank])
        self._shape = tuple(slot_ids.shape)
        return Dispatched(
            torch.cat([part[0] for part in met])[every // slot_ids.shape[1]],
            torch.cat([part[2] for part in met]).flatten()[every],
            torch.from_numpy(slots.astype(np.int64)),
            DispatchHandle(entries, len(rows), None, self._number),
        )

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        tokens, top_k = self._shape
        combined = outputs.new_zeros(tokens * top_k, outputs.shape[1])
        for entries, results in self._meeting.exchange(
            self.rank, (handle.entries, outputs.clone())
        ):
            place = torch.from_numpy(entries) - self._first
            is_own = (place >= 0) & (place < len(combined))
            combined[place[is_own]] = results[is_own]
        return combined.view(tokens, top_k, outputs.shape[1])


def run_ranks(
    partitions: dict[str, Sequence[Sequence[int]]],
    num_ranks: int,
    work: Callable[..., Any],
) -> list[Any]:
    """Runs `work(rank, **groups)` on every rank; returns the results in rank order.

    Args:
        partitions: For each name the groups of ranks that partition the world.
        num_ranks: Size of the world.
        work: Called with the rank and, by name, its member of each group.
    """
    meetings = {
        name: [(tuple(group), _Meeting(len(group))) for group in groups]
        for name, groups in partitions.items()
    }
    results: list[Any] = [None] * num_ranks
    errors: dict[int, BaseException] = {}

    def serve(rank: int) -> None:
        groups = {
            name: ThreadGroup(name, members.index(rank), meeting)
            for name, found in meetings.items()
            for members, meeting in found
            if rank in members
        }
        try:
            results[rank] = work(rank, **groups)
        except BaseException as error:
            errors[rank] = error
            for found in meetings.values():
                for _, meeting in found:
                    meeting.barrier.abort()

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
        assert not thread.is_alive()
    if errors:
        # Broken barriers are the echo of the first error.
        raise next(
            (e for e in errors.values() if not isinstance(e, threading.BrokenBarrierError)),
            next(iter(errors.values())),
        )
    return results
