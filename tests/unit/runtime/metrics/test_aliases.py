"""Names of vLLM: every alias shows series of a row that the process has."""

from __future__ import annotations

import pytest

from runtime.metrics.aliases import ALIAS_ROWS, ALIASES
from runtime.metrics.rows import Alias
from runtime.metrics.table import TABLE
from runtime.metrics.views import NOT

ROWS = {row.name: row for row in TABLE}


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.name)
def test_an_alias_has_a_source(alias: Alias) -> None:
    source = ROWS[alias.source]
    assert set(alias.roles) <= set(source.roles)
    assert set(alias.where) <= set(source.labels)
    assert set(alias.keep.values()) <= set(source.labels)
    for label, value in alias.where.items():
        if known := source.values_of(label):
            assert value.removeprefix(NOT) in known


def test_names_are_used_once() -> None:
    names = [row.name for row in ALIAS_ROWS] + [alias.name for alias in ALIASES]
    assert len(names) == len(set(names))
    assert all(name.startswith("vllm:") for name in names)


def test_schedulers_read_members_and_latencies_come_from_the_balancer() -> None:
    roles = {item.name: set(item.roles) for item in (*ALIAS_ROWS, *ALIASES)}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert roles[f"vllm:{name}"] == {"prefill", "decode"}
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert roles[f"vllm:{name}"] == {"balancer"}
