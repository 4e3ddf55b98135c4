"""Placement with its memory: the one object that decides, live, in the simulator and in a replay.

It puts four things together: the members, a policy, what the policy remembers, and the ring of
records. Pure but for its own state: calls and `now` in, records out; no clock, no event loop.

    place(request, now)    before anything is sent; the weight of the choice is put on both members
    prefill_ended(...)     when the prefill of an attempt came to an end, whatever way
    finished(...)          when the request left for good
"""

from __future__ import annotations

from collections.abc import Callable

from balancer.decisions import DecisionRecord, DecisionRing, decide
from balancer.membership import Membership
from balancer.routing.base import PlacementRequest, Policy, Verdict
from balancer.routing.events import Decided, Event, Finished, PrefillEnded, RoundBegan
from balancer.snapshot import Snapshot


class Router:
    """Decides and remembers.

    Args:
        members: Who could serve; told about heartbeats and work by others.
        decisions: Keeps the records.
        on_event: Told every event that was not derived from a decision, before it takes effect;
            for a journal.
    """

    def __init__(
        self,
        *,
        members: Membership,
        policy: Policy,
        decisions: DecisionRing,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._members = members
        self._policy = policy
        self._decisions = decisions
        self._on_event = on_event
        self._memory = policy.memory()
        self._rotation = 0

    @property
    def policy(self) -> Policy:
        """Who decides."""
        return self._policy

    def place(self, request: PlacementRequest, now: float) -> DecisionRecord:
        """Decides where a request runs, and keeps the record.

        The caller assigns `placement.quota_s` to the prefill member and prompt plus
        `placement.output_tokens` to the decode member before it lets anybody else decide.
        """
        snapshot = self._members.snapshot(now)
        if now >= self._memory.next_round_at(now):
            self._memory.observe(_round(snapshot))
        record = decide(
            self._policy,
            request,
            snapshot,
            rotation=self._rotation,
            now=now,
            knowledge=self._memory.knowledge(),
        )
        self._rotation += 1
        self._decisions.append(record)
        self._memory.observe(_decided(record))
        return record

    def prefill_ended(
        self,
        request_id: str,
        now: float,
        *,
        compute_s: float | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """A prefill came to an end; see `PrefillEnded`."""
        self._tell(
            PrefillEnded(
                request_id=request_id, at=now, compute_s=compute_s, cached_tokens=cached_tokens
            )
        )

    def finished(self, request_id: str, now: float, *, output_tokens: int | None = None) -> None:
        """A request left for good; see `Finished`."""
        self._tell(Finished(request_id=request_id, at=now, output_tokens=output_tokens))

    def tell(self, event: Event) -> None:
        """Takes an event that was recorded elsewhere; for replays."""
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
        self._memory.observe(event)


def _round(snapshot: Snapshot) -> RoundBegan:
    columns = snapshot.prefill
    rows = [row for row, code in enumerate(columns.cause.tolist()) if code == 0]
    return RoundBegan(
        at=snapshot.taken_at,
        engines=tuple(
            (columns.fixed.ids[row], float(columns.quota_s[row]), int(columns.requests[row]))
            for row in rows
        ),
        longest_tokens=max((int(columns.fixed.max_model_len[row]) for row in rows), default=0),
    )


def _decided(record: DecisionRecord) -> Decided:
    placement, request = record.placement, record.request
    is_placed = placement.verdict is Verdict.PLACE
    return Decided(
        request_id=request.request_id,
        at=record.decided_at,
        num_tokens=request.num_tokens,
        cached_tokens=request.cached_tokens,
        length_class=placement.length_class,
        quota_s=placement.quota_s,
        prefill_id=placement.prefill_side.chosen_id if is_placed else "",
        decode_id=placement.decode_side.chosen_id if is_placed else "",
    )
