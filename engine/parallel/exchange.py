"""The exchange: how the members of a group of ranks meet in shared memory.

How an exchange works: a rank writes its area, stores the exchange's number in its own word and
waits until every word of its group has reached that number. Whoever sees that first stores the
number in the group's gate and wakes the sleepers, so that an exchange costs one wake-up in all, not
one per peer.

Invariants:
- The groups of a channel are disjoint, so a rank has one word per channel. It is written by that
  rank only and grows by one per exchange.
- A rank is at most one exchange ahead of any other of its group, unless it publishes ahead: to
  publish n + 1 it must have seen all words at n. So two areas (parities) per channel suffice:
  whoever writes exchange n + 2 has seen every rank publish n + 1, which a rank does only after it
  has finished reading exchange n. Whoever publishes up to w exchanges ahead needs 2 * w areas.
- Time is counted in sleeps that ended by their own time-out, so no clock is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.futex import Fence
from engine.parallel.shared_memory import Progress, Segment

_SLICE_S: Final = 0.05
# One chance for a peer on the same core; more would hold the interpreter lock while others compute.
_SPIN_YIELDS: Final = 1
_GATE_MASK: Final = 0x7FFFFFFF


class Exchange:
    """A channel of one rank: publish, then wait for all peers of its group. One thread.

    Args:
        segment: the world's memory.
        channel: a name in `CHANNELS`; channels count independently.
        rank: this rank.
        group: name of the group, for messages.
        timeout_s: bound of one wait; `start_timeout_s` is that of the channel's first, since
            ranks become ready at different times.
        progress: shared with the other channels of the rank, for messages.
        members: ranks of the group, `rank` among them; None is all.
    """

    def __init__(
        self,
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
        """Starts at exchange 0: nothing published."""
        self.number = 0
        self.members = tuple(range(segment.num_ranks) if members is None else members)
        self.rank = self.members.index(rank)
        self._segment = segment
        self._group = group
        self._timeout_s = timeout_s
        self._first_timeout_s = max(timeout_s, start_timeout_s)
        self._progress = progress
        self._words = segment.words(channel, self.members)
        self._gate = segment.gate(channel, self.members[0])
        self._fence = Fence()
        self._is_marked = False

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.members)

    def publish(self) -> None:
        """Declares this rank's area of the next exchange written."""
        self.number += 1
        self._fence()
        self._words[self.rank] = self.number

    def publish_ahead(self) -> int:
        """Publishes an exchange that is waited for later; returns its number.

        Since this rank may come late to its own wait, it wakes those it was the last to be missed
        by now.
        """
        self.publish()
        self._fence()
        if min(self._words) >= self.number:
            self._open_gate(self.number)
        return self.number

    def wait(self, kind: str, number: int | None = None) -> None:
        """Returns when every member has published an exchange; by default this rank's last.

        Raises:
            CollectiveTimeout: somebody did not come; names who.
            PeerLost: the group was given up, or a missing rank has ended.
        """
        number = self.number if number is None else number
        try:
            self._wait(kind, number)
        finally:
            if self._is_marked:
                self._segment.set_waiting(self.members[self.rank], False)
                self._is_marked = False
        self._fence()
        self._open_gate(number)

    def _wait(self, kind: str, number: int) -> None:
        words, size, gate = self._words, self.size, self._gate
        member = 0
        yields = 0
        slept_s = 0.0
        while True:
            while member < size and words[member] >= number:
                member += 1
            if member == size:
                return
            if yields < _SPIN_YIELDS:
                yields += 1
                os.sched_yield()
                continue
            seen = gate.load()
            if words[member] >= number:
                continue
            self._check_peers(kind, number)
            if not gate.wait(seen, _SLICE_S):
                slept_s += _SLICE_S
                if not self._is_marked:
                    self._is_marked = True
                    self._segment.set_waiting(self.members[self.rank], True)
                self._check_time(kind, number, slept_s)

    def late_ranks(self, number: int | None = None) -> list[int]:
        """Who has not published an exchange; by default the one this rank published last."""
        number = self.number if number is None else number
        return [rank for rank, word in zip(self.members, self._words, strict=True) if word < number]

    def _open_gate(self, number: int) -> None:
        """Wakes the sleepers, unless somebody else did, or a later exchange is over too."""
        mark = number & _GATE_MASK
        ahead = (mark - self._gate.load()) & _GATE_MASK
        if 0 < ahead <= _GATE_MASK >> 1:
            self._gate.store(mark)
            self._gate.wake_all()

    def _check_peers(self, kind: str, number: int) -> None:
        culprit = self._segment.aborted_by()
        if culprit is not None:
            raise PeerLost(
                group=self._group,
                rank=culprit,
                reason=f"failed while this rank waited in {kind} exchange {number}",
                context=self._progress.describe(),
            )
        for rank in self.late_ranks(number):
            if self._segment.has_left(rank):
                raise PeerLost(
                    group=self._group,
                    rank=rank,
                    reason=f"has ended before {kind} exchange {number}",
                    context=self._progress.describe(),
                )

    def _check_time(self, kind: str, number: int, slept_s: float) -> None:
        bound_s = self._first_timeout_s if number == 1 else self._timeout_s
        if slept_s >= bound_s:
            late_ranks = self.late_ranks(number)
            if not late_ranks:
                return
            # Who waits for others is late because of them: somebody else is to blame.
            late_ranks = [
                rank for rank in late_ranks if not self._segment.is_waiting(rank)
            ] or late_ranks
            # All peers, and the supervisor, then name the same culprit.
            self._segment.abort(late_ranks[0])
            raise CollectiveTimeout(
                group=self._group,
                kind=kind,
                number=number,
                late_ranks=late_ranks,
                waited_s=bound_s,
                context=self._progress.describe(),
            )
