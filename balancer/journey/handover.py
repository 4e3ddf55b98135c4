"""What the balancer answers to a caller that streams from decode by itself."""

from __future__ import annotations

from dataclasses import dataclass

from balancer.journey.request import Delta, FinishReason, Timing, Usage
from balancer.journey.state import Handover


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A request whose prefill is done.

    Attributes:
        deltas: What prefill generated.
        finish_reason: Set if that was all.
        handover: Set if not.
    """

    attempt: int
    seq: int
    deltas: tuple[Delta, ...]
    finish_reason: FinishReason | None
    handover: Handover | None
    usage: Usage
    timing: Timing
