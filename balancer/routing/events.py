"""What a policy's memory is told. Plain data: written down, they replay to the same decisions.

Decided                 the router, after every decision
RoundBegan              the router, when a round is over: before a decision, or as time passes
PrefillEnded            the pipeline, when a prefill ended in any way
Finished                the pipeline, when a request left for good
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A request was placed, or looked for a place in vain.

    Attributes:
        prefill_id: Where its prefill runs; empty if it was not placed.
        decode_id: Where its decode will run; empty if it was not placed.
        quota_s: Predicted prefill seconds.
    """

    request_id: str
    at: float
    num_tokens: int
    cached_tokens: int
    length_class: int
    quota_s: float
    prefill_id: str = ""
    decode_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillEnded:
    """A placed prefill came to an end.

    Attributes:
        compute_s: Measured seconds of its computation; None if it failed or was not measured.
        cached_tokens: What it really took from the store; None: as expected when it was placed.
    """

    request_id: str
    at: float
    compute_s: float | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request left for good: answered, failed, refused or cancelled. Harmless twice.

    Attributes:
        output_tokens: Length of a complete answer; None if it was cut short.
    """

    request_id: str
    at: float
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBegan:
    """A round is over and the next one begins.

    Attributes:
        engines: Prefill members that take work, ascending by id, with their outstanding seconds
            and requests.
        longest_tokens: The longest context any of them serves.
    """

    at: float
    engines: tuple[tuple[str, float, int], ...]
    longest_tokens: int


Event = Decided | PrefillEnded | Finished | RoundBegan
