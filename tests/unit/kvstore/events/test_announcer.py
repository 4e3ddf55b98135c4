"""What a store does becomes events: after the commit, once per block, and on discovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg import block_hash
from kvstore import KvStore
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockCorrupt, BlockMissing
from kvstore.events.announcer import Announcer
from kvstore.events.form import BlockRemoved, BlockStored, Event
from kvstore.keys import data_key
from tests.fakes.stores import FINGERPRINT, ManualClock, Prompt, RawMemory, small_config

PROMPT = Prompt("r", tuple(range(14)))
LOW = [block_hash.low64(name) for name in PROMPT.hashes]


@pytest.fixture
def raw() -> RawMemory:
    return RawMemory(MemoryBackend(ManualClock()))


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def store(raw: RawMemory, events: list[Event]) -> KvStore:
    return KvStore(
        raw.backend,
        small_config(),
        fingerprint=FINGERPRINT,
        clock=ManualClock(),
        listener=Announcer(events.extend),
    )


def hand_over(store: KvStore, prompt: Prompt) -> object:
    pairs = list(zip(prompt.hashes, prompt.payloads, strict=True))
    draft = prompt.draft(store.put_blocks(pairs, attempt=prompt.attempt))
    stop = len(prompt.hashes) * 4
    return store.commit(replace(draft, token_ids=prompt.token_ids[:stop]))


def test_blocks_are_announced_after_the_commit_and_once(
    store: KvStore, events: list[Event]
) -> None:
    store.put_block(PROMPT.hashes[0], PROMPT.payloads[0], attempt=1)
    assert events == []
    hand_over(store, PROMPT)
    (event,) = events
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.parent_block_hash) == (tuple(LOW), None)
    assert event.token_ids == PROMPT.token_ids[:12]
    hand_over(store, PROMPT)
    assert len(events) == 1
    longer = Prompt("longer", (*PROMPT.token_ids[:12], 50, 51, 52, 53))
    hand_over(store, longer)
    event = events[1]
    assert isinstance(event, BlockStored)
    assert event.block_hashes == (block_hash.low64(longer.hashes[3]),)
    assert (event.parent_block_hash, event.token_ids) == (LOW[2], (50, 51, 52, 53))


def test_a_refused_commit_announces_nothing(store: KvStore, events: list[Event]) -> None:
    with pytest.raises(BlockMissing):
        store.commit(PROMPT.draft([bytes(16)] * 3))
    assert events == [BlockRemoved(block_hashes=(LOW[0],))]


def test_what_a_read_finds_missing_or_damaged_is_removed_and_announced_again_later(
    store: KvStore, raw: RawMemory, events: list[Event]
) -> None:
    ticket = hand_over(store, PROMPT)
    events.clear()
    raw.delete(data_key(FINGERPRINT, PROMPT.hashes[1], 1, 0))  # type: ignore[arg-type]
    with pytest.raises(BlockMissing):
        store.get_blocks(PROMPT.hashes)
    with (
        pytest.raises(BlockMissing),
        store.open_ticket(ticket, PROMPT.token_ids) as reader,  # type: ignore[arg-type]
    ):
        reader.fetch()
    assert events == [BlockRemoved(block_hashes=(LOW[1],))] * 2
    key = data_key(FINGERPRINT, PROMPT.hashes[2], 1, 0)  # type: ignore[arg-type]
    raw.write(key, raw.values()[key][:-1] + b"x")
    with pytest.raises(BlockCorrupt):
        store.get_blocks(PROMPT.hashes[2:])
    assert events[2] == BlockRemoved(block_hashes=(LOW[2],))
    hand_over(store, replace(PROMPT, attempt=2))
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert [event.block_hashes for event in stored] == [tuple(LOW[1:])]
    assert stored[0].parent_block_hash == LOW[0]


def test_runs_of_new_blocks_are_events_of_their_own(events: list[Event]) -> None:
    announcer = Announcer(events.extend, with_token_ids=False)
    names = block_hash.chain(list(range(20)), 4)
    announcer.blocks_stored(names[:1], 4, [])
    announcer.blocks_removed([])
    announcer._announced[names[2]] = None
    events.clear()
    announcer.blocks_stored(names, 4, list(range(20)))
    found = [event for event in events if isinstance(event, BlockStored)]
    assert [len(event.block_hashes) for event in found] == [1, 2]
    assert [event.parent_block_hash for event in found] == [
        block_hash.low64(names[0]),
        block_hash.low64(names[2]),
    ]
    assert {event.token_ids for event in found} == {()}


def test_a_snapshot_holds_what_was_announced_and_not_removed() -> None:
    announcer = Announcer(lambda _events: None)
    announcer.blocks_stored(PROMPT.hashes, 4, ())
    announcer.blocks_removed(PROMPT.hashes[1:2])
    assert announcer.snapshot() == [LOW[0], LOW[2]]


def test_the_listener_ends_with_its_store(raw: RawMemory) -> None:
    ended: list[str] = []
    store = KvStore(raw.backend, small_config(), fingerprint=FINGERPRINT, clock=ManualClock())
    store.close()
    store.listen(Announcer(lambda _events: None, end=lambda: ended.append("end")))
    store.close()
    assert ended == ["end"]


def test_a_listener_may_come_late(raw: RawMemory) -> None:
    events: list[Event] = []
    store = KvStore(raw.backend, small_config(), fingerprint=FINGERPRINT, clock=ManualClock())
    hand_over(store, PROMPT)
    store.listen(Announcer(events.extend))
    hand_over(store, PROMPT)
    assert [type(event) for event in events] == [BlockStored]
