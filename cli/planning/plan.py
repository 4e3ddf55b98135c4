"""`disagg plan`: the smallest cluster for a trace and its targets, and what binds it."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from cli.errors import usage
from cli.output import plural, show, show_json, size, table
from cli.planning.progress import Progress
from cli.planning.workload import add_workload_flags, slo_of, topology_of, trace_of
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from simulator.planner import Plan, Trial

DEFAULT_GOODPUT = 0.99
DEFAULT_REQUESTS = 1500


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="find the smallest cluster for a trace and its targets",
        description="Searches prefill engines, group sizes, decode ranks, network and store bytes "
        "for the smallest cluster on which the default policy serves a trace within its targets. "
        "Names the constraint that binds and the smaller clusters that would have violated the "
        "targets. Exit code 1 when no cluster would do.",
        epilog="example:  disagg plan --trace conversation_trace.jsonl --slo ttft=2s,tpot=50ms",
        allow_abbrev=False,
    )
    add_workload_flags(parser)
    parser.add_argument(
        "--goodput",
        type=float,
        default=DEFAULT_GOODPUT,
        metavar="SHARE",
        help=f"requests that must meet the targets (default {DEFAULT_GOODPUT})",
    )
    parser.add_argument(
        "--load", type=float, default=1.0, metavar="F", help="factor on the trace's rate (1.0)"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=DEFAULT_REQUESTS,
        metavar="N",
        help=f"simulate the busiest N requests in a row (default {DEFAULT_REQUESTS})",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from simulator.planner import Planner, busiest
    from simulator.topology import TopologyError

    if not 0 < options.goodput <= 1:
        raise usage(f"--goodput {options.goodput}: give a share above 0, at most 1")
    if options.requests < 1:
        raise usage(f"--requests {options.requests}: give 1 or more")
    if not 0 < options.load < float("inf"):
        raise usage(f"--load {options.load}: give a positive number")
    slo = slo_of(options)
    trace = busiest(trace_of(options), options.requests).faster(options.load)
    progress, tried = Progress(), 0

    def told(cluster: str) -> None:
        nonlocal tried
        tried += 1
        progress.note(f"cluster {tried}: {cluster}")

    try:
        plan = Planner(
            trace=trace,
            base=topology_of(options),
            slo=slo,
            goodput=options.goodput,
            seed=options.seed,
            told=told,
        ).search()
    except TopologyError as error:
        raise usage(str(error)) from error
    finally:
        progress.finish()
    if options.json:
        show_json(_as_json(plan, trace.name, len(trace.requests), str(slo), options.goodput))
    else:
        _show(plan, trace.name, len(trace.requests), trace.rate, str(slo), options.goodput)
    return ExitCode.OK if plan.is_good else ExitCode.FAILED


def _as_json(plan: Plan, name: str, requests: int, slo: str, goodput: float) -> dict[str, Any]:
    return {
        "trace": {"name": name, "requests": requests},
        "slo": slo,
        "wanted_goodput": goodput,
        "is_good": plan.is_good,
        "goodput": round(plan.best.goodput, 6),
        "topology": _topology(plan.best),
        "engines_by_class": plan.engines_by_class,
        "binding": plan.binding,
        "would_have_violated": [_trial(trial) for trial in plan.violated],
        "tried": plan.tried,
    }


def _topology(trial: Trial) -> dict[str, Any]:
    """In the form of a topology file, and what it amounts to."""
    found = dataclasses.asdict(trial.topology)
    return found | {"accelerators": trial.accelerators}


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "change": trial.change,
        "accelerators": trial.accelerators,
        "goodput": round(trial.goodput, 6),
        "missed": {
            "ttft": round(trial.late, 6),
            "tpot": round(trial.slow, 6),
            "refused": round(trial.refused, 6),
        },
    }


def _show(plan: Plan, name: str, requests: int, rate: float, slo: str, goodput: float) -> None:
    topology = plan.best.topology
    prefill, decode = topology.prefill, topology.decode
    show(f"{name}: the busiest {requests:,} requests, {rate:.2f} a second; good: {slo}")
    show(f"{topology.model} on {topology.hardware}, {plan.tried} clusters tried")
    show()
    by_class = ", ".join(f"{name} {count:g}" for name, count in plan.engines_by_class.items())
    nic = topology.hardware_changes.get("nic_gbits_per_s", "-")
    rows = [
        (
            "prefill",
            f"{plural(prefill.groups, 'group')} of {plural(prefill.ranks, 'engine')} ({by_class})",
        ),
        ("decode", f"{plural(decode.groups, 'group')} of {plural(decode.ranks, 'rank')}"),
        ("store", _stored(topology.store.capacity_bytes)),
        ("network", f"{nic} Gbit/s a rank"),
        ("accelerators", str(plan.best.accelerators)),
        ("goodput", f"{plan.best.goodput:.2%} of {goodput:.2%} wanted"),
        ("binds", plan.binding),
    ]
    for line in table(rows):
        show(line)
    show()
    if not plan.is_good:
        show("no cluster that was tried is good enough; this is the best of them")
        return
    if not plan.violated:
        return
    show("would have violated the targets:")
    header = ("change", "accelerators", "goodput", "late", "slow", "refused")
    trials = [
        (
            trial.change,
            str(trial.accelerators),
            f"{trial.goodput:.2%}",
            f"{trial.late:.2%}",
            f"{trial.slow:.2%}",
            f"{trial.refused:.2%}",
        )
        for trial in plan.violated
    ]
    for line in table([header, *trials], right=(1, 2, 3, 4, 5)):
        show(line)


def _stored(num_bytes: float) -> str:
    """What a store holds, for people."""
    if num_bytes >= 1e8:
        return f"{num_bytes / 1e9:,.1f} GB"
    return size(round(num_bytes)) if num_bytes else "none"
