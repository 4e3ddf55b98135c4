"""What a rank really sent: every collective of every step, by channel and operation.

Recording stands around the ports, so that no transport knows of it. Bytes are those of this rank's
rows, one for each choice: sent in a dispatch, received in a combine. The gloo form sends just that;
shared memory copies less, since peers read a row where it lies.

Invariant: the sequence of operations on a channel is equal on all its members, so their digests
are equal after the same number of steps; bytes may differ. Only one-sided channels are exempt.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.parallel.ledger.predict import ring_bytes
from engine.parallel.lockstep import IntArray, VotePort

if TYPE_CHECKING:
    from torch import Tensor

    from engine.parallel.dispatch import Dispatched, Dispatcher, DispatchHandle
    from engine.parallel.rows.transitions import Gather, RowGroup
    from engine.parallel.table_rows import MappedTables, PendingRows, RowSource

# A row travels with its weight and its slot.
_ROW_EXTRA_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective."""

    channel: str
    operation: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """Sums since the start.

    Args:
        num_steps: votes so far; each opens a step.
        counts, num_bytes: by (channel, operation).
        digests: of the sequence of operations, by channel.
    """

    num_steps: int
    counts: dict[tuple[str, str], int]
    num_bytes: dict[tuple[str, str], int]
    digests: dict[str, str]


class Ledger:
    """The log of one rank. One thread writes; others may read totals that are a step old.

    Args:
        kept_steps: how many steps' entries are kept, beside the totals.
    """

    __slots__ = ("_bytes", "_counts", "_hashes", "_steps", "num_steps")

    def __init__(self, *, kept_steps: int = 2) -> None:
        """Starts empty; what comes before the first vote belongs to no step."""
        self._counts: dict[tuple[str, str], int] = {}
        self._bytes: dict[tuple[str, str], int] = {}
        self._hashes: dict[str, hashlib.blake2b] = {}
        self._steps: deque[list[Entry]] = deque([[]], maxlen=kept_steps)
        self.num_steps = 0

    def begin_step(self) -> None:
        """A vote opens the next step."""
        self._steps.append([])
        self.num_steps += 1

    def record(self, channel: str, operation: str, num_bytes: int) -> None:
        """Notes one collective of the open step."""
        key = (channel, operation)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._bytes[key] = self._bytes.get(key, 0) + num_bytes
        if channel not in self._hashes:
            self._hashes[channel] = hashlib.blake2b(digest_size=8)
        self._hashes[channel].update(operation.encode() + b"\n")
        self._steps[-1].append(Entry(channel=channel, operation=operation, num_bytes=num_bytes))

    def open_step(self) -> tuple[Entry, ...]:
        """Entries since the last vote, that vote included."""
        return tuple(self._steps[-1])

    def totals(self) -> LedgerTotals:
        """Sums since the start; a copy."""
        return LedgerTotals(
            num_steps=self.num_steps,
            counts=dict(self._counts),
            num_bytes=dict(self._bytes),
            digests={channel: h.hexdigest() for channel, h in self._hashes.items()},
        )


class RecordingDispatcher:
    """A dispatcher whose calls are noted on channel "experts"."""

    def __init__(
        self, inner: Dispatcher, ledger: Ledger, hidden: int, result_hidden: int | None = None
    ) -> None:
        """Takes the port and the widths of a row and a result."""
        self._inner = inner
        self._ledger = ledger
        self._row_bytes = 4 * hidden
        self._result_bytes = 4 * (result_hidden or hidden)
        self._num_choices = 0

    @property
    def rank(self) -> int:
        """This rank."""
        return self._inner.rank

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self._inner.num_ranks

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        """See `Dispatcher.dispatch`."""
        sent = self._inner.dispatch(rows, slot_ids, weights, slots_per_rank)
        self._num_choices = int(np.count_nonzero(slot_ids.numpy() >= 0))
        num_bytes = self._num_choices * (self._row_bytes + _ROW_EXTRA_BYTES)
        self._ledger.record("experts", "dispatch", num_bytes)
        return sent

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        """See `Dispatcher.combine`."""
        combined = self._inner.combine(outputs, handle)
        self._ledger.record("experts", "combine", self._num_choices * self._result_bytes)
        return combined


