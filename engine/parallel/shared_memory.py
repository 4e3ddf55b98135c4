"""The memory segment of one group of ranks, and the exchange primitive on it.

The segment is an anonymous memory file made by the supervisor and inherited by its ranks: it has
no name, so nothing is left behind whatever dies. The header holds, for each channel, one sequence
word per rank and one gate to sleep on; further a doorbell with one word per rank, an abort word and
the ranks' geometry.

How an exchange works: a rank writes its area, stores the exchange's number in its own word and
waits until every word has reached that number. Whoever sees that first stores the number in the
gate and wakes the sleepers, so that an exchange costs one wake-up in all, not one per peer.

Invariants:
- A word is written by one rank only and grows by one per exchange.
- A rank is at most one exchange ahead of any other: to publish n + 1 it must have seen all words
  at n. So two areas (parities) per channel suffice: whoever writes exchange n + 2 has seen every
  rank publish n + 1, which a rank does only after it has finished reading exchange n.
- Time is counted in sleeps that ended by their own time-out, so no clock is read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.futex import Fence, FutexWord

IntArray = npt.NDArray[np.int64]

HEADER_BYTES: Final = 144 * 1024
MAX_RANKS: Final = 512
VOTE_FIELDS: Final = 9
GEOMETRY_FIELDS: Final = 3

# Byte offsets in the header. Words that are slept on stand on cache lines of their own.
_ABORT = 0
_DOORBELL = 64
_GATES = 128
_WORDS = 4096
_LEFT = 16 * 1024
_GEOMETRY = 20 * 1024
_OPENED_RESTS = 32 * 1024
_VOTES = 48 * 1024
_ROW_WORDS = 120 * 1024
_CHANNELS = {"experts": 0, "vote": 1, "start": 2}
# Channels that move rows over other transports keep their numbers here, for messages only.
_ROW_CHANNELS = {"attention": 0, "sequence": 1, "domain": 2, "rows": 3}

_SLICE_S: Final = 0.05
# One chance for a peer on the same core; more would hold the interpreter lock while others compute.
_SPIN_YIELDS: Final = 1
_GATE_MASK: Final = 0x7FFFFFFF


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a rank was doing, for the messages of its collectives. Written by the step loop.

    Args:
        step: number of votes so far, which is the step number of the group.
        step_kind: kind of the step in progress, as text.
        last_vector: the last reduced vote.
    """

    step: int = 0
    step_kind: str = "none"
    last_vector: tuple[int, ...] = ()

    def describe(self) -> str:
        """Step number, kind and last agreed vector in one phrase."""
        return f"step {self.step}, kind {self.step_kind}, last vote {list(self.last_vector)}"


def create_segment() -> int:
    """Makes the anonymous memory file of a group and returns its descriptor.

    The caller owns the descriptor. Ranks enlarge the file to what their geometry needs.
    """
    descriptor = os.memfd_create("disagg-group", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, HEADER_BYTES)
    return descriptor


def create_rendezvous() -> int:
    """Makes the anonymous memory file through which gloo ranks find each other.

    The caller owns the descriptor.
    """
    return os.memfd_create("disagg-rendezvous", os.MFD_CLOEXEC)


