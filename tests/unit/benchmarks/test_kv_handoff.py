"""Hand-offs of synthetic states are complete, with and without overlap."""

import pytest

from benchmarks.kv_handoff import BYTES_PER_TOKEN, STATE_BYTES, measure_handoffs
from kvstore import embedded


@pytest.mark.medium
def test_every_part_is_measured_and_nothing_left() -> None:
    with embedded.start(max_memory_bytes=256 << 20) as server:
        found = measure_handoffs(server.url, 200, 0)
    assert found["num_bytes"] == 128 * BYTES_PER_TOKEN + STATE_BYTES
    assert found["total_ms"] >= found["total_ms_best"] > 0
    assert found["overlap_total_ms"] >= found["overlap_total_ms_best"] > 0
    for part in ("publish_ms", "commit_ms", "open_ms", "fetch_ms", "chain_ms"):
        assert found[part] > 0
