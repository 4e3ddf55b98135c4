"""`disagg explain REQUEST_ID`: why a request ran where it ran."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cli.access import access_of, add_access_flags
from cli.errors import CommandError, calls
from cli.output import duration, plural, show, show_json, table
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from disagg.v1 import routing_pb2

_TIMEOUT_S = 60.0
_MAX_ROWS = 12  # of a role on a terminal; --json tells all
_ROLES = {1: "prefill", 2: "decode"}
_INPUTS = {"quota_s": "predicted seconds", "tokens": "tokens", "requests": "requests"}


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="say why a request ran where it ran",
        description="Shows the placement decisions on a request, decided again from their records. "
        "`disagg generate --json` prints the id of its request.",
        epilog="example:  disagg explain 3f0c9d2e-5a41-4c1e-9b7a-0d6f4f1f2a10 --what-if",
        allow_abbrev=False,
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="id of a request")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the balancer it came to (default: the system that `disagg up` started here)",
    )
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="also search for the smallest changes that would have changed the choice",
    )
    add_access_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 if no decision on the request is known."""
    from cli.local import rendezvous

    address = options.address or rendezvous.find()
    if address is None:
        raise CommandError(
            "no system was started on this machine; run `disagg up`, or give --address",
            ExitCode.CONFIGURATION,
        )
    decisions = _ask(address, options)
    if not decisions:
        raise CommandError(
            f"{address} keeps no decision on request {options.request_id!r}: it never placed a "
            "request of that id, or so many came since that the record was dropped "
            "(routing.records); check the id, or ask the balancer that served it with --address",
            ExitCode.FAILED,
        )
    if options.json:
        from disagg.plain import plain

        show_json(
            {"request_id": options.request_id, "decisions": [plain(item) for item in decisions]}
        )
        return ExitCode.OK
    show(f"request {options.request_id}: {plural(len(decisions), 'decision')}")
    for decision in decisions:
        for line in lines_of(decision):
            show(line)
    return ExitCode.OK


def _ask(address: str, options: argparse.Namespace) -> list[routing_pb2.Decision]:
    from client.calls import errors_of
    from client.checks import check_text
    from client.transport import open_channel
    from disagg.v1 import routing_pb2, routing_pb2_grpc

    with calls(address), errors_of():
        check_text("REQUEST_ID", options.request_id)
        access = access_of(options)
        with open_channel(address, access) as channel:
            stub = routing_pb2_grpc.RoutingServiceStub(channel)
            request = routing_pb2.ExplainRequest(
                request_id=options.request_id, what_if=options.what_if
            )
            answer = stub.Explain(request, timeout=_TIMEOUT_S, metadata=access.metadata)
            return list(answer.decisions)


def lines_of(decision: routing_pb2.Decision) -> Iterator[str]:
    """A decision as text."""
    again = "gives the same again" if decision.is_reproduced else "DOES NOT GIVE THE SAME AGAIN"
    yield ""
    yield (
        f"attempt {decision.attempt}, {decision.age_s:.1f} s ago: {decision.verdict.upper()}, "
        f"by {decision.policy} version {decision.policy_version}; the record {again}"
    )
    yield (
        f"  prompt    {decision.num_tokens:,} tokens, {decision.cached_tokens:,} of them stored; "
        f"length class {_class(decision.class_names, decision.length_class)}"
    )
    yield (
        f"  expected  {duration(decision.quota_s * 1e6)} of prefill, an answer of "
        f"{plural(decision.output_tokens, 'token')}"
    )
    yield f"  reason    {decision.reason}"
    for name, side in (("prefill", decision.prefill), ("decode", decision.decode)):
        yield ""
        yield from _side_lines(name, side, decision.class_names)
    if decision.has_changes:
        yield ""
        yield "  what would change the choice"
        for change in decision.changes:
            yield f"    {_sentence(change)}"
        if not decision.changes:
            yield "    no change of a single input"


def _side_lines(name: str, side: routing_pb2.DecisionSide, names: Sequence[str]) -> Iterator[str]:
    num_candidates, num_excluded = len(side.considered), len(side.excluded)
    yield f"  {name}: {plural(num_candidates, 'candidate')}, {num_excluded} excluded"
    if side.considered:
        terms = [term.name for term in side.considered[0].score]
        head = ("", "member", "class", "age", "requests", "tokens", "work", "| score", *terms)
        rows = [head, *(_row(member, names) for member in side.considered[:_MAX_ROWS])]
        if not any(member.HasField("length_class") for member in side.considered):
            rows = [(*row[:2], *row[3:]) for row in rows]
        columns = [number for number in range(2, len(rows[0])) if "score" not in rows[0][number]]
        yield from table(rows, right=columns, indent="    ")
        yield from _rest(num_candidates)
    for item in side.excluded[:_MAX_ROWS]:
        detail = f" ({item.detail})" if item.detail else ""
        yield f"    - {item.member_id}: {item.cause}{detail}"
    yield from _rest(num_excluded)
    if side.runner_up_id and side.margin_name:
        yield (
            f"    {side.chosen_id} before {side.runner_up_id} by {side.margin:.4g} in "
            f"{side.margin_name}"
        )
    elif side.runner_up_id:
        yield f"    {side.ties} are equally good: it was the turn of {side.chosen_id}"


def _row(member: routing_pb2.ConsideredMember, names: Sequence[str]) -> tuple[str, ...]:
    return (
        ">" if member.is_chosen else "",
        member.member_id,
        _class(names, member.length_class) if member.HasField("length_class") else "any",
        duration(member.age_s * 1e6),
        f"{member.outstanding_requests:,}",
        f"{member.outstanding_tokens:,}",
        duration(member.outstanding_quota_s * 1e6) if member.outstanding_quota_s else "-",
        "|",
        *(f"{term.value:.4g}" for term in member.score),
    )


def _class(names: Sequence[str], number: int) -> str:
    """Its limits; its number where the balancer names none."""
    return names[number] if number < len(names) else str(number)


def _rest(count: int) -> Iterator[str]:
    if count > _MAX_ROWS:
        yield f"    ... and {count - _MAX_ROWS:,} more; --json tells all"


def _sentence(change: routing_pb2.DecisionChange) -> str:
    chosen = change.chosen_id
    then = f"{chosen} would be chosen" if chosen else "there would be no pair"
    return (
        f"if {_INPUTS.get(change.input, change.input)} of {_ROLES.get(change.role, 'member')} "
        f"{change.member_id} were {change.after:,.6g} instead of {change.before:,.6g}, {then}"
    )
