"""The flags `simulate` and `plan` share: trace, hardware, model, targets; and what they name."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import usage

if TYPE_CHECKING:
    from simulator.results.slo import Slo
    from simulator.topology import Topology
    from simulator.traces.trace import Trace

GENERATED = "generated"
_MOST_GENERATED = 1_000_000


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Trace, hardware, model, targets, seed and form of the output."""
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE",
        help="Mooncake JSON lines or Azure CSV; `generated` or `generated:N` for N requests of a "
        "mix that reaches a million tokens",
    )
    parser.add_argument(
        "--hardware", default=None, metavar="NAME", help="a800, h800, h200 or gb200 (default h800)"
    )
    parser.add_argument(
        "--model",
        default=None,
        metavar="NAME",
        help="v4-flash, v4-pro, v4.1-flash, llama3-70b or a model directory (default v4.1-flash)",
    )
    parser.add_argument(
        "--slo",
        default=None,
        metavar="TARGETS",
        help="targets of a good request (default ttft=2s+1s/16k,tpot=50ms: two seconds and one "
        "more for each 16K of the prompt)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of draws (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def trace_of(options: argparse.Namespace) -> Trace:
    """The workload of the flags.

    Raises:
        CommandError: it cannot be read.
    """
    from simulator.traces.formats import TraceError, read_trace
    from simulator.traces.generate import MixSettings, generate_mix

    name, _, count = str(options.trace).partition(":")
    if name == GENERATED:
        if count and not (count.isascii() and count.isdigit() and int(count) > 0):
            raise usage(f"--trace {options.trace}: give generated:N with a whole number above 0")
        number = int(count) if count else MixSettings().num_requests
        if number > _MOST_GENERATED:
            raise usage(f"--trace {options.trace}: at most {_MOST_GENERATED} can be generated")
        if options.seed < 0:
            raise usage(f"--seed {options.seed}: give 0 or more")
        return generate_mix(options.seed, MixSettings(num_requests=number))
    try:
        return read_trace(Path(options.trace))
    except TraceError as error:
        raise usage(f"--trace: {error}") from error


def slo_of(options: argparse.Namespace) -> Slo:
    """The targets of the flags.

    Raises:
        CommandError: they cannot be read.
    """
    from simulator.results.slo import Slo, parse_slo

    if options.slo is None:
        return Slo()
    try:
        return parse_slo(options.slo)
    except ValueError as error:
        raise usage(f"--slo: {error}") from error


def topology_of(options: argparse.Namespace, base: Topology | None = None) -> Topology:
    """A topology with the hardware and the model of the flags.

    Args:
        base: What the flags leave as it is; None for the defaults.
    """
    from simulator.topology import Topology

    found = base or Topology()
    changes = {
        name: getattr(options, name) for name in ("hardware", "model") if getattr(options, name)
    }
    return dataclasses.replace(found, **changes)
