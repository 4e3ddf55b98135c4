"""Row groups whose ranks are threads: the same code as between processes, without processes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
    """One member of a group; `log` holds (operation, rows sent)."""

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

    def start_all_gather(self, rows: Tensor) -> Gather:
        return Gathered(self.all_gather(rows))

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        assert len(rows) == sum(sizes)
        summed = torch.stack(self._meet("reduce_scatter", rows)).sum(0)
        return summed.split(list(sizes))[self.rank]

    def _meet(self, operation: str, rows: Tensor) -> list[Tensor]:
        self.log.append((operation, len(rows)))
        # A copy: members may go on and write into what they sent.
        met = self._meeting.exchange(self.rank, (operation, rows.clone()))
        assert len({other for other, _ in met}) == 1, [other for other, _ in met]
        return [values for _, values in met]


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
