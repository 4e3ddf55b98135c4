"""Expert dispatch: rows go to the ranks that hold their experts, results come back.

This module holds the port, the order of the rows and the one-rank form, which is the meaning of
the operation. Knows no model: an expert is a physical slot number, a row is H numbers.

Invariants, for every form and every number of ranks:
- Dispatched rows are ordered by (local slot, source rank, source row, choice), so the rows of one
  slot are contiguous and their order does not depend on the transport.
- `combine` puts choice k of row t at [t, k] and adds nothing up: the caller sums over k in
  ascending order. Both calls only copy, so results are bit-equal to those of one rank.
- Every dispatch is followed by its combine before the next dispatch.
- Zero rows on any rank are legal; id -1 means "no expert" and combines to zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.parallel.errors import DispatchInputError

IntArray = npt.NDArray[np.int64]
SlotArray = npt.NDArray[np.int32]

_MAX_SLOTS_PER_RANK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class DispatchHandle:
    """Where the dispatched rows came from; made by `dispatch`, used once by `combine`.

    Args:
        entries: [M] int64, for each dispatched row its place among all (source, row, choice).
        num_tokens: T of this rank.
        holes: [T, K] bool of the ids that were -1, or None when there was none.
        number: which dispatch of the port made it.
    """

    entries: IntArray
    num_tokens: int
    holes: npt.NDArray[np.bool_] | None
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Dispatched:
    """The rows that came to this rank's slots.

    Args:
        rows: [M, H] float32, in the order of the module's first invariant.
        row_weights: [M] float32 router weights of the rows.
        local_slots: [M] int64, ascending; slot of each row on this rank.
        handle: for `combine`.
    """

    rows: Tensor
    row_weights: Tensor
    local_slots: Tensor
    handle: DispatchHandle


class Dispatcher(Protocol):
    """Moves rows to experts and back. The step loop's thread calls it; both are collectives.

    Tensors handed out may live in memory that the next call of the same port reuses: consume
    or copy them before.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        ...

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        """Sends each row to its slots.

        Args:
            rows: [T, H] float32 on the CPU; 0 <= T <= max_tokens.
            slot_ids: [T, K] int64 physical slots, -1 for none; slot p lives on rank
                p // slots_per_rank at place p % slots_per_rank.
            weights: [T, K] float32 router weights; they travel, nothing is multiplied.
            slots_per_rank: equal on all ranks.

        Raises:
            DispatchInputError: bad arguments; nothing was sent.
            GroupError: a rank is late or lost.
        """
        ...

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        """Returns results to their rows: [T, K, H] float32, zeros where the id was -1.

        Args:
            outputs: [M, H] float32, one per dispatched row, in the same order.
            handle: of the dispatch before.

        Raises:
            DispatchInputError: bad arguments; nothing was sent.
            GroupError: a rank is late or lost.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchShape:
    """Sizes of a dispatch port, equal on all ranks.

    Args:
        hidden: H, numbers of a row.
        top_k: K, choices of a row.
        max_tokens: most rows of a rank.
        result_hidden: numbers of a result; None is H.
    """

    hidden: int
    top_k: int
    max_tokens: int
    result_hidden: int | None = None

    def __post_init__(self) -> None:
        """Refuses sizes below 1."""
        for name in ("hidden", "top_k", "max_tokens", "result_hidden"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} is {size}, must be at least 1")

    @property
    def result_width(self) -> int:
        """Numbers of a result."""
        return self.hidden if self.result_hidden is None else self.result_hidden

    def check_dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> int:
        """Checks the arguments of `dispatch` and returns T.

        Raises:
            DispatchInputError: names the argument, what was found and what is wanted.
        """
        num_tokens = len(rows)
        if rows.shape != (num_tokens, self.hidden) or rows.dtype is not torch.float32:
            raise _wrong("rows", rows, f"[T, {self.hidden}] float32")
        if num_tokens > self.max_tokens:
            raise DispatchInputError(
                f"rows has {num_tokens} rows, more than max_tokens {self.max_tokens}: lower the "
                f"batch or open the ports with a larger max_tokens"
            )
        wanted = (num_tokens, self.top_k)
        if slot_ids.shape != wanted or slot_ids.dtype is not torch.int64:
            raise _wrong("slot_ids", slot_ids, f"{list(wanted)} int64")
        if weights.shape != wanted or weights.dtype is not torch.float32:
            raise _wrong("weights", weights, f"{list(wanted)} float32")
        if not 1 <= slots_per_rank <= _MAX_SLOTS_PER_RANK:
            raise DispatchInputError(
                f"slots_per_rank is {slots_per_rank}, must be in 1..{_MAX_SLOTS_PER_RANK}"
            )
        return num_tokens

    def check_outputs(self, outputs: Tensor, handle: DispatchHandle) -> None:
        """Checks the outputs given to `combine`.

        Raises:
            DispatchInputError: names what was found and what is wanted.
        """
        wanted = (len(handle.entries), self.result_width)
        if outputs.shape != wanted or outputs.dtype is not torch.float32:
            raise _wrong("outputs", outputs, f"{list(wanted)} float32")


class DispatchTurns:
    """Holds the calls of a port to their order: dispatch, its combine, the next dispatch."""

    __slots__ = ("_is_open", "number")

    def __init__(self) -> None:
        """Starts before the first dispatch."""
        self.number = 0
        self._is_open = False

    def check_dispatch(self) -> None:
        """Refuses a dispatch while one is not combined.

        Raises:
            DispatchInputError: out of order.
        """
        if self._is_open:
            raise DispatchInputError(
                f"dispatch {self.number} was not combined: combine it before the next dispatch"
            )

    def check_combine(self, handle: DispatchHandle) -> None:
        """Refuses all but the first combine of the last dispatch.

        Raises:
            DispatchInputError: out of order.
        """
        if handle.number != self.number:
            raise DispatchInputError(
                f"handle is of dispatch {handle.number}, but the last one was {self.number}: "
                f"combine each dispatch once, before the next one"
            )
        if not self._is_open:
            raise DispatchInputError(f"dispatch {self.number} was combined already")

    def open(self) -> int:
        """A dispatch goes ahead; returns its number."""
        self.number += 1
        self._is_open = True
        return self.number

    def close(self) -> None:
        """The combine goes ahead."""
        self._is_open = False


def check_ids(ids: IntArray, num_slots: int) -> npt.NDArray[np.bool_] | None:
    """Checks [T, K] slot ids against the group's slots; returns where they are -1, if anywhere.

    Raises:
        DispatchInputError: an id outside -1..num_slots - 1.
    """
    if not ids.size:
        return None
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < -1 or highest >= num_slots:
        bad = lowest if lowest < -1 else highest
        raise DispatchInputError(
            f"slot_ids holds {bad}, outside -1..{num_slots - 1}: the group has {num_slots} slots"
        )
    return ids < 0 if lowest < 0 else None


def order_local(ids: SlotArray, first_slot: int, num_slots: int) -> tuple[IntArray, SlotArray]:
    """Finds the entries that belong to slots [first_slot, first_slot + num_slots), in order.

    Args:
        ids: flat int32 slot ids of all sources in (source rank, row, choice) order.

    Returns:
        Positions in `ids` and local slots, both [M], by (local slot, position).
    """
    local = ids - np.int32(first_slot)
    # As unsigned numbers the ids below the range, and -1, are large: one comparison does both.
    (found,) = (local.view(np.uint32) < num_slots).nonzero()
    slots = local[found]
    # Sorting 16-bit keys stably is a radix sort.
    order = slots.astype(np.uint16).argsort(kind="stable")
    return found[order], slots[order]


class LocalDispatcher:
    """Dispatch in a group of one rank: an ordered gather, and the scatter back."""

    def __init__(self, shape: DispatchShape) -> None:
        """Takes the sizes; `max_tokens` is checked as in the other forms."""
        self._shape = shape
        self._turns = DispatchTurns()

    @property
    def rank(self) -> int:
        """Always 0."""
        return 0

    @property
    def num_ranks(self) -> int:
        """Always 1."""
        return 1

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        """See `Dispatcher.dispatch`."""
        self._turns.check_dispatch()
        num_tokens = self._shape.check_dispatch(rows, slot_ids, weights, slots_per_rank)
        ids = slot_ids.numpy()
        holes = check_ids(ids, slots_per_rank)
        entries, slots = order_local(ids.reshape(-1).astype(np.int32), 0, slots_per_rank)
        return Dispatched(
            torch.from_numpy(rows.numpy().take(entries // self._shape.top_k, axis=0)),
            torch.from_numpy(weights.numpy().reshape(-1).take(entries)),
            torch.from_numpy(slots.astype(np.int64)),
            DispatchHandle(entries, num_tokens, holes, self._turns.open()),
        )

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        """See `Dispatcher.combine`."""
        self._turns.check_combine(handle)
        self._shape.check_outputs(outputs, handle)
        self._turns.close()
        shape = (handle.num_tokens, self._shape.top_k, self._shape.result_width)
        combined = (np.empty if handle.holes is None else np.zeros)(shape, np.float32)
        combined.reshape(-1, self._shape.result_width)[handle.entries] = outputs.numpy()
        return torch.from_numpy(combined)


def _wrong(name: str, tensor: Tensor, wanted: str) -> DispatchInputError:
    found = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    return DispatchInputError(f"{name} is {found}, wanted {wanted}")
