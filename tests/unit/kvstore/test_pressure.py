"""When a store should take no more hand-offs."""

import pytest

from kvstore.pressure import Pressure, Shedding, may_be_pressed, measure_pressure


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


def test_a_warm_cache_is_no_pressure_where_the_server_evicts() -> None:
    found = measure_pressure(used_bytes=99, max_bytes=100, handoff_bytes=59, evicts=True)
    assert found.refusal == ""
    found = measure_pressure(used_bytes=99, max_bytes=100, handoff_bytes=60, evicts=True)
    assert found.refusal.startswith("hand-offs hold 60%")


def test_shedding_lasts_until_the_store_is_well_below_its_limit() -> None:
    shedding = Shedding()

    def measured(used: float, handoffs: float = 0.0) -> tuple[bool, bool]:
        changed = shedding.update(Pressure(used_share=used, handoff_share=handoffs))
        return changed, bool(shedding.refusal)

    assert measured(0.84) == (False, False)
    assert measured(0.85) == (True, True)
    assert measured(0.81) == (False, True)
    assert shedding.refusal.startswith("81%")
    assert measured(0.79) == (True, False)
    assert measured(0.84) == (False, False)
    assert measured(0.1, 0.6) == (True, True)
    assert measured(0.1, 0.56) == (False, True)
    assert measured(0.1, 0.54) == (True, False)


@pytest.mark.parametrize(
    ("used", "limit", "expected"), [(54, 100, False), (55, 100, True), (9, 0, False)]
)
def test_hand_offs_are_counted_only_where_they_can_matter(
    used: int, limit: int, expected: bool
) -> None:
    assert may_be_pressed(used, limit) is expected
