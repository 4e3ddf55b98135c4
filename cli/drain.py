"""`disagg drain TARGET`: takes a rank, a group or any process out of service, or puts it back."""

from __future__ import annotations

import argparse
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cli.access import access_of, add_access_flags
from cli.errors import CommandError, usage
from cli.local import signals
from cli.members import add_balancer_flag, ask
from cli.output import plural, show, show_json
from runtime.clock import SystemClock
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from client.transport import Access

_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.5


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "drain",
        help="let a process end its work and take no more, or take work again",
        description="Drains processes: they refuse new work, what runs there ends as usual, and "
        "they stay until they are stopped. A SIGTERM does the same and stops them then.",
        epilog="example:  disagg drain decode-0 --wait 600",
        allow_abbrev=False,
    )
    parser.add_argument(
        "targets",
        metavar="TARGET",
        nargs="+",
        help="a group (all its ranks) or a member, as `disagg members` names them, or HOST:PORT of "
        "any process, balancers too",
    )
    add_balancer_flag(parser)
    add_access_flags(parser)
    parser.add_argument("--undo", action="store_true", help="take new work again")
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="wait until nothing runs there any more; exit code 1 if that takes longer",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 if a process does not answer, or still has work after `--wait`."""
    if options.undo and options.wait is not None:
        raise usage("--wait waits for the end of a drain; leave it out with --undo")
    if options.wait is not None and not 0 < options.wait <= 86_400:
        raise usage(f"--wait {options.wait:g}: give seconds, more than 0 and at most a day")
    addresses, access = _resolve(options), access_of(options)
    keyless = dataclasses.replace(access, api_key="")

    def call(name: str) -> int:
        # Members take no keys, so none is sent where a balancer says that they are.
        address = addresses[name]
        return _call(address, access if name == address else keyless, undo=options.undo)

    running = {name: call(name) for name in addresses}
    if options.wait is not None:
        running = _wait(call, running, options.wait)
    is_over = options.undo or options.wait is None or not any(running.values())
    if options.json:
        processes = [
            {"target": name, "address": addresses[name], "running": count}
            for name, count in running.items()
        ]
        show_json({"draining": not options.undo, "processes": processes})
    else:
        for name, count in running.items():
            told = "takes work again" if options.undo else f"drains, {plural(count, 'call')} left"
            show(f"{name}  {addresses[name]}  {told}")
    return ExitCode.OK if is_over else ExitCode.FAILED


def _resolve(options: argparse.Namespace) -> dict[str, str]:
    """Addresses by name, each process once."""
    found: dict[str, str] = {}
    names: Sequence[str] = [target for target in options.targets if ":" not in target]
    members = ask(options) if names else []
    for target in options.targets:
        if ":" in target:
            found[target] = target
            continue
        hits = [m for m in members if target in (m.member_id, m.group_id)]
        if not hits:
            groups = ", ".join(sorted({member.group_id for member in members})) or "none"
            raise CommandError(
                f"the balancer knows no member or group {target!r}; its groups are: {groups}. "
                "`disagg members` lists all; HOST:PORT reaches a process directly",
                ExitCode.FAILED,
            )
        found |= {member.member_id: member.address for member in hits}
    return found


def _wait(call: Callable[[str], int], running: dict[str, int], limit_s: float) -> dict[str, int]:
    """Asks again until nothing runs; returns what is left."""
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.now() + limit_s
    while any(running.values()) and clock.now() < deadline:
        pause.wait(min(_LOOK_AGAIN_S, max(0.0, deadline - clock.now())))
        signals.check()
        # Asking to drain twice is harmless, and the answer says what is left.
        running = {name: call(name) if left else 0 for name, left in running.items()}
    return running


def _call(address: str, access: Access, *, undo: bool) -> int:
    """Drains the process at an address, or undoes it; returns the calls that run there."""
    from client.calls import errors_of
    from client.errors import ClientError
    from client.transport import open_channel
    from disagg.v1 import admin_pb2, admin_pb2_grpc

    try:
        with errors_of(), open_channel(address, access) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            key = access.metadata
            if undo:
                stub.Undrain(admin_pb2.UndrainRequest(), timeout=_TIMEOUT_S, metadata=key)
                return 0
            answer = stub.Drain(admin_pb2.DrainRequest(), timeout=_TIMEOUT_S, metadata=key)
            return int(answer.running)
    except ClientError as error:
        raise CommandError(
            f"{address}: {error.reason or error.code}: {error}; is a process of the system there, "
            "and do --api-key-file and the settings tls.* of this command fit it?",
            ExitCode.FAILED,
        ) from error
