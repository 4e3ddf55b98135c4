"""The metric table keeps its own rules."""

from __future__ import annotations

import pytest

from runtime.metrics.rows import AUTOMATIC, SERVING, STORE, Metric
from runtime.metrics.table import TABLE

IDS = {"request_id", "tenant", "pod", "member", "member_id", "trace_id", "instance"}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_follows_the_rules(row: Metric) -> None:
    prefix = ("vllm:",) if row.is_alias else ("disagg_", "gen_ai_", "http_", "rpc_")
    assert row.name.startswith(prefix)
    assert (row.kind == "counter") == row.name.endswith("_total")
    assert not IDS & set(row.labels)
    assert (row.kind == "histogram") == bool(row.buckets)
    assert list(row.buckets) == sorted(set(row.buckets))
    for known in row.known:
        assert set(known) <= set(row.labels) - set(AUTOMATIC)
    assert set(row.roles) <= {*SERVING, STORE}
    assert row.help.endswith(".")


def test_units_are_base_units() -> None:
    scaled = ("_ms", "_us", "_milliseconds", "_mb", "_mib", "_percent")
    assert [row.name for row in TABLE if row.name.removesuffix("_total").endswith(scaled)] == []
