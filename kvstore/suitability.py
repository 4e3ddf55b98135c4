"""Whether a server is fit to hold the store: decisions over what it says of itself.

A server can answer every command and still lose hand-offs, or fill up for good. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvstore.backends.base import Facts

MIN_REDIS = (7, 0)
"""The first version whose PEXPIRE takes GT. Every Valkey has it."""

_POLICIES = {
    "volatile-ttl": "evicts what has the shortest life first, which is leases and hand-offs",
    "volatile-random": "evicts leases and hand-offs as readily as blocks that nobody uses",
    "allkeys-random": "evicts leases and hand-offs as readily as blocks that nobody uses",
}
_SET_POLICY = "set maxmemory-policy to volatile-lru"


class Unfit(NamedTuple):
    """Something that makes a server unfit, and what to do about it."""

    problem: str
    way_out: str


def find_unfit(servers: Sequence[Facts]) -> list[Unfit]:
    """What makes servers unfit, by the INFO of each (see `KeyStore.facts`); empty if nothing."""
    return [unfit for facts in servers for unfit in _judge(facts)]


def _judge(facts: Facts) -> Iterator[Unfit]:
    def text(name: str, default: str = "") -> str:
        return str(facts.get(name, default))

    version = text("redis_version")
    if "valkey_version" not in facts and _numbers(version) < MIN_REDIS:
        yield Unfit(
            f"Redis {version or 'of an unknown version'} is too old",
            "use Redis 7.0 or newer, or any Valkey",
        )
    policy, limit = text("maxmemory_policy", "noeviction"), text("maxmemory", "0")
    if policy in _POLICIES:
        yield Unfit(f"maxmemory-policy {policy} {_POLICIES[policy]}", _SET_POLICY)
    if policy == "noeviction" and limit != "0":
        yield Unfit(
            "maxmemory-policy noeviction keeps blocks that nobody uses until their life ends, and "
            "refuses new hand-offs meanwhile",
            _SET_POLICY,
        )
    if text("role", "master") != "master":
        yield Unfit(
            f"it is a replica of {text('master_host')}:{text('master_port')} and takes no writes",
            "give the URL of the primary, or redis+sentinel:// with the sentinels",
        )
    if text("aof_enabled", "0") != "0":
        yield Unfit(
            "it writes every block to an append-only file",
            "set appendonly to no: the store is a cache, and what is lost is computed again",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
