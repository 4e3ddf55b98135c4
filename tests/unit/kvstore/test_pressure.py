"""When a store should take no more hand-offs."""

import pytest

from kvstore.pressure import measure_pressure


@pytest.mark.parametrize(
    ("used", "handoff", "incoming", "refusal"),
    [
        (0, 0, 0, ""),
        (84, 59, 0, ""),
        (85, 0, 0, "85% of the KV store's memory is used"),
        (70, 60, 0, "hand-offs hold 60%"),
        (80, 10, 5, "85% of the KV store's memory"),
        (60, 55, 5, "hand-offs hold 60%"),
    ],
)
def test_limits(used: int, handoff: int, incoming: int, refusal: str) -> None:
    found = measure_pressure(
        used_bytes=used, max_bytes=100, handoff_bytes=handoff, incoming_bytes=incoming
    )
    assert found.refusal.startswith(refusal)
    assert bool(found.refusal) == bool(refusal)


def test_a_server_without_a_limit_is_never_full() -> None:
    found = measure_pressure(used_bytes=10**12, max_bytes=0, handoff_bytes=10**12)
    assert (found.used_share, found.handoff_share, found.refusal) == (0, 0, "")
