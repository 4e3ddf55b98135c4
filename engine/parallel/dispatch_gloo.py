"""Expert dispatch as gloo all-to-all: the reference between processes, and the fall-back.

A dispatch is two exchanges (row counts, then rows with slot and weight in two extra columns), a
combine is one. Numbers travel bit by bit: slots are int32 seen as float32, and nothing is added.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.parallel.channels import GlooChannel
from engine.parallel.dispatch import (
    Dispatched,
    DispatchHandle,
    DispatchShape,
    DispatchTurns,
    IntArray,
    check_ids,
    order_local,
)


class GlooDispatcher:
    """Dispatch over a gloo channel that carries nothing else.

    Args:
        channel: the "experts" channel.
        shape: sizes, equal on all ranks.
    """

    def __init__(self, channel: GlooChannel, shape: DispatchShape) -> None:
        """Takes the channel; nothing is sent."""
        self._channel = channel
        self._shape = shape
        self._turns = DispatchTurns()
        self._sent_entries: IntArray = np.empty(0, np.int64)
        self._sent_rows: list[int] = []
        self._received_rows: list[int] = []

    @property
    def rank(self) -> int:
        """This rank."""
        return self._channel.rank

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self._channel.num_ranks

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        """See `Dispatcher.dispatch`."""
        self._turns.check_dispatch()
        num_tokens = self._shape.check_dispatch(rows, slot_ids, weights, slots_per_rank)
        ids = slot_ids.numpy()
        holes = check_ids(ids, slots_per_rank * self.num_ranks)
        number = self._turns.open()
        hidden, top_k = self._shape.hidden, self._shape.top_k
        flat = ids.reshape(-1)
        (used,) = (flat >= 0).nonzero()
        targets = flat[used] // slots_per_rank
        self._sent_entries = sent_entries = used[targets.argsort(kind="stable")]
        self._sent_rows = np.bincount(targets, minlength=self.num_ranks).tolist()
        self._received_rows = self._exchange_counts(self._sent_rows)
        sent = np.empty((len(sent_entries), hidden + 2), np.float32)
        sent[:, :hidden] = rows.numpy()[sent_entries // top_k]
        sent[:, hidden] = weights.numpy().reshape(-1)[sent_entries]
        sent[:, hidden + 1] = flat[sent_entries].astype(np.int32).view(np.float32)
        received = np.empty((sum(self._received_rows), hidden + 2), np.float32)
        self._channel.all_to_all(
            torch.from_numpy(received),
            torch.from_numpy(sent),
            self._received_rows,
            self._sent_rows,
            "dispatch",
        )
        slot_column = np.ascontiguousarray(received[:, hidden + 1]).view(np.int32)
        order, slots = order_local(slot_column, self.rank * slots_per_rank, slots_per_rank)
        return Dispatched(
            torch.from_numpy(received[order, :hidden]),
            torch.from_numpy(received[order, hidden]),
            torch.from_numpy(slots.astype(np.int64)),
            DispatchHandle(order, num_tokens, holes, number),
        )

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        """See `Dispatcher.combine`."""
        self._turns.check_combine(handle)
        self._shape.check_outputs(outputs, handle)
        self._turns.close()
        sent_entries = self._sent_entries
        hidden, top_k = self._shape.result_width, self._shape.top_k
        returned = np.empty((len(handle.entries), hidden), np.float32)
        returned[handle.entries] = outputs.numpy()
        received = np.empty((len(sent_entries), hidden), np.float32)
        self._channel.all_to_all(
            torch.from_numpy(received),
            torch.from_numpy(returned),
            self._sent_rows,
            self._received_rows,
            "combine",
        )
        combined = np.zeros((handle.num_tokens * top_k, hidden), np.float32)
        combined[sent_entries] = received
        return torch.from_numpy(combined.reshape(handle.num_tokens, top_k, hidden))

    def _exchange_counts(self, sent_rows: list[int]) -> list[int]:
        received = torch.empty(self.num_ranks, dtype=torch.int64)
        ones = [1] * self.num_ranks
        self._channel.all_to_all(received, torch.tensor(sent_rows), ones, ones, "dispatch")
        counts: list[int] = received.tolist()
        return counts
