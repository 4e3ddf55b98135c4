"""The contract of placement: what goes in, what comes out, and the port every policy fills.

A policy is two things. `choose` is a pure function of (request, snapshot, knowledge, rotation): the
same input gives the same placement live, in a replay and in a simulator. `Memory` is what happened
so far, told by events (`balancer.routing.events`), and condenses into `Knowledge`: small, immutable
and kept in every record, so that a record alone can be decided again.

Filters remove and say why, scores rank in lexicographic order (the lowest wins), one picker breaks
ties by rotation. A new idea of placement is a new module here, never a branch in the pipeline.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from balancer.membership.members import MemberView, Role
from balancer.membership.snapshot import Snapshot
from balancer.routing.events import Event
from balancer.routing.judgement import Candidate, Exclusion, Judgement
from balancer.routing.quota import QuotaModel

FOREVER = float("inf")


class Verdict(enum.Enum):
    """What a decision says to do."""

    PLACE = "place"
    HOLD = "hold"  # ask again after `retry_after_s`; the request keeps its place in the queue
    REJECT = "reject"  # refuse the request with a retry hint
    NO_PAIR = "no pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What placement may know of a request.

    Attributes:
        num_tokens: Tokens that prefill must have KV for; decides the length class.
        max_new_tokens: Tokens that decode may still generate.
        avoid: Members that failed this request before.
        full: Members that refused this request a moment ago for lack of room.
        cached_tokens: Prompt tokens whose KV the store has and any member can resume from.
        local_cached: Prompt tokens that single members hold themselves, by member id; for policies
            with caches that are not shared. Members that are not named hold none.
        arrived_at: Seconds of the balancer's clock, as are all instants.
        deadline: When the answer must be complete.
        ttft_slo_s, tpot_slo_s: What the caller was promised; None: the policy's own targets.
    """

    request_id: str
    attempt: int
    num_tokens: int
    max_new_tokens: int
    avoid: frozenset[str] = frozenset()
    full: frozenset[str] = frozenset()
    cached_tokens: int = 0
    local_cached: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    tenant: str = ""
    arrived_at: float = 0.0
    deadline: float = FOREVER
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What a decision may know of the past; immutable, shared by records until it changes.

    Attributes:
        quota: Predicts prefill seconds.
        output_tokens: Running estimate of output length, by length class.
        own: What only this policy keeps, e.g. which engine serves which class.
    """

    quota: QuotaModel
    output_tokens: tuple[float, ...]
    own: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A decision, with everything that led to it.

    Attributes:
        prefill_side, decode_side: How the members of each role were judged, and who was chosen;
            a side without a choice means that there is no pair.
        length_class: Index of the request's length class.
        quota_s: Predicted seconds of prefill: what to assign to the prefill member.
        output_tokens: Expected output: with the prompt, what to assign to the decode member.
        wait_s: Predicted seconds until prefill begins on the chosen member.
        retry_after_s: When to ask again, for HOLD and REJECT.
        why: One phrase on the rule that decided.
    """

    verdict: Verdict
    prefill_side: Judgement
    decode_side: Judgement
    length_class: int
    quota_s: float
    output_tokens: int
    wait_s: float = 0.0
    retry_after_s: float = 0.0
    why: str = ""

    @property
    def prefill(self) -> MemberView | None:
        """View of the chosen prefill member; None unless the verdict is PLACE."""
        return self.prefill_side.view(self.prefill_side.chosen) if self._is_placed else None

    @property
    def decode(self) -> MemberView | None:
        """View of the chosen decode member; None unless the verdict is PLACE."""
        return self.decode_side.view(self.decode_side.chosen) if self._is_placed else None

    @property
    def prefill_id(self) -> str:
        """Id of the chosen prefill member; empty unless the verdict is PLACE."""
        return self.prefill_side.chosen_id if self._is_placed else ""

    @property
    def decode_id(self) -> str:
        """Id of the chosen decode member; empty unless the verdict is PLACE."""
        return self.decode_side.chosen_id if self._is_placed else ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Members that could have been chosen, with their scores; made when asked for."""
        return self.prefill_side.candidates() + self.decode_side.candidates()

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """Members that could not be chosen, and why; made when asked for."""
        return self.prefill_side.exclusions() + self.decode_side.exclusions()

    @property
    def reason(self) -> str:
        """One sentence: why this pair, or why none."""
        if self._is_placed:
            return (
                f"{self.why}: prefill {self.prefill_side.summary()}, "
                f"decode {self.decode_side.summary()}"
            )
        if self.verdict is not Verdict.NO_PAIR:
            return self.why
        exclusions = "; ".join(map(str, self.exclusions))
        if not exclusions:
            return "no members have announced themselves"
        return f"no pair can take the request ({exclusions})"

    @property
    def _is_placed(self) -> bool:
        return self.verdict is Verdict.PLACE


class Memory(Protocol):
    """What a policy remembers. Belongs to one router; the same events give the same knowledge."""

    def observe(self, event: Event) -> None:
        """Takes one event, in order. Called by the router, as often as requests come and go."""
        ...

    def knowledge(self) -> Knowledge:
        """What decisions may know; the same object as long as nothing changed."""
        ...

    def next_round_at(self, now: float) -> float:
        """When the router should tell `RoundBegan`; infinity: this policy has no rounds."""
        ...


class Policy(Protocol):
    """Chooses pairs; stateless and pure, so one object serves any number of routers and threads."""

    @property
    def name(self) -> str:
        """Name in settings and records."""
        ...

    @property
    def version(self) -> int:
        """Grows whenever the same input may give another answer."""
        ...

    def memory(self) -> Memory:
        """A fresh memory, once per router."""
        ...

    def choose(
        self, request: PlacementRequest, snapshot: Snapshot, knowledge: Knowledge, rotation: int
    ) -> Placement:
        """Decides, once per attempt; `rotation` breaks ties and grows with every decision."""
        ...


__all__ = [
    "FOREVER",
    "Candidate",
    "Exclusion",
    "Judgement",
    "Knowledge",
    "Memory",
    "Placement",
    "PlacementRequest",
    "Policy",
    "Role",
    "Verdict",
]
