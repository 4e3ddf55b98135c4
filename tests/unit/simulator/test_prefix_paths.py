"""Where prefixes are found, and what travels, for the three kinds of caches."""

from __future__ import annotations

import pytest

from simulator.machines import Machines
from simulator.prefix_paths import PrefixPaths
from simulator.topology import parse_topology

PROMPT = 4 * 512 + 1
BLOCKS = (1, 2, 3, 4, 5)


def paths(cache: str) -> tuple[Machines, PrefixPaths]:
    machines = Machines(
        parse_topology(
            {"prefill": {"cache_bytes": 1e12}, "store": {"cache": cache}, "decode": {"ranks": 16}}
        )
    )
    found = PrefixPaths(machines)
    found.store(BLOCKS, PROMPT, 3)
    return machines, found


def test_a_shared_store_serves_every_engine_over_the_network() -> None:
    machines, found = paths("shared")
    assert found.lookup(BLOCKS, PROMPT) == (2048, {})
    at, num_bytes = found.load(1.0, BLOCKS, PROMPT, 0, tokens=2048, own=0)
    assert num_bytes == machines.store.loaded_bytes(2048)
    assert at == pytest.approx(1.0 + num_bytes / machines.prefill_cost.nic_bytes_per_s)
    assert machines.store_out.num_bytes == num_bytes


def test_a_local_cache_serves_its_engine_alone() -> None:
    machines, found = paths("local")
    assert found.lookup(BLOCKS, PROMPT) == (0, {machines.prefill_ids[3]: 2048})
    assert found.load(1.0, BLOCKS, PROMPT, 3, tokens=2048, own=2048) == (1.0, 0.0)


def test_pooled_caches_fetch_what_is_missing() -> None:
    machines, found = paths("pooled")
    assert found.lookup(BLOCKS, PROMPT) == (2048, {machines.prefill_ids[3]: 2048})
    assert found.load(1.0, BLOCKS, PROMPT, 3, tokens=2048, own=2048) == (1.0, 0.0)
    found.store(BLOCKS[:2], 1024, 0)
    at, num_bytes = found.load(1.0, BLOCKS, PROMPT, 0, tokens=2048, own=1024)
    assert num_bytes == machines.local[3].loaded_bytes(1024)
    assert at > 1.0
    assert machines.prefill_out[3].num_bytes == num_bytes


def test_nothing_cached_is_there_at_once() -> None:
    _, found = paths("shared")
    assert found.lookup((), PROMPT) == (0, {})
    assert found.lookup((9, 9), PROMPT) == (0, {})
    assert found.load(1.0, (9,), PROMPT, 0, tokens=0, own=0) == (1.0, 0.0)
