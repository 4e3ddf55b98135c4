"""The row group in shared memory: each member writes its rows once, all read what they need.

Rows travel as bytes in pieces of a slot, so any size and any number type is welcome. A piece is an
exchange. Up to `MAX_IN_FLIGHT` of them may be issued before the first is taken, which is what lets
a gather be awaited late; the oldest are taken first, into the memory of their results.

Invariants:
- All members issue the same pieces in the same order, since their rows have equal shapes.
- A slot is written again only after all members have taken what stood in it: there are twice as
  many slots as pieces in flight (see `engine.parallel.exchange`).
- Sums run in rank order, on every member alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from engine.parallel.exchange import Exchange
from engine.parallel.rows.budget import MAX_IN_FLIGHT
from engine.parallel.rows.transitions import Gather, bytes_per_row

SLOT_BYTES: Final = 256 * 1024
_NUM_SLOTS: Final = 2 * MAX_IN_FLIGHT

# Gets the members' parts of a piece, [size, bytes] uint8, and keeps what it needs of them.
_Take = Callable[[Tensor], None]


def row_area_bytes(size: int) -> int:
    """Bytes that a group of `size` members takes in the segment's body; touched as needed."""
    return _NUM_SLOTS * size * SLOT_BYTES


class SharedMemoryRowGroup:
    """One rank's member of a channel. One thread; all members call in the same order.

    Args:
        name: of the group; states are tagged with it.
        exchange: this rank's end of the channel.
        memory: the group's `row_area_bytes`, in the body of the segment.

    Raises:
        GroupError: a member is late or lost.
    """

    def __init__(self, name: str, exchange: Exchange, memory: memoryview) -> None:
        """Warms the channel; a collective, also for one member."""
        self.name = name
        self.rank = exchange.rank
        self.size = exchange.size
        self._exchange = exchange
        slots = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = slots.view(_NUM_SLOTS, self.size, SLOT_BYTES)
        self._in_flight: deque[tuple[int, str, int, _Take]] = deque()
        self.all_reduce(torch.zeros(1))

    def all_reduce(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_reduce`."""
        return self._sum("all_reduce", rows, torch.empty_like(rows), 0)

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_gather`."""
        return self.start_all_gather(rows).wait()

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.all_gather_sized`."""
        row_bytes = bytes_per_row(rows, sizes, self.rank)
        result = rows.new_empty((sum(sizes), *rows.shape[1:]))
        sent, received = _bytes(rows), _bytes(result)
        parts_of = received.split([size * row_bytes for size in sizes])
        number = 0
        # All publish the pieces of the longest part, since pieces are exchanges.
        for begin, end in _pieces(max(sizes) * row_bytes):

            def take(parts: Tensor, begin: int = begin, end: int = end) -> None:
                for target, part in zip(parts_of, parts, strict=True):
                    wanted = target[begin:end]
                    wanted.copy_(part[: len(wanted)])

            number = self._issue("sized_gather", sent[begin:end], take, width=end - begin)
        self._take_until(number)
        return result

    def start_all_gather(self, rows: Tensor) -> Gather:
        """See `RowGroup.start_all_gather`."""
        result = rows.new_empty((self.size * len(rows), *rows.shape[1:]))
        sent, received = _bytes(rows), _bytes(result).view(self.size, -1)
        number = 0
        for begin, end in _pieces(len(sent)):

            def take(parts: Tensor, begin: int = begin, end: int = end) -> None:
                received[:, begin:end] = parts

            number = self._issue("all_gather", sent[begin:end], take)
        return _Issued(self, number, result)

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.reduce_scatter`."""
        if len(rows) != sum(sizes) or len(sizes) != self.size:
            raise ValueError(f"{len(rows)} rows do not split into {list(sizes)} for {self.size}")
        own = rows.new_empty((sizes[self.rank], *rows.shape[1:]))
        before = sum(sizes[: self.rank])
        row_bytes = rows.nbytes // len(rows) if len(rows) else 0
        return self._sum("reduce_scatter", rows, own, before * row_bytes)

    def _sum(self, kind: str, rows: Tensor, result: Tensor, first: int) -> Tensor:
        """Sums the bytes [first, first + length of the result) of all members' rows."""
        sent, target = _bytes(rows), _bytes(result)
        last, number = first + len(target), 0
        for begin, end in _pieces(len(sent)):

            def take(parts: Tensor, begin: int = begin, end: int = end) -> None:
                low, high = max(begin, first), min(end, last)
                if low < high:
                    wanted = parts[:, low - begin : high - begin].view(rows.dtype)
                    total = target[low - first : high - first].view(rows.dtype)
                    total.copy_(wanted[0])
                    for part in wanted[1:]:
                        total += part

            number = self._issue(kind, sent[begin:end], take)
        self._take_until(number)
        return result

    def _issue(self, kind: str, sent: Tensor, take: _Take, *, width: int | None = None) -> int:
        """Publishes a piece; takes the oldest one first if too many are in flight.

        Args:
            width: bytes of the members' longest piece; None is that of this one.
        """
        if len(self._in_flight) == MAX_IN_FLIGHT:
            self._take_until(self._in_flight[0][0])
        number = self._exchange.number + 1
        self._slots[number % _NUM_SLOTS, self.rank, : len(sent)] = sent
        self._exchange.publish_ahead()
        self._in_flight.append((number, kind, len(sent) if width is None else width, take))
        return number

    def _take_until(self, last: int) -> None:
        """Waits for pieces and takes them, oldest first, up to a number."""
        while self._in_flight and self._in_flight[0][0] <= last:
            number, kind, width, take = self._in_flight.popleft()
            self._exchange.wait(kind, number)
            take(self._slots[number % _NUM_SLOTS, :, :width])


class _Issued:
    """A gather in flight; its pieces are the last ones up to `number`."""

    __slots__ = ("_group", "_number", "_result")

    def __init__(self, group: SharedMemoryRowGroup, number: int, result: Tensor) -> None:
        self._group = group
        self._number = number
        self._result = result

    def wait(self) -> Tensor:
        self._group._take_until(self._number)
        return self._result


def _bytes(rows: Tensor) -> Tensor:
    """The bytes of rows, [bytes] uint8; a view where they are contiguous."""
    return rows.contiguous().view(-1).view(torch.uint8)


def _pieces(num_bytes: int) -> list[tuple[int, int]]:
    """Ranges of bytes that fit a slot; one empty range of nothing, since all must join."""
    return [
        (begin, min(begin + SLOT_BYTES, num_bytes))
        for begin in range(0, max(num_bytes, 1), SLOT_BYTES)
    ]
