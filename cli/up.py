"""`disagg up`: the whole system on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import threading
from typing import Any

from cli.access import tls_settings
from cli.local import signals
from cli.local.topology import add_system_flags, topology_of
from cli.output import say, show, show_json, table
from runtime.errors import ExitCode
from runtime.masking import mask_url

_LOOK_S = 0.5


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "up",
        help="start the whole system on this machine",
        description="Starts store, balancer, prefill and decode on this machine; Ctrl-C drains.",
        epilog="example:  disagg up --prefill-ranks 2 --decode-ranks 4",
        allow_abbrev=False,
    )
    add_system_flags(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the addresses as one JSON object when ready"
    )
    parser.set_defaults(run=run)


def url_of(http_address: str, tls_mode: str) -> str:
    """Where a browser or an SDK finds the HTTP face; empty without one."""
    scheme = "http" if tls_mode == "off" else "https"
    return f"{scheme}://{http_address}" if http_address else ""


def run(options: argparse.Namespace) -> int:
    """Runs until Ctrl-C or SIGTERM."""
    from cli.local.launcher import running_system
    from cli.local.rendezvous import announced

    topology = topology_of(options)
    stop = threading.Event()
    with running_system(topology) as system, announced(system.address):
        rows = system.rows()
        http_url = url_of(system.http_address, tls_settings().mode)
        if options.json:
            processes = [dataclasses.asdict(row) for row in rows]
            http = {"http": http_url} if http_url else {}
            traces = {"traces": system.trace_address} if system.trace_address else {}
            show_json(
                {
                    "address": system.address,
                    **http,
                    **traces,
                    "store": mask_url(system.store_url),
                    "logs": str(system.directory),
                    "processes": processes,
                }
            )
        else:
            cells = [("role", "member", "address", "state", "pid", "metrics")]
            cells += [
                (row.role, row.name, row.address, row.state, row.pid, row.metrics) for row in rows
            ]
            show()
            for line in table(cells, right=(4,)):
                show(line)
            show()
            show('ask it    disagg generate "ROMEO:" --stream')
            if http_url:
                show(f"OpenAI    {http_url}/v1")
                show(f"status    {http_url}/ui")
            if system.trace_address:
                show("traces    disagg trace REQUEST_ID")
            show(f"logs      {system.directory}")
            show("stop      Ctrl-C")
        try:
            while not stop.wait(_LOOK_S):
                signals.check()
                system.check()
        except KeyboardInterrupt:
            signals.forget()  # this is how it is meant to end
            say("\ndraining")
    say("stopped")
    return ExitCode.OK
