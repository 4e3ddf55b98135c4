"""Context parallelism: which rows of a prefill step each cp rank computes, and how they come back.

A sequence of q new tokens is cut into 2 * cp blocks; rank r takes block r and block 2 * cp - 1 - r,
so that all ranks see about equally many keys. Pure arithmetic on the host, once per step.

Invariants:
- every token appears on exactly one rank, and all ranks hold equally many slots;
- padding slots hold -1 and stand at block tails only;
- gathered[reverse[i]] is row i, so padding disappears in the restore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZigzagSplit:
    """The rows of one prefill step over cp ranks.

    Args:
        cp: ranks of the group.
        mirror: [cp, mirror_length] batch row in each slot of each rank, -1 for padding; slots in
            batch order of sequences, low block before high block.
        reverse: [T] place of each batch row in the concatenation of all ranks' slots.
        sequences: [mirror_length] sequence each slot belongs to; equal on all ranks.
    """

    cp: int
    mirror: IntArray
    reverse: IntArray
    sequences: IntArray

    @property
    def mirror_length(self) -> int:
        """Slots of each rank."""
        return len(self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyWindows:
    """Compressed entries each slot sees: [starts, ends) of the concatenation of all sequences.

    Args:
        starts, ends: [cp, mirror_length]; padding slots see [base, base) of their own sequence.
    """

    starts: IntArray
    ends: IntArray


def split_rows(
    q_lens: Sequence[int], cp: int, *, block_multiple: int = 1, shortest_split: int = 0
) -> ZigzagSplit:
    """Cuts the sequences of a step.

    Args:
        q_lens: new tokens of each sequence; 0 is legal and takes no slot.
        cp: ranks.
        block_multiple: blocks end at multiples of it; above 1 only if compression came before
            the gather, so that no pooled group straddles ranks.
        shortest_split: sequences with fewer tokens stay whole on the rank with the fewest rows
            (lowest rank on ties); 0 splits all. `shortest_split_of(cp)` is the usual bound.

    Raises:
        ValueError: a negative length, or cp below 1.
    """
    if cp < 1 or min(q_lens, default=0) < 0:
        raise ValueError(f"lengths {list(q_lens)} over cp {cp}: both must not be negative, cp >= 1")
    parts: list[IntArray] = []
    owners: list[IntArray] = []
    whole: list[tuple[int, int, int]] = []
    begin = 0
    for sequence, length in enumerate(q_lens):
        if cp == 1:
            parts.append(np.arange(begin, begin + length)[None])
            owners.append(np.full(length, sequence, dtype=np.int64))
        elif 0 < length < shortest_split:
            whole.append((sequence, begin, length))
        elif length:
            block = _block_length(length, cp, block_multiple)
            parts.append(_cut(begin, length, block, cp))
            owners.append(np.full(2 * block, sequence, dtype=np.int64))
        begin += length
    if whole:
        part, owner = _assign_whole(whole, parts, cp)
        parts.append(part)
        owners.append(owner)
    empty = np.empty((cp, 0), dtype=np.int64)
    mirror = np.concatenate([empty, *parts], axis=1)
    reverse = np.empty(begin, dtype=np.int64)
    real = mirror.reshape(-1) >= 0
    reverse[mirror.reshape(-1)[real]] = np.flatnonzero(real)
    return ZigzagSplit(
        cp=cp,
        mirror=mirror,
        reverse=reverse,
        sequences=np.concatenate([empty[0], *owners]),
    )


def shortest_split_of(cp: int) -> int:
    """Sequences below so many tokens are not worth cutting: padding would cost more."""
    return 8 * cp if cp > 1 else 0


def key_windows(
    split: ZigzagSplit, q_lens: Sequence[int], k_lens: Sequence[int], ratio: int
) -> KeyWindows:
    """Compressed entries each slot sees.

    A token at position t sees the (t + 1) // ratio complete entries of its sequence. Entries of
    all sequences are concatenated; one without a complete entry still owns one empty slot. Whole
    sequences share slots between ranks, so their windows are found by row, not by slot.

    Args:
        split: of the same `q_lens`.
        q_lens: new tokens of each sequence.
        k_lens: tokens after the step, k >= q.
        ratio: tokens per entry, 1 for none.
    """
    q, k = np.asarray(q_lens, dtype=np.int64), np.asarray(k_lens, dtype=np.int64)
    owned = np.maximum(1, k // ratio)
    bases = np.cumsum(owned) - owned
    begins = np.cumsum(q) - q
    owner = np.broadcast_to(split.sequences, split.mirror.shape).copy()
    real = split.mirror >= 0
    owner[real] = np.searchsorted(begins, split.mirror[real], side="right") - 1
    # Of sequences without tokens that begin at the same row, the last one is the owner: it is the
    # only one with rows.
    position = k[owner] - q[owner] + split.mirror - begins[owner]
    starts = bases[owner]
    return KeyWindows(starts=starts, ends=np.where(real, starts + (position + 1) // ratio, starts))


def block_multiple_before_gather(ratios: Sequence[int]) -> int:
    """Multiple that blocks must keep if pooling came before the gather."""
    return math.lcm(*(ratio for ratio in ratios if ratio > 0))


def _block_length(length: int, cp: int, multiple: int) -> int:
    block = -(-length // (2 * cp))
    return -(-block // multiple) * multiple


def _cut(begin: int, length: int, block: int, cp: int) -> IntArray:
    """Rows of one sequence on each rank, [cp, 2 * block]."""
    ranks = np.arange(cp)
    blocks = np.stack([ranks, 2 * cp - 1 - ranks], axis=1)
    local = blocks[:, :, None] * block + np.arange(block)
    rows = np.where(local < length, begin + local, -1)
    return rows.reshape(cp, 2 * block)


def _assign_whole(
    whole: list[tuple[int, int, int]], parts: list[IntArray], cp: int
) -> tuple[IntArray, IntArray]:
    """Rows of the short sequences, each on one rank, [cp, most]; owners of the slots, [most]."""
    count = np.zeros(cp, dtype=np.int64)
    for part in parts:
        count += (part >= 0).sum(1)
    taken: list[list[int]] = [[] for _ in range(cp)]
    last = [whole[0][0]] * cp
    # Longest first balances best; order on a rank is that of the batch.
    chosen: list[tuple[int, int, int, int]] = []
    for sequence, begin, length in sorted(whole, key=lambda item: (-item[2], item[0])):
        rank = int(count.argmin())
        count[rank] += length
        chosen.append((sequence, begin, length, rank))
    for sequence, begin, length, rank in sorted(chosen):
        taken[rank] += range(begin, begin + length)
        last[rank] = sequence
    most = max(len(rows) for rows in taken)
    part = np.full((cp, most), -1, dtype=np.int64)
    for rank, rows in enumerate(taken):
        part[rank, : len(rows)] = rows
    # Padding belongs to some sequence of the step; its window is empty wherever it stands.
    return part, np.full(most, last[int(np.argmax([len(rows) for rows in taken]))], dtype=np.int64)
