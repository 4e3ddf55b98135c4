"""`disagg members`: who serves, as one balancer sees it; and the addresses behind names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.access import access_of
from cli.errors import CommandError, calls
from cli.output import duration, plural, show, show_json, table
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from disagg.v1.membership_pb2 import Member

_TIMEOUT_S = 10.0
_STALE = "stale"
_ROLES = {1: "prefill", 2: "decode"}


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "members",
        help="list prefill and decode members as a balancer sees them",
        description="Lists every rank that announces itself, with its load and its KV layout: "
        "prefill and decode of equal layouts work together, others never meet.",
        epilog="example:  disagg members --address 127.0.0.1:50051",
        allow_abbrev=False,
    )
    add_balancer_flag(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def add_balancer_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of a command that asks a balancer for members."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the balancer to ask (default: the system that `disagg up` started here)",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 if nobody announces itself."""
    members = ask(options)
    if options.json:
        from disagg.plain import plain

        fingerprints = [member.fingerprint.hex() for member in members]
        for member in members:
            member.ClearField("fingerprint")  # bytes are no JSON
        show_json(
            {
                "members": [
                    {**plain(member), "fingerprint": fingerprint}
                    for member, fingerprint in zip(members, fingerprints, strict=True)
                ]
            }
        )
    elif members:
        for line in lines_of(members):
            show(line)
    else:
        show("no member announces itself")
    return ExitCode.OK if members else ExitCode.FAILED


def ask(options: argparse.Namespace) -> list[Member]:
    """The members that the balancer of `options` knows, by role, group and rank.

    Raises:
        CommandError: There is no balancer, or it does not answer.
    """
    from cli.local import rendezvous
    from client.calls import errors_of
    from client.transport import open_channel
    from disagg.v1 import membership_pb2, membership_pb2_grpc

    address = options.address or rendezvous.find()
    if address is None:
        raise CommandError(
            "no system was started on this machine; run `disagg up`, or give --address",
            ExitCode.CONFIGURATION,
        )
    with calls(address), errors_of(), open_channel(address, access_of()) as channel:
        stub = membership_pb2_grpc.MembershipServiceStub(channel)
        answer = stub.ListMembers(membership_pb2.ListMembersRequest(), timeout=_TIMEOUT_S)
    return sorted(answer.members, key=lambda m: (m.role, m.group_id, m.rank, m.member_id))


def state_of(member: Member) -> str:
    """What a member may be given: `ready` alone takes new work.

    `stale` is one that the balancer has not heard for too long; what it said then is not known now.
    """
    if member.exclusion == _STALE:
        return _STALE
    if member.draining:
        return "draining"
    if member.exclusion:
        return member.exclusion.replace("_", " ")
    return "ready" if member.ready else "not ready"


def lines_of(members: Sequence[Member]) -> list[str]:
    """A table, and a line for each KV layout that has no partner."""
    rows = [("role", "member", "address", "state", "running", "waiting", "KV", "heard", "layout")]
    for member in members:
        load = member.load
        state = state_of(member)
        share = load.kv_tokens / load.kv_capacity_tokens if load.kv_capacity_tokens else 0.0
        rows.append(
            (
                _ROLES.get(member.role, "unknown"),
                member.member_id,
                member.address,
                state,
                *(
                    ("-", "-", "-")
                    if state == _STALE
                    else (f"{load.running:,}", f"{load.waiting:,}", f"{share:.0%}")
                ),
                f"{duration(member.age.ToTimedelta().total_seconds() * 1e6)} ago",
                member.fingerprint.hex(),
            )
        )
    return [*table(rows, right=(4, 5, 6, 7), indent=""), *_lonely(members)]


def _lonely(members: Sequence[Member]) -> list[str]:
    sides: dict[str, set[str]] = {}
    for member in members:
        if state_of(member) == "ready":
            sides.setdefault(member.fingerprint.hex(), set()).add(_ROLES.get(member.role, ""))
    return [
        f"layout {layout}: {role} without a partner that is ready, so it serves nothing"
        for layout, roles in sorted(sides.items())
        for role in roles
        if len(roles) == 1
    ] or [f"{plural(len(sides), 'layout')} can serve" if sides else "no member is ready"]
