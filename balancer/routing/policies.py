"""The placement policies, selected by name.

`least_outstanding`: the prefill member with the fewest outstanding tokens, then requests; the
decode member whose fuller axis (requests, KV tokens) would be the least full after this request.
Ranks of a decode group step together, so the fullest rank sets the pace of all.
"""

from __future__ import annotations

from balancer.membership import MemberView, Role
from balancer.routing.base import (
    Candidate,
    Exclusion,
    Placement,
    PlacementRequest,
    Policy,
    pick,
    screen,
)

_UNBOUNDED = 1 << 30  # a member that does not say how much fits


class LeastOutstanding:
    """Least outstanding work on both sides."""

    name = "least_outstanding"
    version = 1

    def choose(
        self, request: PlacementRequest, views: tuple[MemberView, ...], rotation: int
    ) -> Placement:
        """Chooses the pair with the least outstanding work; see the module."""
        kept, exclusions = screen(request, views)
        scored = [(_score(request, view), view) for view in kept]
        candidates = tuple(
            Candidate(member_id=view.member.member_id, role=view.member.role, score=score)
            for score, view in scored
        )
        prefills = [item for item in scored if item[1].member.role is Role.PREFILL]
        if not prefills:
            return Placement(
                prefill=None,
                decode=None,
                candidates=candidates,
                exclusions=tuple(exclusions),
                reason=_why_none(exclusions),
            )
        prefill, prefill_ties = pick(prefills, rotation)
        decodes = [
            item
            for item in scored
            if item[1].member.role is Role.DECODE
            and item[1].member.fingerprint == prefill.member.fingerprint
        ]
        decode, decode_ties = pick(decodes, rotation)
        return Placement(
            prefill=prefill,
            decode=decode,
            candidates=candidates,
            exclusions=tuple(exclusions),
            reason=(
                f"least outstanding work: prefill {prefill.outstanding_tokens} tokens in "
                f"{prefill.outstanding_requests} requests (1 of {prefill_ties} equal), decode "
                f"{decode.outstanding_tokens} tokens in {decode.outstanding_requests} requests "
                f"(1 of {decode_ties} equal)"
            ),
        )


POLICIES: dict[str, type[Policy]] = {LeastOutstanding.name: LeastOutstanding}


def make_policy(name: str) -> Policy:
    """Returns the policy of that name.

    Raises:
        ValueError: No such policy; the message lists those there are.
    """
    if name not in POLICIES:
        raise ValueError(f"no placement policy {name!r}; there are: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()


def _score(request: PlacementRequest, view: MemberView) -> tuple[float, ...]:
    if view.member.role is Role.PREFILL:
        return (float(view.outstanding_tokens), float(view.outstanding_requests))
    load = view.member.load
    requests = (view.outstanding_requests + 1) / (load.max_running or _UNBOUNDED)
    needed = request.num_tokens + request.max_new_tokens
    tokens = (view.outstanding_tokens + needed) / (load.kv_capacity_tokens or _UNBOUNDED)
    return (max(requests, tokens), requests + tokens)


def _why_none(exclusions: list[Exclusion]) -> str:
    if not exclusions:
        return "no members have announced themselves"
    return f"no pair can take the request ({'; '.join(map(str, exclusions))})"