class RecordingVote:
    """A vote port whose calls are noted on channel "vote"; each opens a step."""

    def __init__(self, inner: VotePort, ledger: Ledger) -> None:
        """Takes the port."""
        self._inner = inner
        self._ledger = ledger

    def reduce_max(self, vector: IntArray) -> IntArray:
        """See `VotePort.reduce_max`."""
        reduced = self._inner.reduce_max(vector)
        self._ledger.begin_step()
        self._ledger.record("vote", "all_reduce", vector.nbytes)
        return reduced

    def gather(self, vector: IntArray) -> IntArray:
        """See `VotePort.gather`."""
        vectors = self._inner.gather(vector)
        self._ledger.begin_step()
        self._ledger.record("vote", "all_gather", vector.nbytes)
        return vectors

    def wait_for_work(self, timeout_s: float) -> None:
        """See `VotePort.wait_for_work`."""
        self._inner.wait_for_work(timeout_s)

    def ring(self) -> None:
        """See `VotePort.ring`."""
        self._inner.ring()


class RecordingRowGroup:
    """A row group whose collectives are noted on a channel, with the bytes a ring would send."""

    def __init__(self, inner: RowGroup, ledger: Ledger, channel: str) -> None:
        """Takes the group and the name of its channel."""
        self._inner = inner
        self._ledger = ledger
        self._channel = channel

    @property
    def name(self) -> str:
        """See `RowGroup.name`."""
        return self._inner.name

    @property
    def rank(self) -> int:
        """See `RowGroup.rank`."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """See `RowGroup.size`."""
        return self._inner.size

    def all_reduce(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_reduce`."""
        self._note("all_reduce", 2 * ring_bytes(self.size, rows.nbytes))
        return self._inner.all_reduce(rows)

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_gather`."""
        self._note("all_gather", ring_bytes(self.size, rows.nbytes * self.size))
        return self._inner.all_gather(rows)

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.all_gather_sized`."""
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        self._note("sized_gather", ring_bytes(self.size, sum(sizes) * row_bytes))
        return self._inner.all_gather_sized(rows, sizes)

    def start_all_gather(self, rows: Tensor) -> Gather:
        """See `RowGroup.start_all_gather`; noted when it is issued."""
        self._note("all_gather", ring_bytes(self.size, rows.nbytes * self.size))
        return self._inner.start_all_gather(rows)

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.reduce_scatter`."""
        self._note("reduce_scatter", ring_bytes(self.size, rows.nbytes))
        return self._inner.reduce_scatter(rows, sizes)

    def _note(self, operation: str, num_bytes: int) -> None:
        if self.size > 1:
            self._ledger.record(self._channel, operation, num_bytes)


class RecordingTables:
    """Tables whose fetches are noted on channel "table", one per table, when they are issued.

    Fetches are one-sided: nobody waits for them, and their number may differ between ranks.
    """

    def __init__(self, inner: MappedTables, ledger: Ledger) -> None:
        """Takes the port."""
        self._inner = inner
        self._ledger = ledger

    def load(self, sources: Sequence[RowSource]) -> None:
        """See `MappedTables.load`."""
        self._inner.load(sources)

    def start_fetch(self, ids: Sequence[Tensor]) -> list[PendingRows]:
        """See `TableRows.start_fetch`."""
        pending = self._inner.start_fetch(ids)
        layout = self._inner.layout
        for asked, table in zip(ids, layout.tables, strict=True) if layout.enp > 1 else ():
            num_rows = int(np.count_nonzero(asked.numpy() >= 0))
            self._ledger.record("table", "fetch", num_rows * table.row_bytes)
        return pending

    def close(self) -> None:
        """See `TableRows.close`."""
        self._inner.close()
