"""No damage to a committed hand-off goes unnoticed, whatever is damaged and however."""

import pytest

from kvstore.backends.base import Backend
from kvstore.mutation.draws import Draws
from kvstore.mutation.world import KINDS, mutate
from tests.fakes.stores import ManualClock, MemoryBackend, raw_redis


def check(backend: Backend, count: int, seed: int) -> None:
    report = mutate(backend, Draws(seed), count=count, clock=ManualClock())
    assert report.mutations == count
    assert report.undetected == []
    assert report.unreadable == []
    assert set(report.by_kind) == set(KINDS)


@pytest.mark.medium
@pytest.mark.parametrize("seed", [1, 2])
def test_no_mutation_goes_unnoticed(seed: int) -> None:
    check(MemoryBackend(ManualClock()), 400, seed)


@pytest.mark.medium
def test_no_mutation_goes_unnoticed_in_a_server() -> None:
    with raw_redis() as raw:
        check(raw.backend, 200, 3)
        assert raw.values() == {}


@pytest.mark.slow
def test_no_mutation_of_ten_thousand_goes_unnoticed() -> None:
    check(MemoryBackend(ManualClock()), 10_000, 4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_mutation_of_ten_thousand_goes_unnoticed_in_a_server() -> None:
    with raw_redis() as raw:
        check(raw.backend, 10_000, 5)
