"""The world that is damaged: readable when whole, put back completely, and nothing is left."""

from __future__ import annotations

import pytest

from kvstore.backends.memory import MemoryBackend
from kvstore.errors import StoreDown, TicketInvalid
from kvstore.headers import HeaderError
from kvstore.mutation.draws import Draws
from kvstore.mutation.world import KINDS, World, mutate
from kvstore.store import KvStore
from kvstore.verification import Expected, Verified
from tests.fakes.stores import ManualClock


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(ManualClock())


@pytest.fixture
def world(backend: MemoryBackend) -> World:
    return World(backend, Draws(1), ManualClock())


def test_an_undamaged_world_is_readable(world: World) -> None:
    assert len(world.victims) == 5
    for victim in world.victims:
        assert not world.is_detected(victim)
        assert world.is_readable(victim)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_noticed_and_put_back(world: World, kind: str) -> None:
    for _ in range(10):
        victim = world.damage(kind)
        assert world.is_detected(victim)
        world.restore()
        assert world.is_readable(victim)
    for victim in world.victims:
        assert not world.is_detected(victim)


def refuse(*_arguments: object) -> None:
    raise TicketInvalid("num_tokens", 1, 2)


@pytest.mark.parametrize("name", ["open_ticket", "get_blocks", "get_state"])
def test_a_library_that_refuses_everything_is_found_out(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(KvStore, name, refuse)
    report = mutate(backend, Draws(5), count=20, clock=ManualClock())
    assert report.undetected == []
    assert len(report.unreadable) > 10  # one of the five has no blocks to read by prefix
    assert report.unreadable[0].startswith("after mutation 0: ")


def test_a_store_that_is_gone_is_no_detection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_arguments: object) -> None:
        raise StoreDown("here", "no answer")

    monkeypatch.setattr(KvStore, "open_ticket", gone)
    with pytest.raises(StoreDown):
        world.is_detected(world.victims[0])


def test_nothing_is_left_behind(backend: MemoryBackend) -> None:
    report = mutate(backend, Draws(2), count=50, clock=ManualClock())
    assert report.mutations == 50
    assert (backend._values, backend._leases) == ({}, {})


def test_the_same_seed_gives_the_same_damage() -> None:
    runs = [
        mutate(MemoryBackend(ManualClock()), Draws(3), count=40, clock=ManualClock())
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_library_that_checks_nothing_is_found_out(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test can fail: with payloads unchecked, flipped bytes go unnoticed."""

    def believe(value: memoryview, expected: Expected, _digest: bytes | None = None) -> Verified:
        if expected.num_bytes not in (None, len(value) - 64):
            raise HeaderError("length", "this much is seen at once")
        digest = expected.digest or bytes(16)
        return Verified(bytes(value[:64]), expected.num_segments or 1, digest, value[64:])

    monkeypatch.setattr("kvstore.payloads.reading.verify_segment", believe)
    seen: list[int] = []
    report = mutate(backend, Draws(4), count=60, clock=ManualClock(), on_round=seen.append)
    assert report.undetected
    assert seen == list(range(1, 61))
