"""Rows about processes as such."""

from __future__ import annotations

from runtime.metrics import Metrics
from runtime.metrics.processes import PROCESS_ROWS
from runtime.metrics.rows import MEMBERS, SERVING, STORE
from runtime.metrics.table import TABLE


def test_they_are_in_the_table() -> None:
    assert all(row in TABLE for row in PROCESS_ROWS)


def test_causes_of_what_goes_wrong_are_there_before_it_does() -> None:
    found = {role: Metrics(role=role).snapshot() for role in (*SERVING, STORE)}
    for role, snapshot in found.items():
        assert snapshot["disagg_scrapes_dropped_total{cause=slow}"] == 0
        assert ("disagg_http_refused_total{cause=denied}" in snapshot) == (role == "balancer")
        lookups = "disagg_receiver_lookups_total{outcome=no_answer}"
        assert (lookups in snapshot) == (role in MEMBERS)
