"""A run written down, and decided again: every input of placement, in order, one JSON line each.

Written are the calls that change what decisions see (heartbeats, work handed out and taken back,
suspicions, ends of prefills and requests) and every decision with its outcome. That is all a
decision depends on, so `replay` puts the same calls to fresh objects and compares outcomes one by
one. The first line names the policy and its options.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from balancer.explain.decisions import DecisionRing
from balancer.membership import Membership
from balancer.membership.members import Load, Member, Role
from balancer.router import Router
from balancer.routing.base import PlacementRequest
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from balancer.routing.quota import FlopCount

FORMAT = 1


class JournalError(Exception):
    """A journal that cannot be replayed; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a decision came to: the verdict and the pair, empty ids without one."""

    verdict: str
    prefill_id: str
    decode_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One decision of the recorded run and of its replay."""

    request_id: str
    line: int
    recorded: Outcome
    replayed: Outcome

    @property
    def is_equal(self) -> bool:
        """Whether both came to the same."""
        return self.recorded == self.replayed


def recorded_router(
    write: Callable[[str], None],
    *,
    policy: str,
    options: RoutingOptions,
    stale_after_s: float,
    forget_after_s: float,
    records: int,
) -> tuple[Membership, Router]:
    """Fresh members and router whose inputs are written down, line by line.

    Args:
        write: Takes one line without its end; called on the router's event loop.
    """
    bounds = {"stale_after_s": stale_after_s, "forget_after_s": forget_after_s}
    chosen = make_policy(policy, options)
    header = {
        "format": FORMAT,
        "policy": policy,
        "version": chosen.version,
        "options": dataclasses.asdict(options),
        **bounds,
    }
    write(json.dumps(header))

    def note(call: str, arguments: Mapping[str, Any]) -> None:
        write(json.dumps({"call": call, **{k: _plain(v) for k, v in arguments.items()}}))

    members = Membership(**bounds, on_call=note)
    router = Router(members=members, policy=chosen, decisions=DecisionRing(records), on_call=note)
    return members, router


def gap_line(lines: int) -> str:
    """Stands where so many lines are missing."""
    return json.dumps({"call": "gap", "lines": lines})


def replay(lines: Iterable[str]) -> Iterator[Compared]:
    """Decides a recorded run again; yields every decision as it comes.

    Raises:
        JournalError: A line cannot be read, or another version of the policy wrote the journal.
    """
    members: Membership | None = None
    router: Router | None = None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if members is None or router is None:
                members, router = _from_header(entry)
                continue
            call = entry.pop("call")
            if call == "gap":
                raise JournalError(
                    f"line {number}: {entry['lines']} lines were dropped here, so what follows "
                    "cannot be decided again"
                )
            if call == "place":
                yield _place(router, entry, number)
            elif call in _MEMBER_CALLS:
                getattr(members, call)(**_arguments(entry))
            elif call in _ROUTER_CALLS:
                getattr(router, call)(**entry)
            else:
                raise JournalError(f"line {number}: unknown call {call!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"line {number} cannot be replayed: {error!r}") from error


_MEMBER_CALLS = frozenset(
    {
        "absolve",
        "assign",
        "listen",
        "observe",
        "order_drain",
        "probe",
        "suspect",
        "sweep",
        "unassign",
    }
)
_ROUTER_CALLS = frozenset({"prefill_ended", "finished", "pass_time"})


def _place(router: Router, entry: dict[str, Any], number: int) -> Compared:
    request = dict(entry["request"])
    for name in ("avoid", "full"):
        request[name] = frozenset(request[name])
    for name, value in request.items():
        if name in ("deadline", "ttft_slo_s", "tpot_slo_s") and value == "inf":
            request[name] = math.inf
    record = router.place(PlacementRequest(**request), entry["now"])
    placement = record.placement
    return Compared(
        request_id=record.request.request_id,
        line=number,
        recorded=Outcome(**entry["outcome"]),
        replayed=Outcome(
            verdict=placement.verdict.value,
            prefill_id=placement.prefill_id,
            decode_id=placement.decode_id,
        ),
    )


def _from_header(header: dict[str, Any]) -> tuple[Membership, Router]:
    if header.get("format") != FORMAT:
        raise JournalError(f"line 1: format {header.get('format')!r} is not {FORMAT}")
    values = dict(header["options"])
    values["boundaries"] = tuple(values["boundaries"])
    values["flops"] = FlopCount(**values["flops"])
    policy = make_policy(header["policy"], RoutingOptions(**values))
    if policy.version != header["version"]:
        raise JournalError(
            f"line 1: {policy.name} version {header['version']} decided, this is version "
            f"{policy.version}; replay with the release that recorded"
        )
    members = Membership(
        stale_after_s=header["stale_after_s"], forget_after_s=header["forget_after_s"]
    )
    return members, Router(members=members, policy=policy, decisions=DecisionRing(1))


def _plain(value: Any) -> Any:
    """A value as JSON knows it."""
    match value:
        case Member():
            plain = dataclasses.asdict(value)
            return {**plain, "role": value.role.value, "fingerprint": value.fingerprint.hex()}
        case PlacementRequest():
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {name: _plain(item) for name, item in fields.items()}
        case frozenset():
            return sorted(value)
        case Mapping():
            return dict(value)
        case float() if math.isinf(value):
            return "inf"
        case _:
            return value


def _arguments(entry: dict[str, Any]) -> dict[str, Any]:
    if "member" in entry:
        fields = dict(entry["member"])
        fields["role"] = Role(fields["role"])
        fields["fingerprint"] = bytes.fromhex(fields["fingerprint"])
        fields["load"] = Load(**fields["load"])
        return {**entry, "member": Member(**fields)}
    return entry
