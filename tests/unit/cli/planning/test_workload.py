"""Flags that `simulate` and `plan` share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.planning.workload import add_workload_flags, slo_of, topology_of, trace_of
from simulator.results.slo import Slo
from simulator.topology import parse_topology

HEAD = Path(__file__).parents[3] / "data" / "azure_conv_head.csv"


def options(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser)
    return parser.parse_args(["--trace", str(HEAD), *flags])


def test_defaults() -> None:
    given = options()
    assert slo_of(given) == Slo()
    topology = topology_of(given)
    assert (topology.hardware, topology.model) == ("h800", "v4.1-flash")
    assert len(trace_of(given).requests) == 1000


def test_flags_go_before_the_file() -> None:
    base = parse_topology({"hardware": "a800", "model": "v4-flash"})
    found = topology_of(options("--hardware", "gb200"), base)
    assert (found.hardware, found.model) == ("gb200", "v4-flash")


def test_a_generated_trace_follows_the_seed() -> None:
    first, second = (trace_of(options("--trace", "generated:50", "--seed", s)) for s in "12")
    assert len(first.requests) == 50
    assert first != second


@pytest.mark.parametrize(
    "flags",
    [
        ("--trace", "generated:0"),
        ("--trace", "generated:x"),
        ("--trace", "generated:99999999"),
        ("--trace", "generated", "--seed", "-1"),
        ("--trace", "nowhere.jsonl"),
    ],
)
def test_traces_that_cannot_be(flags: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as caught:
        trace_of(options(*flags))
    assert caught.value.exit_code == 2
    assert "--" in str(caught.value)


def test_targets_that_cannot_be() -> None:
    with pytest.raises(CommandError, match="--slo: 'x' is no target"):
        slo_of(options("--slo", "x"))
