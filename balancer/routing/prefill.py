"""Prefill placement by length class: engines of one's own class first, others by a bounded loan.

The KV store is shared, so any engine can resume any prefix: what counts is who computes first.
Inside a class the least outstanding quota wins, then fewer tokens, then rotation. With S for the
starvation bound (`starvation_s`) and the least wait among a class's engines as its wait:

    own wait <= S                      own engines only
    own wait > S                       own engines, and others that wait less by more than S
    no own engine, idle ones           those
    no own engine, none idle           hold, until S after arrival; then every engine

An engine is lent to work longer than S only if it is prompt, i.e. waits at most S, and another
prompt engine of its class stays behind. So starvation is bounded both ways: a loan never leaves the
lender's wait above the larger of S and the borrower's wait (long work never starves short work,
short work never long), and a request of a class without engines is placed within S of its arrival.
The floor of `shares` gives every class an engine when there are enough of them.

A request that would miss its first-token target wherever it may go gives way: until `give_way_s`
after its arrival it takes an idle engine or is held, so that it does not make others late that can
still be in time. A caller that stated its target is refused instead, since a late answer is none
for it; `refuse_late` has that for everybody, or nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import Codes, Columns, Fixed, Ints
from balancer.routing.composition import Case, Terms
from balancer.routing.decode import among_the_best
from balancer.routing.screening import exclude
from balancer.routing.shares import Shares

_ANY_CLASS = -1

Mask = npt.NDArray[np.bool_]


class ByClass:
    """The rule of this module."""

    def __init__(self) -> None:
        # The last shares laid out as rows; they change once a round, decisions come by thousands.
        self._laid_out: tuple[Shares, Fixed, Ints, Mask] | None = None

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes out engines of other classes, and those that still move, unless borrowed."""
        served, is_moving = self._rows_of(_shares(case), columns.fixed)
        can = cause == 0
        is_mine = (served == case.length_class) | (served == _ANY_CLASS)
        own, waits, bound_s = can & is_mine & ~is_moving, columns.quota_s, case.options.starvation_s
        own_wait_s = float(waits[own].min()) if own.any() else np.inf
        if own_wait_s <= bound_s:
            allowed = own
        else:
            others = can & ~is_mine & ~is_moving
            allowed = own | _can_be_lent(case, columns, others, served, own_wait_s)
        if not allowed.any() and (
            case.now - case.request.arrived_at >= bound_s or not (can & ~is_mine).any()
        ):
            allowed = can
        if is_late(case, columns, allowed):
            if case.options.refuses_late(case.request.attempt, case.request.ttft_slo_s):
                exclude(cause, can, ExclusionCause.TOO_SLOW)
            elif case.now - case.request.arrived_at < case.options.give_way_s:
                allowed = allowed & (columns.requests == 0)
        exclude(cause, can & ~allowed & is_mine & is_moving, ExclusionCause.MOVING)
        exclude(cause, can & ~allowed & ~is_mine, ExclusionCause.OTHER_CLASS)
        exclude(cause, can & ~allowed, ExclusionCause.BUSY)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """Outstanding seconds, then tokens."""
        terms: Terms = [("wait_s", columns.quota_s[rows]), ("tokens", columns.tokens[rows])]
        return among_the_best(case, columns, rows, terms)

    def _rows_of(self, shares: Shares, fixed: Fixed) -> tuple[Ints, Mask]:
        """Class per row (-1: any) and whether the engine still moves."""
        known = self._laid_out
        if known is None or known[0] is not shares or known[1] is not fixed:
            served = np.array(
                [shares.class_of.get(name, _ANY_CLASS) for name in fixed.ids], dtype=np.int64
            )
            moving = np.array([name in shares.moving for name in fixed.ids], dtype=np.bool_)
            known = self._laid_out = (shares, fixed, served, moving)
        return known[2], known[3]


def is_late(case: Case, columns: Columns, allowed: Mask) -> bool:
    """Whether the first token would miss its target on every engine that may take the request."""
    if not allowed.any():
        return False
    request = case.request
    first_token_at = case.now + float(columns.quota_s[allowed].min()) + case.quota_s
    target_s = case.options.ttft_target_s(request.num_tokens, request.ttft_slo_s)
    return first_token_at > request.arrived_at + target_s


def _can_be_lent(
    case: Case, columns: Columns, others: Mask, served: Ints, own_wait_s: float
) -> Mask:
    """Engines of other classes that may take this request; see the module."""
    waits, bound_s = columns.quota_s, case.options.starvation_s
    if own_wait_s == np.inf:
        lent: Mask = others & (columns.requests == 0)
    else:
        lent = others & (waits + bound_s < own_wait_s)
    if case.quota_s <= bound_s or not lent.any():
        return lent
    is_prompt = others & (waits <= bound_s)
    num_prompt = np.bincount(served[is_prompt], minlength=case.options.num_classes)
    spared: Mask = lent & is_prompt & (num_prompt[served] > 1)
    return spared


def _shares(case: Case) -> Shares:
    own = case.knowledge.own
    return own if isinstance(own, Shares) else Shares()
