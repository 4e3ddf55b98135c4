"""No damage to a committed hand-off goes unnoticed, whatever is damaged and however."""

import random

import pytest

from tests.fakes.kv_mutations import KINDS, World, mutate
from tests.fakes.stores import ManualClock, MemoryBackend, RawMemory, RawStore, raw_redis


def check(raw: RawStore, count: int, seed: int) -> None:
    report = mutate(raw, count, seed)
    assert report.mutations == count
    assert report.undetected == []
    assert set(report.by_kind) == set(KINDS)


def test_an_undamaged_world_is_readable() -> None:
    world = World(RawMemory(MemoryBackend(ManualClock())), random.Random(0))
    for victim in world.victims:
        assert not world.is_detected(victim)


@pytest.mark.medium
@pytest.mark.parametrize("seed", [1, 2])
def test_no_mutation_goes_unnoticed(seed: int) -> None:
    check(RawMemory(MemoryBackend(ManualClock())), 400, seed)


@pytest.mark.medium
def test_no_mutation_goes_unnoticed_in_a_server() -> None:
    with raw_redis() as raw:
        check(raw, 200, 3)


@pytest.mark.slow
def test_no_mutation_of_ten_thousand_goes_unnoticed() -> None:
    check(RawMemory(MemoryBackend(ManualClock())), 10_000, 4)


@pytest.mark.slow
def test_no_mutation_of_two_thousand_goes_unnoticed_in_a_server() -> None:
    with raw_redis() as raw:
        check(raw, 2_000, 5)
