"""Expert dispatch through the shared memory of one host.

Two areas, written in turn: in a dispatch every rank writes its rows, ids and weights once, where
all peers read; in a combine every rank writes each result straight to the place of its (source,
row, choice), where the source reads. So nothing is sorted by the sender, a row is copied once per
expert it goes to, and the memory grows with ranks * max_tokens only.

Invariants:
- Dispatch and combine alternate, so their areas are the two parities of the exchange's rule: a
  rank writes an area again only after all ranks have published the exchange after the one that
  read it (shared_memory.py).
- A combine place has one writer: the rank of the slot.
- Ids of rows past a rank's count are -1 in the area, so readers need no counts to be right.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.parallel.dispatch import (
    Dispatched,
    DispatchHandle,
    DispatchShape,
    DispatchTurns,
    IntArray,
    SlotArray,
    check_ids,
    order_local,
)
from engine.parallel.exchange import Exchange

_ALIGN = 4096


def area_bytes(shape: DispatchShape, num_ranks: int) -> int:
    """Bytes the areas of a group take in the segment's body."""
    return sum(_area_sizes(shape, num_ranks))


class SharedMemoryDispatcher:
    """Dispatch between ranks that map one segment.

    Args:
        memory: the group's `area_bytes`, in the body of the segment.
        exchange: this rank's "experts" channel.
        shape: sizes, equal on all ranks (checked when the ports are opened).
    """

    def __init__(self, memory: memoryview, exchange: Exchange, shape: DispatchShape) -> None:
        """Clears this rank's ids. A barrier must follow before first use."""
        rank, ranks = exchange.rank, exchange.size
        tokens, top_k, hidden = shape.max_tokens, shape.top_k, shape.hidden
        result = shape.result_width
        self._rank = rank
        self._num_ranks = ranks
        self._shape = shape
        self._exchange = exchange
        self._turns = DispatchTurns()
        self._num_written = 0
        starts = np.cumsum([0, *_area_sizes(shape, ranks)]).tolist()
        counts, ids, weights, rows, results, _ = starts
        self._counts = np.frombuffer(memory, np.int32, ranks, counts)
        self._ids = np.frombuffer(memory, np.int32, ranks * tokens * top_k, ids).reshape(
            ranks, tokens, top_k
        )
        self._weights = np.frombuffer(memory, np.float32, ranks * tokens * top_k, weights)
        self._rows = np.frombuffer(memory, np.float32, ranks * tokens * hidden, rows).reshape(
            ranks * tokens, hidden
        )
        self._results = np.frombuffer(
            memory, np.float32, ranks * tokens * top_k * result, results
        ).reshape(ranks * tokens * top_k, result)
        self._own_ids = self._ids[rank]
        self._own_weights = self._weights.reshape(ranks, tokens, top_k)[rank]
        self._own_rows = self._rows.reshape(ranks, tokens, hidden)[rank]
        self._own_results = self._results.reshape(ranks, tokens, top_k, result)[rank]
        self._own_ids[:] = -1

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self._num_ranks

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        """See `Dispatcher.dispatch`."""
        self._turns.check_dispatch()
        num_tokens = self._shape.check_dispatch(rows, slot_ids, weights, slots_per_rank)
        ids = slot_ids.numpy()
        holes = check_ids(ids, slots_per_rank * self._num_ranks)
        number = self._turns.open()
        self._write(num_tokens, rows, ids, weights)
        self._exchange.publish()
        self._exchange.wait("dispatch")
        entries, slots = self._find(slots_per_rank)
        return Dispatched(
            torch.from_numpy(self._rows.take(entries // self._shape.top_k, axis=0)),
            torch.from_numpy(self._weights.take(entries)),
            torch.from_numpy(slots.astype(np.int64)),
            DispatchHandle(entries, num_tokens, holes, number),
        )

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        """See `Dispatcher.combine`. The result is a view, valid until the next dispatch."""
        self._turns.check_combine(handle)
        self._shape.check_outputs(outputs, handle)
        self._turns.close()
        self._results[handle.entries] = outputs.numpy()
        self._exchange.publish()
        self._exchange.wait("combine")
        combined = self._own_results[: handle.num_tokens]
        if handle.holes is not None:
            combined[handle.holes] = 0.0
        return torch.from_numpy(combined)

    def _write(self, num_tokens: int, rows: Tensor, ids: IntArray, weights: Tensor) -> None:
        self._own_rows[:num_tokens] = rows.numpy()
        self._own_ids[:num_tokens] = ids
        self._own_weights[:num_tokens] = weights.numpy()
        if num_tokens < self._num_written:
            self._own_ids[num_tokens : self._num_written] = -1
        self._num_written = num_tokens
        self._counts[self._rank] = num_tokens

    def _find(self, slots_per_rank: int) -> tuple[IntArray, SlotArray]:
        """Places of this rank's rows among all (source, row, choice), and their slots, in order."""
        top_k, max_tokens = self._shape.top_k, self._shape.max_tokens
        most_tokens = int(self._counts.max())
        ids = self._ids[:, :most_tokens].reshape(-1)
        found, slots = order_local(ids, self._rank * slots_per_rank, slots_per_rank)
        # From places in the read part [ranks, most_tokens, K] to places in the whole area.
        skipped = (max_tokens - most_tokens) * top_k
        return (found + found // (most_tokens * top_k) * skipped if skipped else found), slots


def _area_sizes(shape: DispatchShape, num_ranks: int) -> tuple[int, int, int, int, int]:
    """Bytes of counts, ids, weights, rows and results, each rounded up to whole pages."""
    tokens = num_ranks * shape.max_tokens
    choices = tokens * shape.top_k
    sizes = (num_ranks, choices, choices, tokens * shape.hidden, choices * shape.result_width)
    counts, ids, weights, rows, results = (-(-4 * size // _ALIGN) * _ALIGN for size in sizes)
    return counts, ids, weights, rows, results
