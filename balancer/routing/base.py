"""The contract of placement: what goes in, what comes out, what every policy shares.

A policy is a pure function of (request, views, rotation): the same input gives the same pair live,
in a replay and in a simulator. Filters remove and say why, scores rank, one picker breaks ties by
rotation. A new idea of placement is a new policy in `policies.py`, never a branch in the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from balancer.membership import ExclusionCause, MemberView, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What placement may know of a request.

    Attributes:
        num_tokens: Tokens that prefill must have KV for.
        max_new_tokens: Tokens that decode may still generate.
        avoid: Members that failed this request before.
        full: Members that refused this request a moment ago for lack of room.
    """

    request_id: str
    attempt: int
    num_tokens: int
    max_new_tokens: int
    avoid: frozenset[str] = frozenset()
    full: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A member that was no candidate, and why."""

    member_id: str
    role: Role
    cause: ExclusionCause
    detail: str = ""

    def __str__(self) -> str:
        """One phrase for messages."""
        return f"{self.member_id}: {self.cause.value}" + (f", {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A member that could have been chosen, with its score; the lowest score wins."""

    member_id: str
    role: Role
    score: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A chosen pair, with everything that led to it.

    Attributes:
        prefill: View of the chosen prefill member; None if there is no pair.
        decode: View of the chosen decode member; None if there is no pair.
        reason: One sentence: why this pair, or why none.
    """

    prefill: MemberView | None
    decode: MemberView | None
    candidates: tuple[Candidate, ...]
    exclusions: tuple[Exclusion, ...]
    reason: str


class Policy(Protocol):
    """Chooses a pair. Called by the pipeline on the event loop, once per attempt; pure."""

    @property
    def name(self) -> str:
        """Name in settings and records."""
        ...

    @property
    def version(self) -> int:
        """Grows whenever the same input may give another answer."""
        ...

    def choose(
        self, request: PlacementRequest, views: tuple[MemberView, ...], rotation: int
    ) -> Placement:
        """Chooses; `rotation` breaks ties and grows by one with every decision."""
        ...


def screen(
    request: PlacementRequest, views: Iterable[MemberView]
) -> tuple[list[MemberView], list[Exclusion]]:
    """Splits members into candidates and excluded ones, with the reason of each.

    A member whose fingerprint no ready member of the other role shares is excluded too: KV written
    by one layout is never read by another.
    """
    exclusions: list[Exclusion] = []
    fit: list[MemberView] = []
    for view in views:
        cause, detail = _why_not(request, view)
        if cause is None:
            fit.append(view)
        else:
            exclusions.append(_exclude(view, cause, detail))
    layouts = {
        role: {view.member.fingerprint for view in fit if view.member.role is role} for role in Role
    }
    shared = layouts[Role.PREFILL] & layouts[Role.DECODE]
    exclusions += [
        _exclude(view, ExclusionCause.NO_PARTNER, view.member.fingerprint.hex())
        for view in fit
        if view.member.fingerprint not in shared
    ]
    return [view for view in fit if view.member.fingerprint in shared], exclusions


def pick(
    scored: list[tuple[tuple[float, ...], MemberView]], rotation: int
) -> tuple[MemberView, int]:
    """Returns the view with the lowest score and how many shared it; ties by rotation."""
    best = min(score for score, _ in scored)
    ties = [view for score, view in scored if score == best]
    return ties[rotation % len(ties)], len(ties)


def _exclude(view: MemberView, cause: ExclusionCause, detail: str) -> Exclusion:
    return Exclusion(
        member_id=view.member.member_id, role=view.member.role, cause=cause, detail=detail
    )


def _why_not(request: PlacementRequest, view: MemberView) -> tuple[ExclusionCause | None, str]:
    member = view.member
    if view.exclusion is not None:
        return view.exclusion, view.detail
    if member.member_id in request.avoid:
        return ExclusionCause.FAILED_BEFORE, ""
    if member.member_id in request.full:
        return ExclusionCause.FULL, ""
    needed = request.num_tokens + request.max_new_tokens
    if needed > member.max_model_len:
        return ExclusionCause.CONTEXT, f"{needed} tokens do not fit in {member.max_model_len}"
    capacity = member.load.kv_capacity_tokens
    if capacity and needed > capacity:
        return ExclusionCause.CAPACITY, f"{needed} tokens never fit in {capacity}"
    return None, ""
