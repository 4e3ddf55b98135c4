"""Process groups, one per purpose, so that votes and experts never share a channel.

A channel wraps one gloo process group of its own (no default group is made). It is warmed with a
one-element all-reduce when it is built. Failures are translated: a time-out names the late ranks
from the numbers that each rank keeps in the group's segment, a lost peer names the culprit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, ReduceOp

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.shared_memory import Progress, Segment

WorkStarter = Callable[[], dist.Work]


class GlooChannel:
    """One gloo process group over all ranks of a group, for one purpose. One thread.

    Args:
        descriptor: the rendezvous file.
        segment: the group's segment, where call numbers are kept.
        channel: "experts" or "vote".
        rank: this rank.
        group: name of the group, for messages.
        timeout_s: bound of every collective; `start_timeout_s` that of the first.
        progress: for messages.
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
    ) -> None:
        """Connects all ranks and warms the group; a collective."""
        self.rank = rank
        self.num_ranks = segment.num_ranks
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
        store = FileStore(f"/proc/self/fd/{descriptor}", self.num_ranks)
        self._process_group = gloo(PrefixStore(channel, store), rank, self.num_ranks, options)
        self.all_reduce_max(torch.zeros(1, dtype=torch.int64), "start")
        self._timeout_s = timeout_s
        self._process_group._set_default_timeout(timedelta(seconds=timeout_s))

    def all_reduce_max(self, tensor: torch.Tensor, kind: str) -> None:
        """Reduces `tensor` in place with MAX."""
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        options.timeout = timedelta(seconds=self._timeout_s)
        self._run(kind, lambda: self._process_group.allreduce([tensor], options))

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
        self._words[self.rank] = self.number
        try:
            start().wait()
        except RuntimeError as error:
            raise self._translate(kind, error) from error

    def _translate(self, kind: str, error: RuntimeError) -> CollectiveTimeout | PeerLost:
        culprit = self._segment.aborted_by()
        late_ranks = [rank for rank, word in enumerate(self._words) if word < self.number]
        text = str(error).lower()
        if culprit is None and late_ranks and ("timed out" in text or "timeout" in text):
            self._segment.abort(late_ranks[0])
            return CollectiveTimeout(
                group=self._group_name,
                kind=kind,
                number=self.number,
                late_ranks=late_ranks,
                waited_s=self._timeout_s,
                context=self._progress.describe(),
            )
        return PeerLost(
            group=self._group_name,
            rank=culprit if culprit is not None else next(iter(late_ranks), -1),
            reason=f"was lost in {kind} exchange {self.number}",
            context=self._progress.describe(),
        )
