"""Random draws that depend on (seed, position) and on nothing else.

A counter-based generator has no state to keep, hand over or restore: the draw for a position is
the same at any batch size, on any rank, after any failover. The generator is Philox4x32-10; key and
counter are filled as drawn:

    key      [seed low 32 | seed high 32]
    counter  [position low 32 | position high 32 | stream | 0]

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10

# Streams keep draws for different purposes at one position apart.
STREAM_TARGET = 0

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Returns four 32-bit words for a 128-bit counter and a 64-bit key, ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def draw_below(bound: int, seed: int, position: int, stream: int = STREAM_TARGET) -> int:
    """Returns an integer in [0, bound), uniform up to a bias of bound / 2**64.

    Args:
        bound: 1 to 2**64.
        seed: in [0, 2**64).
        position: absolute position of the token the draw is for.
        stream: purpose of the draw.
    """
    low, high, _, _ = philox4x32(
        (position & _MASK, position >> 32 & _MASK, stream, 0), (seed & _MASK, seed >> 32 & _MASK)
    )
    return bound * (high << 32 | low) >> 64
