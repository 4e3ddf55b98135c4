"""Rows and quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.results.samples import RequestRow, quantiles


def test_latencies_of_a_row() -> None:
    row = RequestRow(1.0, 100, 11, 0, first_at=3.0, finished_at=4.0)
    assert row.ttft_s == 2.0
    assert row.tpot_s == pytest.approx(0.1)
    assert math.isnan(RequestRow(1.0, 100, 1, 0, first_at=3.0, finished_at=3.0).tpot_s)
    assert math.isnan(RequestRow(1.0, 100, 5, 0).ttft_s)


def test_quantiles_are_observed_values() -> None:
    found = quantiles([5.0, 1.0, float("nan"), 3.0, 2.0, 4.0])
    assert found == {"mean": 3.0, "p50": 3.0, "p90": 5.0, "p99": 5.0}


def test_quantiles_agree_with_numpy() -> None:
    data = np.random.default_rng(0).exponential(size=5000)
    found = quantiles(data)
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert found[name] == np.percentile(data, share, method="inverted_cdf")


def test_weights_are_repetitions() -> None:
    values, weights = [1.0, 2.0, 9.0], [5, 3, 2]
    assert quantiles(values, weights) == quantiles([1.0] * 5 + [2.0] * 3 + [9.0] * 2)


def test_nothing_has_no_quantiles() -> None:
    assert all(math.isnan(value) for value in quantiles([float("nan")]).values())
