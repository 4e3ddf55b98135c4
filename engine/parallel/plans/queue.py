"""A bounded queue of messages from the leader of an engine to its followers, in shared memory.

One writer, every follower reads everything, in order. A message of any size travels in pieces, each
in one of `NUM_SLOTS` slots of `SLOT_BYTES`; followers take a piece out before they wait for the
next, so a message may be larger than the queue.

Invariants:
- The leader's word of channel "plans" counts pieces written, a follower's word of "plans_read"
  those it has taken. A slot is written again only after all followers have taken it.
- Writing waits at most the time-out of collectives, then names the follower that does not keep up.
  Reading waits as long as it takes, since an idle engine plans nothing, but never for a world that
  is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.futex import Fence
from engine.parallel.shared_memory import Progress, Segment

NUM_SLOTS: Final = 10
SLOT_BYTES: Final = 1024 * 1024
_SLICE_S: Final = 0.05
_GATE_MASK: Final = 0x7FFFFFFF
# Bytes of the whole message that are still to come, this piece included.
_HEADER: Final = struct.Struct("<Q")
_PIECE_BYTES: Final = SLOT_BYTES - _HEADER.size

Buffer = bytes | bytearray | memoryview


def queue_area_bytes() -> int:
    """Bytes a queue takes in the segment's body, touched as needed."""
    return NUM_SLOTS * SLOT_BYTES


class PlanQueue:
    """One rank's end of the queue: the first member writes, the others read. One thread at a time.

    Args:
        segment: the world's memory.
        memory: the group's `queue_area_bytes`, in the body of the segment.
        members: ranks of the engine, leader first.
        rank: this rank.
        group: name of the group, for messages.
        timeout_s: how long the leader waits for a slow follower.
        progress: for messages.
    """

    def __init__(
        self,
        segment: Segment,
        memory: memoryview,
        *,
        members: Sequence[int],
        rank: int,
        group: str,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        """Starts with an empty queue."""
        self._segment = segment
        self._memory = memory
        self._members = tuple(members)
        self._place = self._members.index(rank)
        self._group = group
        self._timeout_s = timeout_s
        self._progress = progress
        self._written = segment.words("plans", self._members)
        self._taken = segment.words("plans_read", self._members)
        self._written_gate = segment.gate("plans", self._members[0])
        self._taken_gate = segment.gate("plans_read", self._members[0])
        self._fence = Fence()
        self._number = 0

    @property
    def is_leader(self) -> bool:
        """Whether this end writes."""
        return self._place == 0

    def put(self, parts: Sequence[Buffer]) -> None:
        """Sends a message to all followers. Leader.

        Args:
            parts: bytes of the message, one after the other; they may be reused at once.

        Raises:
            CollectiveTimeout: a follower does not take what was sent; names it.
            PeerLost: the world was given up.
        """
        left = sum(len(part) for part in parts)
        rest = [memoryview(part).cast("B") for part in parts if len(part)]
        while True:
            self._wait_for_room()
            begin = self._number % NUM_SLOTS * SLOT_BYTES
            slot = self._memory[begin : begin + SLOT_BYTES]
            _HEADER.pack_into(slot, 0, left)
            room, place = min(left, _PIECE_BYTES), _HEADER.size
            left -= room
            while room:
                taken = rest[0][:room]
                slot[place : place + len(taken)] = taken
                place += len(taken)
                room -= len(taken)
                rest[0] = rest[0][len(taken) :]
                if not len(rest[0]):
                    rest.pop(0)
            self._number += 1
            self._fence()
            self._written[0] = self._number
            self._written_gate.store(self._number & _GATE_MASK)
            self._written_gate.wake_all()
            if not left:
                return

    def take(self) -> bytearray:
        """The next message. Follower; waits until there is one.

        Raises:
            PeerLost: the world was given up, or the leader has ended.
        """
        message = bytearray()
        while True:
            self._wait_for_piece()
            begin = self._number % NUM_SLOTS * SLOT_BYTES
            slot = self._memory[begin : begin + SLOT_BYTES]
            (left,) = _HEADER.unpack_from(slot)
            room = min(left, _PIECE_BYTES)
            message += slot[_HEADER.size : _HEADER.size + room]
            self._number += 1
            self._fence()
            self._taken[self._place] = self._number
            self._taken_gate.store(self._number & _GATE_MASK)
            self._taken_gate.wake_all()
            if left == room:
                return message

    def late_ranks(self) -> list[int]:
        """Followers that have not taken the piece whose slot is needed next."""
        return [
            rank
            for rank, taken in zip(self._members[1:], list(self._taken)[1:], strict=True)
            if taken <= self._number - NUM_SLOTS
        ]

    def _wait_for_room(self) -> None:
        slept_s = 0.0
        while True:
            seen = self._taken_gate.load()
            self._fence()
            late_ranks = self.late_ranks()
            if not late_ranks:
                return
            self._check_world(f"sent plan {self._number + 1}")
            # Several followers share the gate, so it may show a lower number than before.
            if not self._taken_gate.wait(seen, _SLICE_S):
                slept_s += _SLICE_S
            if slept_s >= self._timeout_s:
                self._segment.abort(late_ranks[0])
                raise CollectiveTimeout(
                    group=self._group,
                    kind="plan",
                    number=self._number + 1,
                    late_ranks=late_ranks,
                    waited_s=self._timeout_s,
                    context=self._progress.describe(),
                )

    def _wait_for_piece(self) -> None:
        while True:
            seen = self._written_gate.load()
            self._fence()
            if self._written[0] > self._number:
                return
            self._check_world(f"waited for plan {self._number + 1}")
            if self._segment.has_left(self._members[0]):
                raise PeerLost(
                    group=self._group,
                    rank=self._members[0],
                    reason=f"has ended before plan {self._number + 1}",
                    context=self._progress.describe(),
                )
            self._written_gate.wait(seen, _SLICE_S)

    def _check_world(self, doing: str) -> None:
        culprit = self._segment.aborted_by()
        if culprit is not None:
            raise PeerLost(
                group=self._group,
                rank=culprit,
                reason=f"failed while this rank {doing}",
                context=self._progress.describe(),
            )
