"""Random choices that follow from a seed alone, the same on every Python."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A counter-based generator: draw n is a hash of seed and n.

    Args:
        seed: Any integer.
    """

    def __init__(self, seed: int) -> None:
        self._seed = str(seed).encode()
        self._count = 0

    def raw(self, num_bytes: int) -> bytes:
        """Random bytes."""
        self._count += 1
        return hashlib.shake_128(b"%s %d" % (self._seed, self._count)).digest(num_bytes)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1; biased by less than `limit` in 2^128."""
        if limit < 1:
            raise ValueError(f"no number is below {limit}")
        return int.from_bytes(self.raw(16), "big") % limit

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Different items in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]
