"""How full a store is, and whether it should take another hand-off: decisions over numbers.

Leased bytes can be evicted like any others, since the server's LRU knows no leases. So hand-offs
stay below a share of its memory at which that does not happen. A server that does not evict refuses
writes when it is full, so new work is shed before; one that evicts is full whenever its cache is
warm, which is no reason to refuse anything.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HANDOFF_SHARE = 0.60
"""Bytes of hand-offs that are not released yet, of the server's memory."""
MAX_USED_SHARE = 0.85
"""Bytes of everything, of the server's memory; also where an operator wants to be told."""
RELIEF_SHARE = 0.05
"""How far below a limit the store has to fall before it takes hand-offs again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Shares of the server's memory, 0 to 1; both 0 where it has no limit.

    Attributes:
        used_share: Of everything.
        handoff_share: Of hand-offs that are not released yet; 0 also where they were not counted
            because so little is used.
        evicts: Whether the server makes room by itself.
    """

    used_share: float
    handoff_share: float
    evicts: bool = False

    @property
    def refusal(self) -> str:
        """Why a new hand-off should not be admitted; empty if it should."""
        return self.refusal_below(0.0)

    def refusal_below(self, margin: float) -> str:
        """As `refusal`, with limits that are lower by `margin`."""
        if self.handoff_share >= MAX_HANDOFF_SHARE - margin:
            return (
                f"hand-offs hold {self.handoff_share:.0%} of the KV store's memory, "
                f"the limit is {MAX_HANDOFF_SHARE:.0%}"
            )
        if self.used_share >= MAX_USED_SHARE - margin and not self.evicts:
            return (
                f"{self.used_share:.0%} of the KV store's memory is used, "
                f"the limit is {MAX_USED_SHARE:.0%}"
            )
        return ""


class Shedding:
    """Whether new hand-offs are refused: from a limit on, until the store is well below it."""

    def __init__(self) -> None:
        self.refusal = ""

    def update(self, pressure: Pressure) -> bool:
        """Takes a measurement in; whether the decision changed with it."""
        before = bool(self.refusal)
        self.refusal = pressure.refusal_below(RELIEF_SHARE if before else 0.0)
        return bool(self.refusal) != before


def may_be_pressed(used_bytes: int, max_bytes: int) -> bool:
    """Whether hand-offs, which are part of what is used, could come near their limit at all."""
    return max_bytes > 0 and used_bytes >= (MAX_HANDOFF_SHARE - RELIEF_SHARE) * max_bytes


def measure_pressure(
    *,
    used_bytes: int,
    max_bytes: int,
    handoff_bytes: int,
    incoming_bytes: int = 0,
    evicts: bool = False,
) -> Pressure:
    """Shares, as they would be with `incoming_bytes` more of hand-offs.

    Args:
        used_bytes: What the server says it uses.
        max_bytes: Its limit; 0 is none.
        handoff_bytes: Bytes of hand-offs that are not released, as the janitor counts them.
        incoming_bytes: Bytes that were admitted and are not written yet.
        evicts: Whether the server makes room by itself.
    """
    if max_bytes <= 0:
        return Pressure(used_share=0.0, handoff_share=0.0, evicts=evicts)
    return Pressure(
        used_share=(used_bytes + incoming_bytes) / max_bytes,
        handoff_share=(handoff_bytes + incoming_bytes) / max_bytes,
        evicts=evicts,
    )
