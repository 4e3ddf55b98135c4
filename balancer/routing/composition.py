"""A policy made of two rules, one per role, and the order in which they speak.

    screen -> each rule's exclusions -> members without a partner -> prefill -> decode

A rule sees the whole request and answers with columns of scores; lower is better, the first column
counts most. Members that a rule excludes only for now (busy, another class) turn a decision
without candidates into "ask again later"; those it excludes for good turn it into a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from balancer.members import ExclusionCause, Role
from balancer.routing.base import Knowledge, Memory, Placement, PlacementRequest, Verdict
from balancer.routing.draws import draw_seed
from balancer.routing.judgement import Judgement
from balancer.routing.options import RoutingOptions
from balancer.routing.screening import exclude, pair, screen
from balancer.snapshot import CODE_OF, Codes, Columns, Floats, Ints, Snapshot

Terms = list[tuple[str, Floats | Ints]]
"""Columns of scores by name, most important first, each `[candidates]`."""

_HOLDING = frozenset(
    CODE_OF[cause]
    for cause in (ExclusionCause.BUSY, ExclusionCause.OTHER_CLASS, ExclusionCause.MOVING)
)
_REJECTING = CODE_OF[ExclusionCause.TOO_SLOW]
_MIN_RETRY_S = 0.05


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
    ) -> None:
        self.name = name
        self.version = version
        self._why = why
        self._rules = {Role.PREFILL: prefill, Role.DECODE: decode}
        self._options = options
        self._make_memory = make_memory

    def memory(self) -> Memory:
        """See `Policy`."""
        return self._make_memory()

    def choose(
        self, request: PlacementRequest, snapshot: Snapshot, knowledge: Knowledge, rotation: int
    ) -> Placement:
        """See `Policy`."""
        case = make_case(request, snapshot, knowledge, self._options, rotation)
        causes = screen(request, snapshot)
        for role, rule in self._rules.items():
            rule.exclude(case, snapshot.of(role), causes[role])
        own = {role: _own_codes(causes[role]) for role in Role}
        pair(snapshot, causes)
        prefill = self._judge(Role.PREFILL, case, causes[Role.PREFILL])
        if prefill.chosen >= 0:
            layouts = snapshot.decode.fixed.layouts
            is_other = layouts != snapshot.prefill.fixed.layouts[prefill.chosen]
            exclude(causes[Role.DECODE], is_other, ExclusionCause.OTHER_LAYOUT)
        decode = self._judge(Role.DECODE, case, causes[Role.DECODE])
        is_placed = prefill.chosen >= 0 and decode.chosen >= 0
        verdict, why, retry_after_s = Verdict.PLACE, self._why, 0.0
        if not is_placed:
            verdict, why, retry_after_s = _without_pair(case, own, causes)
        return Placement(
            verdict=verdict,
            prefill_side=prefill,
            decode_side=decode,
            length_class=case.length_class,
            quota_s=case.quota_s,
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


def _own_codes(cause: Codes) -> frozenset[int]:
    return frozenset(np.unique(cause).tolist())


def _without_pair(
    case: Case, own: dict[Role, frozenset[int]], causes: dict[Role, Codes]
) -> tuple[Verdict, str, float]:
    """What to do when nobody can take the request now."""
    codes = own[Role.PREFILL]
    if 0 in codes or 0 not in own[Role.DECODE]:
        return Verdict.NO_PAIR, "", 0.0
    waits = case.snapshot.prefill.quota_s
    if _REJECTING in codes and not codes & _HOLDING:
        slow = waits[causes[Role.PREFILL] == _REJECTING]
        wait_s = max(_MIN_RETRY_S, float(slow.min()))
        return Verdict.REJECT, "every prefill member would miss the latency target", wait_s
    if codes & _HOLDING:
        busy = waits[np.isin(causes[Role.PREFILL], list(_HOLDING))]
        wait_s = max(_MIN_RETRY_S, float(busy.min()))
        return Verdict.HOLD, "every prefill member that could serve it is busy", wait_s
    return Verdict.NO_PAIR, "", 0.0
