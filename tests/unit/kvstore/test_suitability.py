"""A server that answers may still be unfit; each reason is named with the way out."""

from __future__ import annotations

import pytest

from kvstore.suitability import find_unfit

FIT = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.0",
    "maxmemory": 1 << 30,
    "maxmemory_policy": "volatile-lru",
    "role": "master",
    "aof_enabled": 0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"maxmemory_policy": "allkeys-lru"},
        {"maxmemory_policy": "noeviction", "maxmemory": 0},
    ],
)
def test_fit_servers(changes: dict[str, object]) -> None:
    assert find_unfit([{**FIT, **changes}]) == []


def test_redis_is_judged_by_its_own_version() -> None:
    redis = {name: value for name, value in FIT.items() if name != "valkey_version"}
    for version, is_fit in (("7.0.15", True), ("8.2.1", True), ("6.2.14", False), ("", False)):
        assert (find_unfit([{**redis, "redis_version": version}]) == []) == is_fit


@pytest.mark.parametrize(
    ("changes", "problem", "way_out"),
    [
        ({"maxmemory_policy": "volatile-ttl"}, "volatile-ttl", "volatile-lru"),
        ({"maxmemory_policy": "allkeys-random"}, "allkeys-random", "volatile-lru"),
        ({"maxmemory_policy": "noeviction"}, "noeviction", "volatile-lru"),
        (
            {"role": "slave", "master_host": "10.0.0.1", "master_port": 6379},
            "10.0.0.1:6379",
            "primary",
        ),
        ({"aof_enabled": 1}, "append-only", "appendonly"),
    ],
)
def test_unfit_servers(changes: dict[str, object], problem: str, way_out: str) -> None:
    [found] = find_unfit([FIT, {**FIT, **changes}])
    assert problem in found.problem
    assert way_out in found.way_out


def test_a_server_that_says_little_is_judged_by_what_it_says() -> None:
    assert find_unfit([]) == []
    [found] = find_unfit([{}])
    assert "unknown version" in found.problem
