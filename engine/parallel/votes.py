"""Vote ports: one rank, shared memory, gloo. What they agree on is lockstep.py's business.

The doorbell of the shared-memory and gloo forms stands in the group's segment; see `Doorbell` for
why no ring is lost.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import numpy as np
import torch

from engine.parallel.channels import GlooChannel
from engine.parallel.errors import PeerLost
from engine.parallel.exchange import Exchange
from engine.parallel.futex import Fence
from engine.parallel.lockstep import IntArray
from engine.parallel.shared_memory import Progress, Segment, spread

_MARK_MASK = (1 << 22) - 1


class LocalVote:
    """The vote of a group of one rank."""

    def __init__(self, progress: Progress | None = None) -> None:
        """Starts with a silent doorbell."""
        self._progress = progress or Progress()
        self._rung = threading.Event()

    def reduce_max(self, vector: IntArray) -> IntArray:
        """The vector itself, copied."""
        self._progress.last_vector = tuple(vector.tolist())
        return vector.copy()

    def gather(self, vector: IntArray) -> IntArray:
        """The vector of the only rank."""
        return self.reduce_max(vector)[np.newaxis]

    def wait_for_work(self, timeout_s: float) -> None:
        """Sleeps until `ring` or the time-out."""
        self._rung.wait(timeout_s)
        self._rung.clear()

    def ring(self) -> None:
        """Wakes the step loop."""
        self._rung.set()


class Doorbell:
    """Wakes and puts to sleep the step loops of the ranks that vote together.

    A rest is the wait between the votes of rounds n and n + 1; every rank goes from one to the
    other through `wait` only. Each rank has a word that tells the last rest it has opened, and a
    rest is open once any of the words has reached it. The bell itself says no more than "look
    again": it changes after every change of a word.

    Invariants:
    - Nobody is left behind. A rank leaves a rest only when it is open, for everybody: words never
      fall, and a sleeper looks at them between reading the bell and sleeping on what it read. So
      if one rank votes again, every rank that is in that rest, or still comes to it, does too.
    - No ring is lost, whenever the ranks hear of it. A ring opens the rest after the round that its
      own rank votes in next. That rank may have looked for work already when it rang, but it looks
      again between that rest and the following vote. The rests before are open by that too.
    - A ring costs two idle rounds at most, since opening a rest does not open the next one.

    Args:
        segment: the world's memory; its groups of voters share one bell.
        rank: this rank.
        group: name of the group, for messages.
        progress: for messages.
        members: ranks that vote, this one among them; None is all.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        rank: int,
        group: str,
        progress: Progress,
        members: Sequence[int] | None = None,
    ) -> None:
        """Starts before round 1."""
        members = range(segment.num_ranks) if members is None else members
        self._segment = segment
        self._place = members.index(rank)
        self._group = group
        self._progress = progress
        self._round = 0
        self._opened = segment.opened_rests(members)
        self._fence = Fence()
        # Rings come from any thread, and none may lower the word of this rank.
        self._lock = threading.Lock()
        # 32 bits: rank in the high part, a running number below; values repeat after 2**22 rings.
        self._marks = ((rank << 22) | (number & _MARK_MASK) for number in itertools.count(1))

    def begin_round(self) -> None:
        """Counts a vote; to be called before this rank's vector is published."""
        self._round += 1

    def wait(self, timeout_s: float) -> None:
        """Sleeps until the rest after this rank's last vote is open; opens it after `timeout_s`."""
        bell = self._segment.doorbell
        while True:
            seen = bell.load()
            self._fence()
            self._check()
            if max(self._opened) >= self._round:
                return
            if not bell.wait(seen, timeout_s):
                self._open_rest(self._round)

    def ring(self) -> None:
        """Wakes all voters. Any thread."""
        self._open_rest(self._round + 1)

    def _open_rest(self, number: int) -> None:
        with self._lock:
            if self._opened[self._place] < number:
                self._opened[self._place] = number
            self._fence()
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
        progress: Progress,
    ) -> None:
        """Takes the world's segment and this rank's "vote" channel."""
        self._exchange = exchange
        self._doorbell = doorbell
        self._progress = progress
        self._tables = segment.votes()[:, spread(exchange.members)]
        self._own = [self._tables[parity, exchange.rank] for parity in (0, 1)]

    def reduce_max(self, vector: IntArray) -> IntArray:
        """Publishes this rank's vector, waits for the others, returns the MAX of each field."""
        reduced: IntArray = self._exchanged(vector).max(axis=0)
        self._progress.last_vector = tuple(reduced.tolist())
        return reduced

    def gather(self, vector: IntArray) -> IntArray:
        """Publishes this rank's vector, waits for the others, returns all of them."""
        vectors: IntArray = self._exchanged(vector).copy()
        self._progress.last_vector = tuple(vectors.max(axis=0).tolist())
        return vectors

    def _exchanged(self, vector: IntArray) -> IntArray:
        """The vectors of all ranks, in memory that the vote after the next one writes again."""
        self._doorbell.begin_round()
        parity = (self._exchange.number + 1) & 1
        self._own[parity][:] = vector
        self._exchange.publish()
        self._exchange.wait("vote")
        table: IntArray = self._tables[parity]
        return table

    def wait_for_work(self, timeout_s: float) -> None:
        """See `Doorbell.wait`."""
        self._doorbell.wait(timeout_s)

    def ring(self) -> None:
        """See `Doorbell.ring`."""
        self._doorbell.ring()


class GlooVote:
    """The vote as one all-reduce, or all-gather; the doorbell stays in the segment of the host."""

    def __init__(self, channel: GlooChannel, doorbell: Doorbell, progress: Progress) -> None:
        """Takes a channel that carries nothing but votes."""
        self._channel = channel
        self._doorbell = doorbell
        self._progress = progress

    def reduce_max(self, vector: IntArray) -> IntArray:
        """All-reduce with MAX; every rank gets the same vector."""
        self._doorbell.begin_round()
        result = vector.copy()
        self._channel.all_reduce_max(torch.from_numpy(result), "vote")
        self._progress.last_vector = tuple(result.tolist())
        return result

    def gather(self, vector: IntArray) -> IntArray:
        """All-gather; every rank gets the vectors of all."""
        self._doorbell.begin_round()
        gathered: IntArray = self._channel.all_gather(torch.from_numpy(vector), "vote").numpy()
        self._progress.last_vector = tuple(gathered.max(axis=0).tolist())
        return gathered

    def wait_for_work(self, timeout_s: float) -> None:
        """See `Doorbell.wait`."""
        self._doorbell.wait(timeout_s)

    def ring(self) -> None:
        """See `Doorbell.ring`."""
        self._doorbell.ring()
