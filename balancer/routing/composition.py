"""A policy made of two rules, one per role, and the order in which they speak.

    screen -> full decode members -> members without a partner -> the prefill rule -> decode

A rule sees the whole request and answers with columns of scores; lower is better, the first column
counts most. When the prefill rule leaves nobody, members it excluded only for now (busy, another
class) mean "ask again later", and members that would be too slow mean a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from balancer.membership.members import ExclusionCause, Role
from balancer.membership.snapshot import CODE_OF, Codes, Columns, Floats, Ints, Snapshot
from balancer.routing.base import Knowledge, Memory, Placement, PlacementRequest, Verdict
from balancer.routing.draws import draw_seed
from balancer.routing.judgement import Judgement
from balancer.routing.options import RoutingOptions
from balancer.routing.screening import exclude, pair, screen

Terms = list[tuple[str, Floats | Ints]]
"""Columns of scores by name, most important first, each `[candidates]`."""

_HOLDING = [
    CODE_OF[cause]
    for cause in (ExclusionCause.BUSY, ExclusionCause.OTHER_CLASS, ExclusionCause.MOVING)
]
_REJECTING = CODE_OF[ExclusionCause.TOO_SLOW]
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One decision to be made, with what all rules derive from it.

    Attributes:
        quota_s: Predicted prefill seconds when the store's prefix is used.
        output_tokens: Expected output, at most what the request allows.
    """

    request: PlacementRequest
    snapshot: Snapshot
    knowledge: Knowledge
    options: RoutingOptions
    rotation: int
    length_class: int
    quota_s: float
    output_tokens: int

    @property
    def now(self) -> float:
        """When it is made."""
        return self.snapshot.taken_at

    def cached_tokens(self, columns: Columns, rows: Ints) -> Ints:
        """Prompt tokens each candidate need not compute: from the store, or its own if more."""
        cached = np.full(len(rows), self.request.cached_tokens, dtype=np.int64)
        if self.request.local_cached:
            local = np.zeros(len(columns), dtype=np.int64)
            for member_id, tokens in self.request.local_cached.items():
                row = columns.fixed.row_of.get(member_id)
                if row is not None:
                    local[row] = tokens
            np.maximum(cached, local[rows], out=cached)
        return cached

    def prefill_s(self, cached_tokens: Ints) -> Floats:
        """Predicted prefill seconds by cached tokens; at least one token is computed."""
        quota, length = self.knowledge.quota, self.request.num_tokens
        new = np.maximum(1, length - cached_tokens)
        seconds: Floats = quota.a * new + quota.b * new * (length - new / 2) + quota.c
        return seconds

    def seed(self) -> int:
        """64 bits for draws, different for each decision and balancer."""
        request = self.request
        return draw_seed(self.options.salt, request.request_id, request.attempt, self.rotation)


class Rule(Protocol):
    """How one role is judged. Pure; called once per decision."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes members out by writing to `cause`."""
        ...

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """Scores of the candidates."""
        ...


