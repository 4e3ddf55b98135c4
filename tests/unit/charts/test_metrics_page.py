"""The reference of all metrics follows from their table."""

from __future__ import annotations

from charts.metrics_page import page
from runtime.metrics.aliases import ALIASES
from runtime.metrics.table import TABLE


def test_every_metric_is_on_the_page_once() -> None:
    first = [line.split("|")[1].strip() for line in page().splitlines() if line[:2] == "| "]
    for name in [row.name for row in TABLE] + [alias.name for alias in ALIASES]:
        assert first.count(f"`{name}`") == 1, name


def test_a_line_has_everything_that_is_public() -> None:
    lines = {line.split("|")[1].strip(): line for line in page().splitlines() if "| `" in line}
    line = lines["`disagg_kv_lookup_blocks_total`"]
    assert "| counter | result (hit, miss, partial) | P |" in line
    assert "| histogram, bytes |" in lines["`disagg_handoff_bytes`"]
    failed = lines["`vllm:nixl_num_failed_transfers_total`"]
    assert '`disagg_handoff_total` where outcome="!ok"' in failed
