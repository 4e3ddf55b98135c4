"""Which path rows take to the experts, how they are padded and how they come back. Pure.

All choices are functions of widths, backend and agreed counts, so that all ranks choose alike.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


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
