"""Figures from samples: the keys of the JSON, goodput, the table."""

from __future__ import annotations

import json

from simulator.results.report import report, table_rows
from simulator.results.samples import Look, RequestRow, Samples
from simulator.results.slo import Slo

CLASSES = ("<16K", "16K-64K")


def row(ttft: float, tpot: float, tokens: int = 100, outputs: int = 11) -> RequestRow:
    number = int(tokens >= 16_384)
    return RequestRow(
        0.0,
        tokens,
        outputs,
        number,
        first_at=ttft,
        second_at=ttft + tpot,
        finished_at=ttft + tpot * (outputs - 1),
    )


def samples() -> Samples:
    found = Samples(
        rows=[row(1.0, 0.01), row(5.0, 0.01), row(1.0, 0.09), row(2.9, 0.01, tokens=16_384)]
    )
    found.rows.append(RequestRow(1.0, 50, 5, 0, refused="late"))
    found.gaps = [(0.01, 36)]
    found.looks = [
        Look(at=0.0, waiting=(1, 0), engines=(), imbalance=(1.0, 2.0)),
        Look(at=1.0, waiting=(0, 0), engines=(), imbalance=(3.0, float("nan"))),
        Look(at=9.0, waiting=(0, 0), engines=(), imbalance=(64.0, 64.0)),  # nothing arrives
    ]
    found.traffic.prompt_tokens, found.traffic.cached_tokens = 1000, 250
    return found


FOUND = report(samples(), Slo(), CLASSES)


def test_goodput_counts_offered_requests() -> None:
    # One is too late, one too slow, one refused.
    assert FOUND["goodput"] == 2 / 5
    assert (FOUND["offered"], FOUND["completed"], FOUND["rejected"]) == (5, 4, 1)
    assert FOUND["refused_why"] == {"late": 1}


def test_the_documented_keys_are_there() -> None:
    for key in ("ttft", "tpot", "itl"):
        assert set(FOUND[key]) == {"mean", "p50", "p90", "p99"}
    assert FOUND["imbalance"] == {"requests": 2.0, "kv": 2.0}
    assert FOUND["store"]["hit_share"] == 0.25
    assert FOUND["classes"]["16K-64K"]["goodput"] == 1.0
    assert FOUND["ttft_under_16k"]["p99"] == 5.0


def test_gaps_hold_every_token_and_the_hand_off() -> None:
    assert FOUND["itl"]["p50"] == 0.01
    assert FOUND["itl"]["p99"] == 0.09
    assert FOUND["second_token"]["p99"] == 5.01


def test_json_has_no_nan() -> None:
    empty = report(Samples(rows=[RequestRow(0.0, 9, 1, 0, refused="no pair")]), Slo(), CLASSES)
    assert json.loads(json.dumps(empty, allow_nan=False))["ttft"]["p99"] is None
    assert empty["goodput"] == 0.0


def test_one_row_a_policy() -> None:
    header, first, second = table_rows({"a": FOUND, "b": FOUND})
    assert len(header) == len(first) == len(second)
    assert first[:2] == ("a", "40.0%")
