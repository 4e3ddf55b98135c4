"""The row group over gloo: one process group of its own for one group of ranks and one purpose.

Sums are taken on every rank in rank order after a gather, so that they are equal on all members
and independent of sizes; gloo's own ring would add chunks in different orders. Zero rows travel as
one dummy row, since a rank must join every collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore

from engine.parallel.channels import explain
from engine.parallel.layout.views import Channel
from engine.parallel.rows.transitions import Gather, Gathered, bytes_per_row
from engine.parallel.shared_memory import Progress, Segment
from engine.parallel.worker import RankContext


class GlooRowGroup:
    """One rank's member of a channel. One thread; all members call in the same order.

    Args:
        context: of a group whose backend is gloo.
        channel: who, and for what; opened by all its members.
        progress: for messages.

    Raises:
        ValueError: the context has no rendezvous, or this rank is no member.
    """

    def __init__(self, context: RankContext, channel: Channel, progress: Progress) -> None:
        """Connects the members and warms the channel; a collective, also for one member."""
        if context.rank not in channel.members:
            raise ValueError(f"rank {context.rank} is no member of {channel}")
        self.name = channel.family
        self.rank = channel.members.index(context.rank)
        self.size = len(channel.members)
        self.number = 0
        self._channel = channel
        self._group = context.group_name
        self._timeout_s = max(context.collective_timeout_s, context.start_timeout_s)
        self._progress = progress
        if self.size == 1:
            return
        if context.rendezvous_fd < 0:
            raise ValueError(f"{channel} needs a group with backend gloo, not {context.backend!r}")
        self._segment = Segment(context.segment_fd, context.num_ranks)
        self._words = self._segment.words(channel.purpose)
        # Any: the stubs of torch 2.13 know neither the options nor the collectives of the class.
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=self._timeout_s)
        store = FileStore(f"/proc/self/fd/{context.rendezvous_fd}", context.num_ranks)
        prefix = f"{channel.family}/{channel.purpose}/{channel.members[0]}"
        self._process_group = gloo(PrefixStore(prefix, store), self.rank, self.size, options)
        self.all_gather(torch.zeros(1, 1))
        self._timeout_s = context.collective_timeout_s
        self._process_group._set_default_timeout(timedelta(seconds=self._timeout_s))

    def all_reduce(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_reduce`."""
        return _ordered_sum(self._gather("all_reduce", rows))

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_gather`."""
        return self._gather("all_gather", rows).flatten(0, 1)

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.all_gather_sized`."""
        bytes_per_row(rows, sizes, self.rank)
        if self.size == 1:
            return rows
        received = rows.new_empty((sum(sizes), *rows.shape[1:]))
        sent = rows.repeat(self.size, *(1 for _ in rows.shape[1:]))
        self._exchange("sized_gather", received, sent, sizes, [len(rows)] * self.size)
        return received

    def start_all_gather(self, rows: Tensor) -> Gather:
        """See `RowGroup.start_all_gather`; over when it returns."""
        return Gathered(self.all_gather(rows))

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.reduce_scatter`."""
        if len(rows) != sum(sizes) or len(sizes) != self.size:
            raise ValueError(f"{len(rows)} rows do not split into {list(sizes)} for {self.size}")
        if self.size == 1:
            return rows
        own = sizes[self.rank]
        received = rows.new_empty((self.size * own, *rows.shape[1:]))
        self._exchange("reduce_scatter", received, rows.contiguous(), [own] * self.size, sizes)
        return _ordered_sum(received.unflatten(0, (self.size, own)))

    def _exchange(
        self,
        kind: str,
        received: Tensor,
        sent: Tensor,
        received_rows: Sequence[int],
        sent_rows: Sequence[int],
    ) -> None:
        """Sends each member its rows of `sent` and takes what the members have for this one."""
        options = dist.AllToAllOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        self._run(
            kind,
            lambda: self._process_group.alltoall_base(
                received, sent, list(received_rows), list(sent_rows), options
            ),
        )

    def _gather(self, kind: str, rows: Tensor) -> Tensor:
        """Members' rows, [size, rows, ...]."""
        if self.size == 1:
            return rows.unsqueeze(0)
        sent = rows.contiguous() if len(rows) else rows.new_zeros((1, *rows.shape[1:]))
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        self._run(kind, lambda: self._process_group.allgather(parts, sent))
        return torch.stack(parts)[:, : len(rows)]

    def _run(self, kind: str, start: Callable[[], dist.Work]) -> None:
        self.number += 1
        self._words[self._channel.members[self.rank]] = self.number
        try:
            start().wait()
        except RuntimeError as error:
            raise explain(
                error,
                segment=self._segment,
                words=self._words,
                members=self._channel.members,
                number=self.number,
                kind=kind,
                group=f"{self._group} {self._channel}",
                waited_s=self._timeout_s,
                progress=self._progress,
            ) from error


def _ordered_sum(parts: Tensor) -> Tensor:
    """Sum over the first axis, one member after the other."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
