"""The filters all policies share, on whole columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from balancer.membership.members import ExclusionCause, Role
from balancer.membership.snapshot import CODE_OF, Codes, Columns, Snapshot
from balancer.routing.base import PlacementRequest


def screen(request: PlacementRequest, snapshot: Snapshot) -> dict[Role, Codes]:
    """A fresh cause column per role: 0 for members that could serve the request.

    Members without a partner are not looked for here: `pair` does that once a policy has taken
    out members for reasons of its own.
    """
    causes = {}
    for role in Role:
        columns = snapshot.of(role)
        cause = columns.cause.copy()
        mark(cause, columns, request.avoid, ExclusionCause.FAILED_BEFORE)
        mark(cause, columns, request.full, ExclusionCause.FULL)
        needed, fixed = request.num_tokens + request.max_new_tokens, columns.fixed
        if needed > fixed.shortest_context:
            exclude(cause, needed > fixed.max_model_len, ExclusionCause.CONTEXT)
        if needed > fixed.smallest_capacity:
            is_small = (fixed.kv_capacity > 0) & (needed > fixed.kv_capacity)
            exclude(cause, is_small, ExclusionCause.CAPACITY)
        causes[role] = cause
    return causes


def pair(snapshot: Snapshot, causes: dict[Role, Codes]) -> None:
    """Takes out members whose KV layout no candidate of the other role shares.

    KV written by one layout is never read by another.
    """
    sides = [(snapshot.of(role).fixed, causes[role]) for role in Role]
    size = max(fixed.num_layouts for fixed, _ in sides)
    is_served = np.ones(size, dtype=bool)
    for fixed, cause in sides:
        is_served &= np.bincount(fixed.layouts[cause == 0], minlength=size) > 0
    if size > 0 and is_served.all():
        return
    for fixed, cause in sides:
        exclude(cause, ~is_served[fixed.layouts], ExclusionCause.NO_PARTNER)


def exclude(cause: Codes, where: np.ndarray, why: ExclusionCause) -> None:
    """Marks rows that are candidates so far."""
    if np.count_nonzero(where):  # mostly nobody is excluded, and this is the cheapest way to see
        np.copyto(cause, np.int8(CODE_OF[why]), where=where & (cause == 0))


def mark(cause: Codes, columns: Columns, ids: Iterable[str], why: ExclusionCause) -> None:
    """Marks members by id that are candidates so far; unknown ones change nothing."""
    for member_id in ids:
        row = columns.fixed.row_of.get(member_id)
        if row is not None and cause[row] == 0:
            cause[row] = CODE_OF[why]
