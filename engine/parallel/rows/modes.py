"""Which path rows take to the experts, how they are padded and how they come back. Pure.

All choices are functions of widths, backend and agreed counts, so that all ranks choose alike.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Path(enum.Enum):
    """How rows reach the experts."""

    A = "a"
    B = "b"
    DIRECT = "direct"
    PLAIN = "plain"


class Combine(enum.Enum):
    """How path A ends: sum and slice, or one reduce-scatter. Chosen once a step, passed to both."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"


def choose_path(*, attn_dp: int, attn_tp: int, all_to_all: bool) -> Path:
    """The path of a layout without context parallelism."""
    if all_to_all:
        return Path.B if attn_tp > 1 else Path.DIRECT
    return Path.A if attn_dp > 1 else Path.PLAIN


class PaddingMode(enum.Enum):
    """Size of the buffer of a row gather: the sum of all counts, or the largest for each group."""

    SUM = "SUM"
    MAX = "MAX"


def padding_mode(counts: Sequence[int], *, has_extend: bool) -> PaddingMode:
    """Chooses by agreed values only, so that all ranks choose alike.

    Args:
        counts: rows of each attention group.
        has_extend: whether any of them prefills.
    """
    if has_extend and len(counts) > 1:
        return PaddingMode.SUM
    is_even = 2 * sum(counts) >= max(counts) * len(counts)
    return PaddingMode.MAX if is_even else PaddingMode.SUM


class RowGather(enum.Enum):
    """How rows of all attention groups get to every rank.

    SIZED: a gather in which each rank brings as many rows as its group has. SUMMED: a sum of
    buffers of all rows, zero but for the rows one rank of each group writes. PADDED: a gather of
    rows padded to the largest group; copies are cut into slices before.
    """

    SIZED = "sized"
    SUMMED = "summed"
    PADDED = "padded"


def choose_gather(padding: PaddingMode, *, attn_tp: int) -> RowGather:
    """The gather of a padding mode: where no rank holds a copy, nothing needs to be summed."""
    if padding is PaddingMode.MAX:
        return RowGather.PADDED
    return RowGather.SIZED if attn_tp == 1 else RowGather.SUMMED


def choose_combine(padding: PaddingMode, *, attn_tp: int) -> Combine:
    """How path A ends: a reduce-scatter moves half as much as a sum for all.

    But not where attention groups of uneven sizes would have to gather uneven slices once more.
    """
    if padding is PaddingMode.SUM and attn_tp > 1:
        return Combine.ALL_REDUCE
    return Combine.REDUCE_SCATTER


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedRows:
    """What all ranks of a domain know of a step's rows before it starts: from the step vote.

    Args:
        counts: rows each attention group announced, in order of the groups; 0 for a placeholder.
            A row that falls away after the vote travels as a hole.
        has_extend: whether any of them prefills.
    """

    counts: tuple[int, ...]
    has_extend: bool

    @property
    def padding(self) -> PaddingMode:
        """How rows are gathered."""
        return padding_mode(self.counts, has_extend=self.has_extend)
