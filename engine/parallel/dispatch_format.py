"""Numbers of expert rows on the way: float32, or FP8 rows and bfloat16 results.

A formatted dispatcher packs rows before another dispatcher carries them and unpacks what arrives,
so that every transport gets every format. Packed rows are bytes seen as float32 numbers: dispatch
only copies.

Invariants:
- A row is packed by itself, the same way whether it leaves its rank or not, so results depend on
  neither neighbours nor the number of ranks. They do depend on the format.
- FP8 rows are E4M3 with one float32 scale per 128 numbers: the largest becomes 448.
"""

from __future__ import annotations

import enum
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine.parallel.dispatch import Dispatched, Dispatcher, DispatchHandle

SCALE_GROUP: Final = 128
_LARGEST = 448.0
_WORD_BYTES = 4


class DispatchFormat(enum.Enum):
    """What travels: rows to experts, results back."""

    FLOAT32 = "float32"
    FP8 = "fp8"
    FP8_BF16 = "fp8_bf16"

    def row_width(self, hidden: int) -> int:
        """Float32 words of a packed row of `hidden` numbers."""
        if self is DispatchFormat.FLOAT32:
            return hidden
        return _words(hidden, _WORD_BYTES) + _words(hidden, SCALE_GROUP)

    def result_width(self, hidden: int) -> int:
        """Float32 words of a packed result of `hidden` numbers."""
        return _words(hidden, 2) if self is DispatchFormat.FP8_BF16 else hidden


def formatted(inner: Dispatcher, form: DispatchFormat, hidden: int) -> Dispatcher:
    """Returns a dispatcher for rows of `hidden` numbers over one that carries packed rows.

    Args:
        inner: opened for `form.row_width(hidden)` numbers to experts and
            `form.result_width(hidden)` back.
        form: equal on all ranks.
        hidden: numbers of a row.
    """
    return inner if form is DispatchFormat.FLOAT32 else _Formatted(inner, form, hidden)


def pack_fp8(rows: Tensor) -> Tensor:
    """Packs [T, H] float32 into [T, H / 4 + H / 128] float32 words, each part rounded up."""
    grouped = functional.pad(rows, (0, -rows.shape[1] % SCALE_GROUP))
    grouped = grouped.unflatten(1, (_words(rows.shape[1], SCALE_GROUP), SCALE_GROUP))
    scales = grouped.abs().amax(2) / _LARGEST
    # Rows of zeros, and numbers too small for a scale, become zeros.
    scales.masked_fill_(scales < torch.finfo(torch.float32).tiny, 1.0)
    values = (grouped / scales.unsqueeze(2)).to(torch.float8_e4m3fn).flatten(1)
    width = _words(rows.shape[1], _WORD_BYTES) * _WORD_BYTES
    return torch.cat([values[:, :width].contiguous().view(torch.float32), scales], 1)


def unpack_fp8(packed: Tensor, hidden: int) -> Tensor:
    """The rows of `pack_fp8`, [T, hidden] float32."""
    words = _words(hidden, _WORD_BYTES)
    values = _dense(packed[:, :words]).view(torch.float8_e4m3fn).float()
    scales = packed[:, words:].unsqueeze(2)
    groups: Tensor = functional.pad(values, (0, -values.shape[1] % SCALE_GROUP))
    groups = groups.unflatten(1, (scales.shape[1], SCALE_GROUP)).mul_(scales)
    return groups.flatten(1)[:, :hidden]


def pack_bf16(rows: Tensor) -> Tensor:
    """Packs [T, H] float32 into [T, H / 2] float32 words, rounded up."""
    return functional.pad(rows, (0, rows.shape[1] % 2)).bfloat16().view(torch.float32)


def unpack_bf16(packed: Tensor, hidden: int) -> Tensor:
    """The rows of `pack_bf16`, [..., hidden] float32."""
    return _dense(packed).view(torch.bfloat16)[..., :hidden].float()


class _Formatted:
    """See `formatted`."""

    def __init__(self, inner: Dispatcher, form: DispatchFormat, hidden: int) -> None:
        self._inner = inner
        self._hidden = hidden
        self._is_bf16 = form is DispatchFormat.FP8_BF16

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def num_ranks(self) -> int:
        return self._inner.num_ranks

    def dispatch(
        self, rows: Tensor, slot_ids: Tensor, weights: Tensor, slots_per_rank: int
    ) -> Dispatched:
        sent = self._inner.dispatch(pack_fp8(rows), slot_ids, weights, slots_per_rank)
        return Dispatched(
            unpack_fp8(sent.rows, self._hidden), sent.row_weights, sent.local_slots, sent.handle
        )

    def combine(self, outputs: Tensor, handle: DispatchHandle) -> Tensor:
        if not self._is_bf16:
            return self._inner.combine(outputs, handle)
        return unpack_bf16(self._inner.combine(pack_bf16(outputs), handle), self._hidden)


def _dense(packed: Tensor) -> Tensor:
    """A copy whose strides are the usual ones; empty arrays of other libraries have others."""
    return torch.empty(packed.shape, dtype=packed.dtype).copy_(packed)


def _words(numbers: int, per_word: int) -> int:
    return -(-numbers // per_word)
