"""How full a store is, and whether it should take another hand-off: decisions over numbers.

Leased bytes can be evicted like any others, since the server's LRU knows no leases. So hand-offs
stay below a share of its memory at which that does not happen, and new work is shed before the
server itself refuses writes.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HANDOFF_SHARE = 0.60
"""Bytes of hand-offs that are not released yet, of the server's memory."""
MAX_USED_SHARE = 0.85
"""Bytes of everything, of the server's memory; also where an operator wants to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Shares of the server's memory, 0 to 1; both 0 where it has no limit.

    Attributes:
        used_share: Of everything.
        handoff_share: Of hand-offs that are not released yet.
    """

    used_share: float
    handoff_share: float

    @property
    def refusal(self) -> str:
        """Why a new hand-off should not be admitted; empty if it should."""
        if self.handoff_share >= MAX_HANDOFF_SHARE:
            return (
                f"hand-offs hold {self.handoff_share:.0%} of the KV store's memory, "
                f"the limit is {MAX_HANDOFF_SHARE:.0%}"
            )
        if self.used_share >= MAX_USED_SHARE:
            return (
                f"{self.used_share:.0%} of the KV store's memory is used, "
                f"the limit is {MAX_USED_SHARE:.0%}"
            )
        return ""


def measure_pressure(
    *, used_bytes: int, max_bytes: int, handoff_bytes: int, incoming_bytes: int = 0
) -> Pressure:
    """Shares, as they would be with `incoming_bytes` more of hand-offs.

    Args:
        used_bytes: What the server says it uses.
        max_bytes: Its limit; 0 is none.
        handoff_bytes: Bytes of hand-offs that are not released, as the janitor counts them.
        incoming_bytes: Bytes that were admitted and are not written yet.
    """
    if max_bytes <= 0:
        return Pressure(used_share=0.0, handoff_share=0.0)
    return Pressure(
        used_share=(used_bytes + incoming_bytes) / max_bytes,
        handoff_share=(handoff_bytes + incoming_bytes) / max_bytes,
    )
