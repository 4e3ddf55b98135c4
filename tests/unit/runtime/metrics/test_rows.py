"""Buckets, and rows made by kind."""

from runtime.metrics.rows import (
    BYTE_BUCKETS,
    ITL_BUCKETS,
    PHASE_BUCKETS,
    STORE_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
    counter,
    gauge,
    histogram,
)


def test_buckets_have_their_published_bounds() -> None:
    assert (TTFT_BUCKETS[0], TTFT_BUCKETS[-1], len(TTFT_BUCKETS)) == (0.001, 2560, 22)
    assert (ITL_BUCKETS[0], ITL_BUCKETS[-1], len(ITL_BUCKETS)) == (0.01, 80, 19)
    assert (PHASE_BUCKETS[0], PHASE_BUCKETS[-1], len(PHASE_BUCKETS)) == (0.3, 7680, 21)
    assert (STORE_BUCKETS[0], STORE_BUCKETS[-1], len(STORE_BUCKETS)) == (0.0005, 5, 13)
    assert (BYTE_BUCKETS[0], BYTE_BUCKETS[-1], len(BYTE_BUCKETS)) == (65536, 4 << 30, 9)
    assert TOKEN_BUCKETS[:4] == (1, 2, 5, 10) and TOKEN_BUCKETS[-1] == 1_000_000


def test_rows_by_kind() -> None:
    assert counter("x_total", "x", "a", roles=()).kind == "counter"
    assert gauge("x", "x", roles=("decode",)).roles == ("decode",)
    row = histogram("x", "x", (1, 2), "a", roles=(), has_exemplars=True)
    assert (row.buckets, row.labels, row.has_exemplars) == ((1, 2), ("a",), True)
