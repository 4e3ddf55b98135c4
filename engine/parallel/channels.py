"""Process groups, one per purpose, so that votes and experts never share a channel.

A channel wraps one gloo process group of its own (no default group is made). It is warmed with a
one-element all-reduce when it is built. Failures are translated: a time-out names the late ranks
from the numbers that each rank keeps in the group's segment, a lost peer names the culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, ReduceOp

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.shared_memory import Progress, Segment

_SLICE_S: Final = 0.05
_NAMED_WITHIN_SLICES: Final = 20

WorkStarter = Callable[[], dist.Work]


class GlooChannel:
    """One gloo process group over the members of a group, for one purpose. One thread.

    Args:
        descriptor: the rendezvous file.
        segment: the world's segment, where call numbers are kept.
        channel: "experts" or "vote".
        rank: this rank of the world; in the channel it is `self.rank`.
        group: name of the group, for messages.
        timeout_s: bound of every collective; `start_timeout_s` that of the first.
        progress: for messages.
        members: ranks of the group, `rank` among them; None is all.
    """

    def __init__(
        self,
        descriptor: int,
        segment: Segment,
        channel: str,
        *,
        rank: int,
        group: str,
        timeout_s: float,
        start_timeout_s: float,
        progress: Progress,
        members: Sequence[int] | None = None,
    ) -> None:
        """Connects the members and warms the group; a collective."""
        self._members = tuple(range(segment.num_ranks) if members is None else members)
        self.rank = self._members.index(rank)
        self.num_ranks = len(self._members)
        self.number = 0
        self._segment = segment
        self._words = segment.words(channel)
        self._group_name = group
        self._timeout_s = max(timeout_s, start_timeout_s)
        self._progress = progress
        # Any: the stubs of torch 2.13 know neither the options nor the collectives of the class.
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=self._timeout_s)
        store = FileStore(f"/proc/self/fd/{descriptor}", segment.num_ranks)
        prefix = PrefixStore(f"{channel}/{self._members[0]}", store)
        self._process_group = gloo(prefix, self.rank, self.num_ranks, options)
        self.all_reduce_max(torch.zeros(1, dtype=torch.int64), "start")
        self._timeout_s = timeout_s
        self._process_group._set_default_timeout(timedelta(seconds=timeout_s))

    def all_reduce_max(self, tensor: torch.Tensor, kind: str) -> None:
        """Reduces `tensor` in place with MAX."""
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        options.timeout = timedelta(seconds=self._timeout_s)
        self._run(kind, lambda: self._process_group.allreduce([tensor], options))

    def all_gather(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """The tensors of all members, stacked; they have equal shapes."""
        parts = [torch.empty_like(tensor) for _ in range(self.num_ranks)]
        self._run(kind, lambda: self._process_group.allgather(parts, tensor))
        return torch.stack(parts)

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        received_rows: list[int],
        sent_rows: list[int],
        kind: str,
    ) -> None:
        """Sends `sent_rows[r]` rows to each rank r and receives `received_rows[r]` from it.

        Both tensors are contiguous and hold the rows in rank order; zero rows are legal.
        """
        options = dist.AllToAllOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        self._run(
            kind,
            lambda: self._process_group.alltoall_base(
                received, sent, received_rows, sent_rows, options
            ),
        )

    def _run(self, kind: str, start: WorkStarter) -> None:
        self.number += 1
        self._words[self._members[self.rank]] = self.number
        try:
            start().wait()
        except RuntimeError as error:
            raise explain(
                error,
                segment=self._segment,
                words=self._words,
                members=self._members,
                number=self.number,
                kind=kind,
                group=self._group_name,
                waited_s=self._timeout_s,
                progress=self._progress,
            ) from error


def explain(
    error: RuntimeError,
    *,
    segment: Segment,
    words: memoryview,
    members: Sequence[int],
    number: int,
    kind: str,
    group: str,
    waited_s: float,
    progress: Progress,
) -> CollectiveTimeout | PeerLost:
    """Says what a failed collective means, by the numbers the members keep in the segment.

    Args:
        error: what the transport raised.
        segment: the group's memory; a late rank is marked there, so that all name the same one.
        words: of the channel, one per rank of the whole group.
        members: ranks that take part.
        number: of this collective on its channel.
        kind: of the collective.
        group: name, for the message.
        waited_s: the bound.
        progress: for the message.
    """
    culprit = segment.aborted_by()
    late_ranks = [rank for rank in members if words[rank] < number]
    text = str(error).lower()
    is_timeout = "timed out" in text or "timeout" in text
    if culprit is None and not late_ranks and not is_timeout:
        # A rank that died in the middle of an exchange; its supervisor knows which, in a moment.
        for _ in range(_NAMED_WITHIN_SLICES):
            segment.doorbell.wait(segment.doorbell.load(), _SLICE_S)
            culprit = segment.aborted_by()
            if culprit is not None:
                break
    if culprit is None and late_ranks and is_timeout:
        segment.abort(late_ranks[0])
        return CollectiveTimeout(
            group=group,
            kind=kind,
            number=number,
            late_ranks=late_ranks,
            waited_s=waited_s,
            context=progress.describe(),
        )
    return PeerLost(
        group=group,
        rank=culprit if culprit is not None else next(iter(late_ranks), -1),
        reason=f"was lost in {kind} exchange {number}",
        context=progress.describe(),
    )
