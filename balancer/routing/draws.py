"""Counter-based draws: the same decision draws the same numbers, live and replayed.

A draw belongs to a member's id, not to its row, so that other members coming, going or becoming
loaded do not change it.
"""

from __future__ import annotations

import numpy as np

from balancer.membership.snapshot import Columns, Floats, Ints, hash_of

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def draw_seed(salt: str, request_id: str, attempt: int, rotation: int) -> int:
    """64 bits of a decision."""
    return (hash_of(f"{salt}\0{request_id}\0{attempt}") + rotation * _GOLDEN) & _MASK


def uniforms(seed: int, columns: Columns, rows: Ints) -> Floats:
    """A number in [0, 1) per candidate, by splitmix64."""
    with np.errstate(over="ignore"):
        z = columns.fixed.hashes[rows] + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def two_of(seed: int, columns: Columns, rows: Ints, pool: Ints) -> Ints:
    """A column that is 0 for two drawn candidates of the pool and 1 for all others.

    Args:
        pool: Indices into `rows`.
    """
    is_out = np.ones(len(rows), dtype=np.int64)
    draws = uniforms(seed, columns, rows[pool])
    is_out[pool[np.argsort(draws, kind="stable")[:2]]] = 0
    return is_out
