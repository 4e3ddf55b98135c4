"""Placement with its memory: the one object that decides, live, in the simulator and in a replay.

It puts four things together: the members, a policy, what the policy remembers, and the ring of
records. Pure but for its own state: calls and `now` in, records out; no clock, no event loop.

    place(request, now)    before anything is sent; the weight of the choice is put on both members
    prefill_ended(...)     when the prefill of an attempt came to an end, whatever way
    finished(...)          when the request left for good
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from balancer.explain.decisions import DecisionRecord, DecisionRing, decide
from balancer.membership import Membership
from balancer.membership.snapshot import Snapshot
from balancer.routing.base import Knowledge, PlacementRequest, Policy
from balancer.routing.events import Decided, Finished, PrefillEnded, RoundBegan


class Router:
    """Decides and remembers.

    Args:
        members: Who could serve; told about heartbeats and work by others.
        decisions: Keeps the records.
        on_call: Told every call that changes what decisions see, with its arguments, and every
            decision with its outcome; for a journal.
    """

    def __init__(
        self,
        *,
        members: Membership,
        policy: Policy,
        decisions: DecisionRing,
        on_call: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._members = members
        self._policy = policy
        self._decisions = decisions
        self._on_call = on_call
        self._memory = policy.memory()
        self._rotation = 0

    @property
    def policy(self) -> Policy:
        """Who decides."""
        return self._policy

    @property
    def decisions(self) -> DecisionRing:
        """The records."""
        return self._decisions

    def knowledge(self) -> Knowledge:
        """What the next decision will know of the past."""
        return self._memory.knowledge()

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
        if self._on_call is not None:
            placement = record.placement
            outcome = {
                "verdict": placement.verdict.value,
                "prefill_id": placement.prefill_id,
                "decode_id": placement.decode_id,
            }
            self._on_call("place", {"request": request, "now": now, "outcome": outcome})
        return record

    def pass_time(self, now: float) -> None:
        """Ends a round that is over although nobody asks; call it now and then."""
        # Rounds are counted from the first decision on.
        if self._rotation and now >= self._memory.next_round_at(now):
            self._note("pass_time", now=now)
            self._memory.observe(_round(self._members.snapshot(now)))

    def prefill_ended(
        self,
        request_id: str,
        now: float,
        *,
        compute_s: float | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """A prefill came to an end; see `PrefillEnded`."""
        self._note(
            "prefill_ended",
            request_id=request_id,
            now=now,
            compute_s=compute_s,
            cached_tokens=cached_tokens,
        )
        self._memory.observe(
            PrefillEnded(
                request_id=request_id, at=now, compute_s=compute_s, cached_tokens=cached_tokens
            )
        )

    def finished(self, request_id: str, now: float, *, output_tokens: int | None = None) -> None:
        """A request left for good; see `Finished`."""
        self._note("finished", request_id=request_id, now=now, output_tokens=output_tokens)
        self._memory.observe(Finished(request_id=request_id, at=now, output_tokens=output_tokens))

    def _note(self, call: str, **arguments: Any) -> None:
        if self._on_call is not None:
            self._on_call(call, arguments)


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
    return Decided(
        request_id=request.request_id,
        at=record.decided_at,
        num_tokens=request.num_tokens,
        cached_tokens=request.cached_tokens,
        length_class=placement.length_class,
        quota_s=placement.quota_s,
        prefill_id=placement.prefill_id,
        decode_id=placement.decode_id,
    )
