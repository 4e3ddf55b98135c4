"""Flags to a system: what there is, and clear refusals of what there is not."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local.topology import Topology, add_system_flags, topology_of
from runtime.errors import ExitCode

MODEL = Path(__file__).parents[4] / "models" / "tiny-v4"


def of(*arguments: str) -> Topology:
    parser = argparse.ArgumentParser()
    add_system_flags(parser)
    return topology_of(parser.parse_args(["--model", str(MODEL), *arguments]))


def test_defaults() -> None:
    topology = of()
    assert (topology.prefill_ranks, topology.decode_ranks) == (1, 2)
    assert topology.store_url is None
    assert str(topology) == "tiny-v4, 1 prefill + 2 decode ranks"


def test_ranks_and_layouts_say_the_same() -> None:
    assert of("--prefill-ranks", "2", "--decode-ranks", "4") == of(
        "--prefill-layout", "dp=2,ep=2", "--decode-layout", "dp=4,ep=4"
    )
    assert of("--decode-ranks", "4", "--decode-layout", "ep=4").decode_ranks == 4
    assert of("--store", "redis://h:1").store_url == "redis://h:1"
    assert (of().http_port, of("--http", "0").http_port) == (None, 0)


@pytest.mark.parametrize(
    ("layout", "ranks"), [("dp=8", 8), ("ep=3", 3), ("dp=2, ep=2", 2), ("cp=1,dp=2", 2)]
)
def test_layouts_of_data_parallel_ranks(layout: str, ranks: int) -> None:
    side = of("--decode-layout", layout).decode
    assert (side.ranks, side.engines, side.layout) == (ranks, ranks, "")
    assert side.flags == ("--ranks", str(ranks))


def test_layouts_of_engines_with_several_ranks() -> None:
    topology = of("--prefill-layout", "ep=8,cp=2", "--decode-layout", "dp=8,ep=8,attn_tp=2,path=b")
    assert (topology.prefill.ranks, topology.prefill.engines) == (8, 4)
    assert topology.prefill.flags == ("--layout", "dp=4,cp=2,ep=8")
    assert (topology.decode.ranks, topology.decode.engines) == (16, 8)
    assert topology.decode.flags == ("--layout", "dp=8,attn_tp=2,ep=8,path=b")
    assert str(topology) == (
        "tiny-v4, 8 prefill + 16 decode ranks (prefill dp=4,cp=2,ep=8, decode "
        "dp=8,attn_tp=2,ep=8,path=b)"
    )


REFUSED = [
    (["--http", "65536"], "--http 65536: give a port, 1 to 65535, or 0"),
    (["--store", "memory://"], "--store memory://: each process would have a memory of its own"),
    (["--store", "memory://u:p@"], "--store memory://u:***@: each process"),
    (["--redundant", "-1"], "--redundant -1: give 0 or more experts"),
    (
        ["--redundant", "17"],
        "--redundant 17, prefill ranks dp=1,ep=1: SLOTS: min_redundant 17 is more than the 16 that "
        "double each of the 16 experts: give 16 or less; with one rank (ep 1) none is of use",
    ),
    (
        ["--redundant", "17", "--prefill-ranks", "4"],
        "--redundant 17, decode ranks dp=2,ep=2: SLOTS: min_redundant 17 is more than the 16",
    ),
    (["--draft", "on"], "use --draft off"),
    (["--decode-layout", "dp=4,cp=2,ep=8"], "V6: cp 2 with a decode engine"),
    (["--decode-layout", "dp=2,ep=8"], "V2: ep 8 does not divide dp * cp = 2 * 1 = 2"),
    (["--decode-layout", "dp=2,attn_tp=4"], "HEADS: attn_tp 4 does not divide both the 4 heads"),
    (["--prefill-layout", "dp=2,cp=2,attn_tp=2"], "PATH: cp 2 and attn_tp 2"),
    (
        ["--decode-layout", "dp=2,path=b"],
        "--decode-layout dp=2,path=b: path=b cuts the rows of attn_tp ranks",
    ),
    (["--decode-layout", "dp=2,path=c"], "path=c is not one of a, b"),
    (["--decode-layout", "dp"], "dp needs a positive number"),
    (["--decode-layout", "dp=2,"], "dp=2,: there is nothing between or after its commas"),
    (["--decode-layout", "dp=0"], "dp needs a positive number"),
    (["--decode-layout", "dp=1,dp=2"], "twice"),
    (["--decode-layout", "tp=2"], "'tp=2' is not one of dp, cp, ep, enp, attn_tp, path"),
    (["--decode-ranks", "2", "--decode-layout", "dp=4"], "give one of them"),
    (["--model", "/nowhere"], "there is no config.json"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_there_is_not_is_refused_with_exit_2(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        of(*arguments)
    assert message in str(caught.value)
    assert caught.value.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize("ranks", ["0", "-1", "x", "257"])
def test_ranks_are_counts(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        of("--decode-ranks", ranks)
    assert caught.value.code == 2
    assert "number of ranks" in capsys.readouterr().err or ranks == "-1"


def test_traces_are_recorded_where_they_are_asked_for() -> None:
    assert not of().has_traces
    assert of("--trace").has_traces