class Composed:
    """A policy of two rules; see the module.

    Args:
        why: One phrase on what the rules prefer.
        price: Seconds of prefill on each candidate, if a member's own cache or a transfer counts.
        make_memory: Makes the memory; called once per router.
    """

    def __init__(
        self,
        *,
        name: str,
        version: int,
        why: str,
        prefill: Rule,
        decode: Rule,
        options: RoutingOptions,
        make_memory: Callable[[], Memory],
        price: Callable[[Case, Columns, Ints], Floats] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self._why = why
        self._rules = {Role.PREFILL: prefill, Role.DECODE: decode}
        self._options = options
        self._make_memory = make_memory
        self._price = price or _price

    def memory(self) -> Memory:
        """See `Policy`."""
        return self._make_memory()

    def choose(
        self, request: PlacementRequest, snapshot: Snapshot, knowledge: Knowledge, rotation: int
    ) -> Placement:
        """See `Policy`."""
        case = make_case(request, snapshot, knowledge, self._options, rotation)
        causes = screen(request, snapshot)
        self._rules[Role.DECODE].exclude(case, snapshot.decode, causes[Role.DECODE])
        pair(snapshot, causes)
        self._rules[Role.PREFILL].exclude(case, snapshot.prefill, causes[Role.PREFILL])
        prefill = self._judge(Role.PREFILL, case, causes[Role.PREFILL])
        if prefill.chosen >= 0:
            layouts = snapshot.decode.fixed.layouts
            is_other = layouts != snapshot.prefill.fixed.layouts[prefill.chosen]
            exclude(causes[Role.DECODE], is_other, ExclusionCause.OTHER_LAYOUT)
        decode = self._judge(Role.DECODE, case, causes[Role.DECODE])
        is_placed = prefill.chosen >= 0 and decode.chosen >= 0
        verdict, why, retry_after_s = Verdict.PLACE, self._why, 0.0
        quota_s = case.quota_s
        if request.local_cached and is_placed:
            quota_s = float(self._price(case, snapshot.prefill, np.array([prefill.chosen]))[0])
        if not is_placed:
            verdict, why, retry_after_s = _without_pair(snapshot, causes)
        return Placement(
            verdict=verdict,
            prefill_side=prefill,
            decode_side=decode,
            length_class=case.length_class,
            quota_s=quota_s,
            output_tokens=case.output_tokens,
            wait_s=float(snapshot.prefill.quota_s[prefill.chosen]) if is_placed else 0.0,
            retry_after_s=retry_after_s,
            why=why,
        )

    def _judge(self, role: Role, case: Case, cause: Codes) -> Judgement:
        columns = case.snapshot.of(role)
        rows = np.flatnonzero(cause == 0)
        terms = self._rules[role].terms(case, columns, rows) if len(rows) else []
        chosen, ties = pick([column for _, column in terms], len(rows), case.rotation)
        scores = np.empty((len(rows), len(terms)))
        for index, (_, column) in enumerate(terms):
            scores[:, index] = column
        return Judgement(
            snapshot=case.snapshot,
            role=role,
            needed_tokens=case.request.num_tokens + case.request.max_new_tokens,
            cause=cause,
            rows=rows,
            names=tuple(name for name, _ in terms),
            scores=scores,
            chosen=int(rows[chosen]) if chosen >= 0 else -1,
            ties=ties,
        )


def make_case(
    request: PlacementRequest,
    snapshot: Snapshot,
    knowledge: Knowledge,
    options: RoutingOptions,
    rotation: int,
) -> Case:
    """Derives what all rules need."""
    length_class = options.class_of(request.num_tokens)
    expected = round(knowledge.output_tokens[length_class])
    return Case(
        request=request,
        snapshot=snapshot,
        knowledge=knowledge,
        options=options,
        rotation=rotation,
        length_class=length_class,
        quota_s=knowledge.quota.seconds(request.num_tokens, request.cached_tokens),
        output_tokens=min(request.max_new_tokens, max(1, expected)),
    )


def _price(case: Case, columns: Columns, rows: Ints) -> Floats:
    return case.prefill_s(case.cached_tokens(columns, rows))


def pick(columns: list[Floats | Ints], num_candidates: int, rotation: int) -> tuple[int, int]:
    """Index of the lexicographically lowest candidate and how many share its scores.

    Ties go by rotation; (-1, 0) without candidates.
    """
    if not num_candidates:
        return -1, 0
    best = np.arange(num_candidates)
    for column in columns:
        values = column[best]
        best = best[values == values.min()]
        if len(best) == 1:
            break
    return int(best[rotation % len(best)]), len(best)


def _without_pair(snapshot: Snapshot, causes: dict[Role, Codes]) -> tuple[Verdict, str, float]:
    """What to do when nobody can take the request now, why, and when to ask again."""
    waits, cause = snapshot.prefill.quota_s, causes[Role.PREFILL]
    is_busy = np.isin(cause, _HOLDING)
    if is_busy.any():
        wait_s = max(_MIN_RETRY_S, float(waits[is_busy].min()))
        return Verdict.HOLD, "every prefill member that could serve it is busy", wait_s
    for role in Role:
        if (causes[role] == _REJECTING).any():
            wait_s = max(_MIN_RETRY_S, float(waits.min(initial=_MAX_RETRY_S)))
            why = f"every {role.value} member would miss the latency target"
            return Verdict.REJECT, why, wait_s
    return Verdict.NO_PAIR, "", 0.0
