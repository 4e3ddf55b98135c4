"""Exact, less, refused or wrong: what each read makes of a hand-off."""

from __future__ import annotations

import pytest

from kvstore import KvStore
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import StoreDown
from kvstore.keys import Component, data_key
from kvstore.mutation.readings import Reading, read_prefix, read_ticket
from kvstore.mutation.samples import Sample, sample_config
from tests.fakes.stores import FINGERPRINT, ManualClock

SAMPLE = Sample(request_id="r", token_ids=tuple(range(14)))


def written() -> KvStore:
    clock = ManualClock()
    return KvStore(MemoryBackend(clock), sample_config(), fingerprint=FINGERPRINT, clock=clock)


def test_what_is_whole_reads_exactly_and_again() -> None:
    store = written()
    ticket = SAMPLE.hand_over(store)
    for _ in range(2):
        assert read_ticket(store, ticket, SAMPLE) is Reading.EXACT
        assert read_prefix(store, SAMPLE) is Reading.EXACT


def test_less_and_refused() -> None:
    store = written()
    ticket = SAMPLE.hand_over(store)
    last = SAMPLE.hashes[-1]
    store._payloads.backend.quarantine(data_key(FINGERPRINT, last, Component.STATE, 0), b"")
    assert read_prefix(store, SAMPLE) is Reading.LESS
    store._payloads.backend.quarantine(data_key(FINGERPRINT, last, Component.KV, 0), b"")
    assert read_ticket(store, ticket, SAMPLE) is Reading.REFUSED
    assert read_prefix(written(), SAMPLE) is Reading.LESS


def test_other_bytes_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    store = written()
    ticket = SAMPLE.hand_over(store)
    monkeypatch.setattr(Sample, "tail_state", b"something else")
    monkeypatch.setattr(Sample, "state_at", lambda *_arguments: b"something else")
    assert read_ticket(store, ticket, SAMPLE) is Reading.WRONG
    assert read_prefix(store, SAMPLE) is Reading.WRONG


def test_a_store_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_arguments: object) -> None:
        raise StoreDown("here", "no answer")

    store = written()
    ticket = SAMPLE.hand_over(store)
    monkeypatch.setattr(KvStore, "open_ticket", gone)
    monkeypatch.setattr(KvStore, "lookup", gone)
    with pytest.raises(StoreDown):
        read_ticket(store, ticket, SAMPLE)
    with pytest.raises(StoreDown):
        read_prefix(store, SAMPLE)
