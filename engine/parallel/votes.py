"""Vote ports: one rank, shared memory, gloo. What they agree on is lockstep.py's business.

The doorbell of the shared-memory and gloo forms is a word of the group's segment. Each ring
stores a value that was never stored before, so that a ring is never taken for an older one.
"""

from __future__ import annotations

import itertools
import threading

import torch

from engine.parallel.channels import GlooChannel
from engine.parallel.errors import PeerLost
from engine.parallel.lockstep import IntArray
from engine.parallel.shared_memory import Exchange, Progress, Segment


class LocalVote:
    """The vote of a group of one rank."""

    def __init__(self, progress: Progress | None = None) -> None:
        """Starts with a silent doorbell."""
        self._progress = progress or Progress()
        self._rung = threading.Event()

    def reduce_max(self, vector: IntArray) -> IntArray:
        """The vector itself, copied."""
        self._progress.step += 1
        return vector.copy()

    def wait_for_work(self, timeout_s: float) -> None:
        """Sleeps until `ring` or the time-out."""
        self._rung.wait(timeout_s)
        self._rung.clear()

    def ring(self) -> None:
        """Wakes the step loop."""
        self._rung.set()


class Doorbell:
    """Wakes and puts to sleep the step loops of all ranks of a segment.

    Args:
        segment: the group's memory.
        rank: this rank.
        group: name of the group, for messages.
        progress: for messages.
    """

    def __init__(self, segment: Segment, *, rank: int, group: str, progress: Progress) -> None:
        """Treats everything rung so far as heard later: the first wait may return at once."""
        self._segment = segment
        self._group = group
        self._progress = progress
        self._heard = 0
        # 32 bits: rank in the high part, a running number below; values repeat after 2**22 rings.
        self._marks = itertools.cycle(range((rank << 22) + 1, (rank + 1) << 22))

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a ring that was not heard yet. A rank whose time ran out rings itself.

        That keeps the group's idle rounds together: whoever goes back to vote has its peers come.
        """
        bell = self._segment.doorbell
        now = bell.load()
        if now == self._heard:
            self._check()
            if not bell.wait(now, timeout_s) and bell.load() == now:
                self.ring()
            self._check()
        self._heard = bell.load()

    def ring(self) -> None:
        """Wakes all ranks. Any thread."""
        self._segment.doorbell.store(next(self._marks))
        self._segment.doorbell.wake_all()

    def _check(self) -> None:
        culprit = self._segment.aborted_by()
        if culprit is not None:
            raise PeerLost(
                group=self._group,
                rank=culprit,
                reason="failed while this rank was idle",
                context=self._progress.describe(),
            )


class SharedMemoryVote:
    """The vote through two alternating tables of vectors in the segment."""

    def __init__(
        self,
        segment: Segment,
        exchange: Exchange,
        doorbell: Doorbell,
        rank: int,
        progress: Progress,
    ) -> None:
        """Takes the group's segment and this rank's "vote" channel."""
        self._exchange = exchange
        self._doorbell = doorbell
        self._progress = progress
        self._tables = segment.votes()
        self._own = [self._tables[parity, rank] for parity in (0, 1)]

    def reduce_max(self, vector: IntArray) -> IntArray:
        """Publishes this rank's vector, waits for the others, returns the MAX of each field."""
        parity = (self._exchange.number + 1) & 1
        self._own[parity][:] = vector
        self._exchange.publish()
        self._exchange.wait("vote")
        reduced: IntArray = self._tables[parity].max(axis=0)
        self._progress.step = self._exchange.number
        self._progress.last_vector = tuple(reduced.tolist())
        return reduced

    def wait_for_work(self, timeout_s: float) -> None:
        """See `Doorbell.wait`."""
        self._doorbell.wait(timeout_s)

    def ring(self) -> None:
        """See `Doorbell.ring`."""
        self._doorbell.ring()


class GlooVote:
    """The vote as one all-reduce; the doorbell stays in the segment of the host."""

    def __init__(self, channel: GlooChannel, doorbell: Doorbell, progress: Progress) -> None:
        """Takes a channel that carries nothing but votes."""
        self._channel = channel
        self._doorbell = doorbell
        self._progress = progress

    def reduce_max(self, vector: IntArray) -> IntArray:
        """All-reduce with MAX; every rank gets the same vector."""
        result = vector.copy()
        self._channel.all_reduce_max(torch.from_numpy(result), "vote")
        self._progress.step += 1
        self._progress.last_vector = tuple(result.tolist())
        return result

    def wait_for_work(self, timeout_s: float) -> None:
        """See `Doorbell.wait`."""
        self._doorbell.wait(timeout_s)

    def ring(self) -> None:
        """See `Doorbell.ring`."""
        self._doorbell.ring()
