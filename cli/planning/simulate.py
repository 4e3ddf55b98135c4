"""`disagg simulate`: placement policies on a trace and a cluster, on virtual time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError, usage
from cli.output import say, show, show_json, table
from cli.planning.progress import Progress
from cli.planning.workload import add_workload_flags, slo_of, topology_of, trace_of
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from simulator.results.samples import Samples
    from simulator.study import Study

DEFAULT_POLICY = "deepseek"


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "simulate",
        help="compare placement policies on a trace, without machines",
        description="Runs a request trace through the real balancer on virtual time; engines are "
        "replaced by a cost model. Policies see the same requests and fresh machines, one after "
        "the other. Without --topology the cluster is sized for the trace and its arrivals are "
        "sped up until its prefill engines are 90 % full.",
        epilog="example:  disagg simulate --trace conversation_trace.jsonl "
        "--policy deepseek,round_robin --plot pictures",
        allow_abbrev=False,
    )
    add_workload_flags(parser)
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="A,B",
        help=f"policies to compare, or `all`; with options as deepseek:refuse_late=never (default "
        f"{DEFAULT_POLICY})",
    )
    parser.add_argument(
        "--topology", type=Path, metavar="FILE", help="the cluster, as TOML or JSON"
    )
    parser.add_argument(
        "--load",
        type=float,
        default=1.0,
        metavar="F",
        help="factor on the arrival rate (default 1.0: 90 %% full, or the trace's own rate with "
        "--topology)",
    )
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write pictures there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from simulator.run import SimulationError
    from simulator.study import class_names, compare

    if options.plot is not None:
        _check_plots(options.plot)
    names = _policies(options.policy)
    study = _study(options)
    progress = Progress()
    try:
        figures, samples = compare(study, names, progress.update)
    except SimulationError as error:
        raise CommandError(f"{error}; lower --load", ExitCode.FAILED) from error
    finally:
        progress.finish()
    found = _as_json(study, figures)
    pictures = []
    if options.plot is not None:
        from simulator.results.plots import draw_all

        pictures = draw_all(options.plot, samples, study.slo, class_names(study), study.trace.name)
        say(f"{len(pictures)} pictures in {options.plot}")
    if options.json:
        show_json(found | ({"pictures": [path.name for path in pictures]} if pictures else {}))
    else:
        _show(found, figures, samples)
    return ExitCode.OK


def _check_plots(directory: Path) -> None:
    """Refuses before anything runs what would fail after it."""
    try:
        import simulator.results.plots  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--plot needs {error.name}; install disagg[plot]", ExitCode.DEPENDENCY
        ) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise usage(f"--plot {directory}: {error.strerror}; give a directory to write") from error


def _policies(text: str) -> list[str]:
    from balancer.routing.policies import POLICIES
    from simulator.study import parse_policy

    names = list(dict.fromkeys(filter(None, text.split(","))))
    if "all" in names:
        names = [*POLICIES, *(name for name in names if name not in {"all", *POLICIES})]
    try:
        for name in names or [text]:
            parse_policy(name)
    except ValueError as error:
        raise usage(f"--policy: {error}") from error
    return names


def _study(options: argparse.Namespace) -> Study:
    from simulator.machines import Machines
    from simulator.study import make_study
    from simulator.topology import TopologyError, read_topology

    if not 0 < options.load < float("inf"):
        raise usage(f"--load {options.load}: give a positive number")
    slo, trace = slo_of(options), trace_of(options)
    try:
        given = None
        if options.topology is not None:
            given = topology_of(options, read_topology(options.topology))
            Machines(given)  # refuses what cannot be built before anything runs
        return make_study(
            trace,
            given,
            base=topology_of(options),
            load=options.load,
            slo=slo,
            seed=options.seed,
        )
    except TopologyError as error:
        raise usage(str(error)) from error


def _as_json(study: Study, figures: Mapping[str, Any]) -> dict[str, Any]:
    topology, trace = study.topology, study.trace
    return {
        "trace": {
            "name": trace.name,
            "requests": len(trace.requests),
            "is_generated": trace.is_generated,
            "span_s": round(trace.span_s, 3),
            "arrivals_per_s": round(trace.rate, 4),
        },
        "cluster": {
            "hardware": topology.hardware,
            "model": topology.model,
            "prefill_engines": topology.prefill.engines,
            "prefill_groups": topology.prefill.groups,
            "decode_engines": topology.decode.engines,
            "decode_groups": topology.decode.groups,
            "cache": topology.store.cache,
        },
        "arrival_factor": round(study.arrival_factor, 4),
        "slo": str(study.slo),
        "seed": study.seed,
        "policies": dict(figures),
    }


def _show(
    found: Mapping[str, Any], figures: Mapping[str, Any], samples: Mapping[str, Samples]
) -> None:
    from simulator.results.report import table_rows

    trace, cluster = found["trace"], found["cluster"]
    made = ", generated" if trace["is_generated"] else ""
    show(
        f"{trace['name']}{made}: {trace['requests']:,} requests, {trace['arrivals_per_s']:.2f} a "
        f"second ({found['arrival_factor']:g} times as fast as in the trace)"
    )
    show(
        f"{cluster['model']} on {cluster['hardware']}: {cluster['prefill_engines']} prefill "
        f"engines in groups of {cluster['prefill_engines'] // cluster['prefill_groups']}, "
        f"{cluster['decode_engines']} decode ranks in groups of "
        f"{cluster['decode_engines'] // cluster['decode_groups']}"
    )
    show(f"good: {found['slo']}")
    show()
    for line in table(table_rows(figures), right=range(1, 14)):
        show(line)
    show()
    for name, policy in figures.items():
        use, store = policy["utilisation"], policy["store"]
        show(
            f"  {name}: prefill {use['prefill']:.0%} of its arithmetic, {store['hit_share']:.0%} "
            f"of prompt tokens found, {store['prefix_bytes'] / 1e12:.2f} TB of prefixes and "
            f"{store['handoff_bytes'] / 1e12:.2f} TB of hand-offs read, "
            f"{samples[name].decisions:,} decisions"
        )
