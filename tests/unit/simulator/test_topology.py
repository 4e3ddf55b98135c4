"""Topology files: both forms, defaults, refusals that name field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.topology import Topology, TopologyError, parse_topology, read_topology

TOML = """
hardware = "a800"
model = "llama3-70b"
[hardware_changes]
compute_efficiency = 0.3
[prefill]
groups = 1
ranks = 16
attn_tp = 8
cache_bytes = 9.6e11
[store]
cache = "pooled"
"""


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml, other = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text(TOML)
    found = read_topology(toml)
    assert (found.hardware, found.prefill.engines, found.store.cache) == ("a800", 16, "pooled")
    content = {
        "hardware": "a800",
        "model": "llama3-70b",
        "hardware_changes": {"compute_efficiency": 0.3},
        "prefill": {"groups": 1, "ranks": 16, "attn_tp": 8, "cache_bytes": 9.6e11},
        "store": {"cache": "pooled"},
    }
    other.write_text(json.dumps(content))
    assert read_topology(other) == found


def test_an_empty_file_is_the_default() -> None:
    assert parse_topology({}) == Topology()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"gpus": 5}, "no 'gpus'; known: decode, front"),
        ({"prefill": 5}, "prefill is 5; a table"),
        ({"hardware": 5}, "hardware is 5; a name"),
        ({"prefill": {"rank": 5}}, r"no prefill.rank; known: attn_tp"),
        ({"prefill": {"ranks": 0}}, r"prefill.ranks is 0; a whole number above 0"),
        ({"prefill": {"ranks": 2.5}}, r"prefill.ranks is 2.5; a whole number"),
        ({"prefill": {"ranks": True}}, r"prefill.ranks is True"),
        ({"decode": {"groups": 10**6}}, r"decode.groups is 1000000; at most 4096"),
        ({"store": {"cache": "none"}}, r"store.cache is 'none'; give one of shared, local"),
        ({"store": {"cache": 5}}, r"store.cache is 5; a text"),
        ({"store": {"cache": "local"}}, r"prefill.cache_bytes is 0: engines would keep nothing"),
        ({"front": {"hop_ms": -1}}, r"front.hop_ms is -1; a number from 0"),
        ({"front": {"heartbeat_s": float("nan")}}, r"front.heartbeat_s is nan"),
        ({"front": {"expert_skew": 0.5}}, r"expert_skew is 0.5; the busiest"),
    ],
)
def test_what_cannot_be_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(raw)


@pytest.mark.parametrize("content", [b"[prefill", b"{", b"\xff\xff", b"[" * 100_000])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=r"broken.toml is neither TOML nor JSON"):
        read_topology(path)


def test_files_are_bounded_and_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="check --topology"):
        read_topology(tmp_path / "none.toml")
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(TopologyError, match="larger than 1000000"):
        read_topology(path)
    path.write_text("[prefill]\nranks = -1\n")
    with pytest.raises(TopologyError, match=r"big.toml: prefill.ranks is -1"):
        read_topology(path)
