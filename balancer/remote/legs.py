"""What the two legs of an attempt are told and what they report, and the port to the members.

Our own types, without a wire: `balancer.remote.messages` translates, `balancer.remote.peers` calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from balancer.journey.request import FinishReason, Logprobs, Sampling
from balancer.membership import Member
from balancer.remote.prefetch import Prefetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A hand-off as the balancer sees it: a name, and the bytes decode needs."""

    handoff_id: str
    fingerprint: bytes
    wire: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """A stored prefix was loaded."""

    cached_tokens: int
    num_bytes: int
    load_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first token of the attempt exists; `finish_reason` is set if it ends the generation."""

    token_id: int
    logprobs: tuple[Logprobs, ...]
    finish_reason: FinishReason | None
    queue_us: int
    compute_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The hand-off is readable; no ticket if the first token ended the generation."""

    ticket: Ticket | None
    published_bytes: int
    commit_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Something moved on; only its being there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """The first `num_blocks` blocks of the hand-off can be read already."""

    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Decode has verified the state and runs; some bytes it had read ahead."""

    fetched_bytes: int
    prefetched_bytes: int
    fetch_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """New tokens of decode; the last is numbered `seq`."""

    attempt: int
    seq: int
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finish_reason: FinishReason | None


PrefillEvent = Progress | PrefixHit | BlocksStored | FirstToken | Committed
DecodeEvent = Progress | Resumed | Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LegCall:
    """What both legs of an attempt are told.

    Attributes:
        token_ids: Prompt and what was generated behind it: for prefill everything that exists, for
            decode what the ticket covers.
        num_generated: How many of `token_ids` were generated.
    """

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_generated: int
    sampling: Sampling
    cache_salt: str


class Peers(Protocol):
    """The members' faces. Called by the pipeline on the event loop; raises DisaggError."""

    async def reserve(
        self, member: Member, request_id: str, num_tokens: int, *, timeout_s: float
    ) -> str:
        """Takes a slot and KV room on a decode member; returns the credit."""
        ...

    async def release(self, member: Member, credit_id: str, *, timeout_s: float) -> None:
        """Gives a credit back; idempotent, failures do not matter (credits expire)."""
        ...

    def prefill(
        self,
        member: Member,
        call: LegCall,
        *,
        bypass_prefix: bool,
        report_stored: bool,
        timeout_s: float,
    ) -> AsyncGenerator[PrefillEvent]:
        """Runs a prefill; closing the iterator cancels it."""
        ...

    def prefetch(
        self, member: Member, call: LegCall, credit_id: str, *, timeout_s: float
    ) -> Prefetch:
        """Lets a decode member read the hand-off of a prefill ahead; raises nothing."""
        ...

    def decode(
        self, member: Member, call: LegCall, ticket: Ticket, credit_id: str, *, timeout_s: float
    ) -> AsyncGenerator[DecodeEvent]:
        """Runs a decode; closing the iterator cancels it."""
        ...
