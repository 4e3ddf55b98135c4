"""Names are due once per period."""

from kvstore.keys import Component
from kvstore.payloads.freshness import Refreshed
from kvstore.payloads.sealing import block_refs

REFS = block_refs([b"a" * 32, b"b" * 32])


def test_a_name_is_due_once_per_period() -> None:
    refreshed = Refreshed(60)
    assert refreshed.take_due(REFS, 0) == REFS
    assert refreshed.take_due(REFS, 59.9) == []
    assert refreshed.take_due(REFS, 60) == REFS


def test_noted_names_are_not_due_and_components_are_apart() -> None:
    refreshed = Refreshed(60)
    refreshed.note(REFS[:1], 100)
    assert refreshed.take_due(REFS, 110) == REFS[1:]
    states = block_refs([b"a" * 32], Component.STATE)
    assert refreshed.take_due(states, 110) == states


def test_memory_is_bounded() -> None:
    refreshed = Refreshed(60)
    refreshed._MAX_REMEMBERED = 2  # type: ignore[misc]
    many = block_refs([bytes([number]) * 32 for number in range(4)])
    refreshed.note(many, 0)
    assert refreshed.take_due(many, 1) == many[:2]
