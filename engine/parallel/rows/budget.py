"""What a prefill chunk costs under context parallelism, and how large the gather buffer must be.

Pure. A chunk is charged its padded length, so the rows of a cp rank never exceed budget // cp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Gathers that may be in flight in one bracket, and the alignment of each.
MAX_IN_FLIGHT: Final = 8
BUFFER_ALIGNMENT_BYTES: Final = 64
_BUFFER_ROUNDING_BYTES: Final = 2 * 1024 * 1024


def chunk_multiple(cp: int) -> int:
    """Chunks that are cut short end at a multiple of this many tokens."""
    return 2 * cp if cp > 1 else 1


def charge(num_tokens: int, cp: int) -> int:
    """Tokens of the budget that a chunk takes: its length, padded to the multiple."""
    multiple = chunk_multiple(cp)
    return -(-num_tokens // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part of a sequence that one step computes."""

    sequence: int
    num_tokens: int
    charged: int


def admit(remaining: Sequence[int], budget: int, cp: int, *, can_chunk: bool = True) -> list[Chunk]:
    """Chunks of the next step, first in first out.

    Args:
        remaining: tokens that each waiting sequence still needs; 0 is skipped.
        budget: padded tokens of a step.
        cp: ranks that share a sequence.
        can_chunk: whether a sequence may be cut.

    Returns:
        At most one cut chunk, always the last; empty when not even one multiple fits.
    """
    chunks: list[Chunk] = []
    used = 0
    multiple = chunk_multiple(cp)
    for sequence, left in enumerate(remaining):
        if not left:
            continue
        rest = (budget - used) // multiple * multiple
        num_tokens = min(left, rest)
        if num_tokens == 0 or (num_tokens < left and not can_chunk):
            break
        chunks.append(
            Chunk(sequence=sequence, num_tokens=num_tokens, charged=charge(num_tokens, cp))
        )
        used += chunks[-1].charged
        if num_tokens < left:
            break
    return chunks


def gather_buffer_bytes(
    max_num_batched_tokens: int,
    cp: int,
    bytes_per_token: int,
    *,
    alignment_bytes: int = BUFFER_ALIGNMENT_BYTES,
) -> int:
    """Bytes of the buffer all gathers of a step share.

    Args:
        max_num_batched_tokens: budget of a step, in padded tokens.
        cp: ranks of the group.
        bytes_per_token: largest row of any gather.
        alignment_bytes: of each gather in flight.
    """
    rows = max_num_batched_tokens // cp * cp
    needed = rows * bytes_per_token + MAX_IN_FLIGHT * alignment_bytes
    return -(-needed // _BUFFER_ROUNDING_BYTES) * _BUFFER_ROUNDING_BYTES
