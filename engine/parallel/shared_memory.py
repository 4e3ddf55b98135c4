"""The memory segment of a world of ranks.

The segment is an anonymous memory file made by the supervisor and inherited by its ranks: it has
no name, so nothing is left behind whatever dies. The header holds, for each channel, one sequence
word per rank and one gate to sleep on per group of ranks; further a doorbell with one word per
rank, an abort word and the ranks' geometry. How words and gates are used is exchange.py's business.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.futex import FutexWord

IntArray = npt.NDArray[np.int64]

HEADER_BYTES: Final = 512 * 1024
MAX_RANKS: Final = 512
VOTE_FIELDS: Final = 9
GEOMETRY_FIELDS: Final = 4

# "rows" is for row groups that belong to no layout.
CHANNELS: Final = (
    "experts",
    "vote",
    "start",
    "attention",
    "sequence",
    "domain",
    "rows",
    "plans",
    "plans_read",
)

# Byte offsets in the header. Words that are slept on stand on cache lines of their own.
_LINE = 64
_ABORT = 0
_DOORBELL = _LINE
_LEFT = 2 * 1024
_OPENED_RESTS = 4 * 1024
_WORDS = 8 * 1024
_WAITING = 48 * 1024
_GEOMETRY = 56 * 1024
_VOTES = 72 * 1024
_GATES = 144 * 1024


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a rank was doing, for the messages of its collectives. Written by the step loop.

    Args:
        step: number of the last agreed step; votes that ran nothing do not count.
        step_kind: kind of that step, as text.
        last_vector: the last reduced vote; on followers that of the step, as their leader told.
    """

    step: int = 0
    step_kind: str = "none"
    last_vector: tuple[int, ...] = ()

    def begin_step(self, step: int, step_kind: str, vector: tuple[int, ...]) -> None:
        """Notes the agreed step that begins."""
        self.step, self.step_kind, self.last_vector = step, step_kind, vector

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
        self._gates: dict[tuple[str, int], FutexWord] = {}
        self._left = self._view[_LEFT : _LEFT + 4 * num_ranks].cast("i")
        self._waiting = self._view[_WAITING : _WAITING + 4 * num_ranks].cast("i")

    def words(self, channel: str, members: Sequence[int] | None = None) -> memoryview:
        """The sequence words of a channel, one int64 per member; without members, per rank."""
        start = _WORDS + CHANNELS.index(channel) * 8 * MAX_RANKS
        words = self._view[start : start + 8 * self.num_ranks].cast("q")
        return words if members is None else words[spread(members)]

    def gate(self, channel: str, leader: int = 0) -> FutexWord:
        """The word on which the waiters of a group sleep; `leader` is its first member."""
        key = (channel, leader)
        if key not in self._gates:
            place = CHANNELS.index(channel) * MAX_RANKS + leader
            self._gates[key] = FutexWord(self._view, _GATES + _LINE * place)
        return self._gates[key]

    def map_body(self, num_bytes: int) -> memoryview:
        """Maps the areas of all channels, all zero at first. Every rank asks for the same size.

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

    def opened_rests(self, members: Sequence[int] | None = None) -> memoryview:
        """The last rest that each member has opened, one int64 per member; see votes.py."""
        end = _OPENED_RESTS + 8 * self.num_ranks
        rests = self._view[_OPENED_RESTS:end].cast("q")
        return rests if members is None else rests[spread(members)]

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

    def set_waiting(self, rank: int, is_waiting: bool) -> None:
        """Notes that a rank waits for others in an exchange, for longer than a moment."""
        self._waiting[rank] = is_waiting

    def is_waiting(self, rank: int) -> bool:
        """Whether a rank waits for others itself, and is late because of them."""
        return bool(self._waiting[rank])

    def wake_everybody(self) -> None:
        """Wakes all sleepers of the world, so that they look at the abort word."""
        self.doorbell.wake_all()
        for channel in CHANNELS:
            for leader in range(self.num_ranks):
                self.gate(channel, leader).wake_all()

    def close(self) -> None:
        """Unmaps, unless arrays handed out still point into the mapping. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for word in (*self._gates.values(), self.doorbell, self._abort):
            word.close()
        self._left.release()
        self._waiting.release()
        for mapping in (self._view, self._mmap, self._body):
            with contextlib.suppress(BufferError):
                if isinstance(mapping, memoryview):
                    mapping.release()
                elif mapping is not None:
                    mapping.close()


def spread(members: Sequence[int]) -> slice:
    """Evenly spaced ranks as a slice; the groups over one axis of a view are all of that form.

    Raises:
        ValueError: they are not.
    """
    first = members[0]
    step = members[1] - first if len(members) > 1 else 1
    if step < 1 or list(members) != list(range(first, first + step * len(members), step)):
        raise ValueError(f"ranks {list(members)} do not stand at even distances, in order")
    return slice(first, members[-1] + 1, step)