class Segment:
    """One process's mapping of the segment: the header, and the body once its size is agreed.

    Args:
        descriptor: the memory file; not closed here.
        num_ranks: ranks of the group.
    """

    def __init__(self, descriptor: int, num_ranks: int) -> None:
        """Maps the header."""
        if not 1 <= num_ranks <= MAX_RANKS:
            raise ValueError(f"num_ranks {num_ranks} is not in 1..{MAX_RANKS}: split the group")
        self.num_ranks = num_ranks
        self._descriptor = descriptor
        self._mmap = mmap.mmap(descriptor, HEADER_BYTES)
        self._body: mmap.mmap | None = None
        self._view = memoryview(self._mmap)
        self._is_closed = False
        self.doorbell = FutexWord(self._view, _DOORBELL)
        self._abort = FutexWord(self._view, _ABORT)
        self._gates = [FutexWord(self._view, _GATES + 64 * i) for i in range(len(_CHANNELS))]
        self._left = self._view[_LEFT : _LEFT + 4 * num_ranks].cast("i")

    def words(self, channel: str) -> memoryview:
        """The sequence words of a channel, one int64 per rank."""
        if channel in _CHANNELS:
            start = _WORDS + _CHANNELS[channel] * 8 * MAX_RANKS
        else:
            start = _ROW_WORDS + _ROW_CHANNELS[channel] * 8 * MAX_RANKS
        return self._view[start : start + 8 * self.num_ranks].cast("q")

    def gate(self, channel: str) -> FutexWord:
        """The word on which the waiters of a channel sleep."""
        return self._gates[_CHANNELS[channel]]

    def map_body(self, num_bytes: int) -> memoryview:
        """Maps the dispatch areas, all zero at first. Every rank asks for the same size.

        Pages cost memory only once they are touched.
        """
        size = HEADER_BYTES + num_bytes
        os.ftruncate(self._descriptor, size)
        self._body = mmap.mmap(self._descriptor, size)
        return memoryview(self._body)[HEADER_BYTES:]

    def votes(self) -> IntArray:
        """The vote vectors, [2 parities, num_ranks, VOTE_FIELDS] int64."""
        shape = (2, self.num_ranks, VOTE_FIELDS)
        count = 2 * self.num_ranks * VOTE_FIELDS
        return np.frombuffer(self._view, np.int64, count, _VOTES).reshape(shape)

    def opened_rests(self) -> memoryview:
        """The last rest that each rank has opened, one int64 per rank; see votes.py."""
        end = _OPENED_RESTS + 8 * self.num_ranks
        return self._view[_OPENED_RESTS:end].cast("q")

    def geometry(self) -> IntArray:
        """What each rank opened its ports with, [num_ranks, GEOMETRY_FIELDS] int64."""
        count = self.num_ranks * GEOMETRY_FIELDS
        flat = np.frombuffer(self._view, np.int64, count, _GEOMETRY)
        return flat.reshape(self.num_ranks, GEOMETRY_FIELDS)

    def abort(self, rank: int) -> None:
        """Marks the group as lost because of `rank`, and wakes everybody. The first mark stays."""
        if self._abort.load() == 0:
            self._abort.store(rank + 1)
        self.wake_everybody()

    def aborted_by(self) -> int | None:
        """The rank that the group was lost to, or None."""
        mark = self._abort.load()
        return mark - 1 if mark else None

    def mark_left(self, rank: int) -> None:
        """Notes that a rank ended cleanly: whoever waits for it waits in vain."""
        self._left[rank] = 1
        self.wake_everybody()

    def has_left(self, rank: int) -> bool:
        """Whether a rank ended cleanly."""
        return bool(self._left[rank])

    def wake_everybody(self) -> None:
        """Wakes all sleepers of the group, so that they look at the abort word."""
        for word in (*self._gates, self.doorbell):
            word.wake_all()

    def close(self) -> None:
        """Unmaps, unless arrays handed out still point into the mapping. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for word in (*self._gates, self.doorbell, self._abort):
            word.close()
        self._left.release()
        for mapping in (self._view, self._mmap, self._body):
            with contextlib.suppress(BufferError):
                if isinstance(mapping, memoryview):
                    mapping.release()
                elif mapping is not None:
                    mapping.close()


class Exchange:
    """A channel of one rank: publish, then wait for all peers. One thread.

    Args:
        segment: the group's memory.
        channel: "experts", "vote" or "start"; channels count independently.
        rank: this rank.
        group: name of the group, for messages.
        timeout_s: bound of one wait; `start_timeout_s` is that of the channel's first, since
            ranks become ready at different times.
        progress: shared with the other channels of the rank, for messages.
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
    ) -> None:
        """Starts at exchange 0: nothing published."""
        self.number = 0
        self._segment = segment
        self._rank = rank
        self._num_ranks = segment.num_ranks
        self._group = group
        self._timeout_s = timeout_s
        self._first_timeout_s = max(timeout_s, start_timeout_s)
        self._progress = progress
        self._words = segment.words(channel)
        self._gate = segment.gate(channel)
        self._fence = Fence()

    def publish(self) -> None:
        """Declares this rank's area of the next exchange written."""
        self.number += 1
        self._fence()
        self._words[self._rank] = self.number

    def wait(self, kind: str) -> None:
        """Returns when every rank has published the exchange this rank published last.

        Raises:
            CollectiveTimeout: somebody did not come; names who.
            PeerLost: the group was given up, or a missing rank has ended.
        """
        number, words, num_ranks, gate = self.number, self._words, self._num_ranks, self._gate
        rank = 0
        yields = 0
        slept_s = 0.0
        while True:
            while rank < num_ranks and words[rank] >= number:
                rank += 1
            if rank == num_ranks:
                break
            if yields < _SPIN_YIELDS:
                yields += 1
                os.sched_yield()
                continue
            seen = gate.load()
            if words[rank] >= number:
                continue
            self._check_peers(kind)
            if not gate.wait(seen, _SLICE_S):
                slept_s += _SLICE_S
                self._check_time(kind, slept_s)
        self._fence()
        mark = number & _GATE_MASK
        if gate.load() != mark:
            gate.store(mark)
            gate.wake_all()

    def late_ranks(self) -> list[int]:
        """Who has not published the exchange this rank published last."""
        return [rank for rank, word in enumerate(self._words) if word < self.number]

    def _check_peers(self, kind: str) -> None:
        culprit = self._segment.aborted_by()
        if culprit is not None:
            raise PeerLost(
                group=self._group,
                rank=culprit,
                reason=f"failed while this rank waited in {kind} exchange {self.number}",
                context=self._progress.describe(),
            )
        for rank in self.late_ranks():
            if self._segment.has_left(rank):
                raise PeerLost(
                    group=self._group,
                    rank=rank,
                    reason=f"has ended before {kind} exchange {self.number}",
                    context=self._progress.describe(),
                )

    def _check_time(self, kind: str, slept_s: float) -> None:
        bound_s = self._first_timeout_s if self.number == 1 else self._timeout_s
        if slept_s >= bound_s:
            late_ranks = self.late_ranks()
            # All peers, and the supervisor, then name the same culprit.
            self._segment.abort(late_ranks[0])
            raise CollectiveTimeout(
                group=self._group,
                kind=kind,
                number=self.number,
                late_ranks=late_ranks,
                waited_s=bound_s,
                context=self._progress.describe(),
            )
