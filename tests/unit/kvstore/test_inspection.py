"""Counting, looking and removing, over whole and damaged contents."""

from __future__ import annotations

import pytest

from kvstore import KvStore
from kvstore.backends.memory import MemoryBackend
from kvstore.handoffs.leases import LeaseState
from kvstore.inspection import flush, inspect, survey
from kvstore.keys import attempt_key, body_key, data_key, index_key, lease_key
from tests.fakes.stores import (
    FINGERPRINT,
    ManualClock,
    Prompt,
    RawMemory,
    make_bytes,
    make_store,
    small_config,
)

PROMPT = Prompt("request-1", tuple(range(14)))


@pytest.fixture
def raw() -> RawMemory:
    return RawMemory(MemoryBackend(ManualClock()))


@pytest.fixture
def store(raw: RawMemory) -> KvStore:
    return make_store(raw.backend)


def test_a_survey_counts_by_layout_and_kind(store: KvStore, raw: RawMemory) -> None:
    PROMPT.hand_over(store)
    store.put_state(PROMPT.hashes[0], make_bytes("state", 300), attempt=1)
    other = KvStore(raw.backend, small_config(), fingerprint=bytes(8), clock=ManualClock())
    other.put_block(PROMPT.hashes[0], b"x", attempt=1)
    found = survey(raw.backend)
    counts = found.layouts[FINGERPRINT.hex()]
    assert counts.values == {"kv": 3, "state": 3, "index": 1, "tail_kv": 1, "tail_state": 3}
    assert counts.num_bytes["kv"] == 3 * (100 + 64)
    assert found.layouts["00" * 8].values == {"kv": 1}
    assert found.control == {"body": 1, "lease": 1, "attempt": 1}
    assert found.foreign_keys == 0


def test_a_hand_off_is_shown_with_lease_body_and_values(store: KvStore, raw: RawMemory) -> None:
    ticket = PROMPT.hand_over(store)
    for name in (ticket.handoff_id, lease_key(ticket.handoff_id).decode()):
        found = inspect(raw.backend, name)
        assert found.lease is not None
        assert found.lease.state is LeaseState.COMMITTED
        assert found.body is not None
        assert found.body.num_tokens == 14
        kinds = ["body", "tail_kv", "tail_state", "tail_state", "tail_state"]
        assert [value.kind for value in found.values] == kinds
        assert all(value.sound for value in found.values)


def test_a_block_is_shown_with_all_its_values(store: KvStore, raw: RawMemory) -> None:
    name = PROMPT.hashes[0]
    store.put_block(name, make_bytes("kv", 300), attempt=1)
    store.put_state(name, b"state", attempt=1)
    found = inspect(raw.backend, name.hex())
    assert sorted(value.kind for value in found.values) == ["index", "kv", "kv", "kv", "state"]
    assert all(value.sound and value.name == name.hex() for value in found.values)


@pytest.mark.parametrize(
    ("place", "fault"),
    [(70, "digest"), (17, "name"), (9, "fingerprint"), (0, "magic"), (32, "length")],
)
def test_damage_is_shown(store: KvStore, raw: RawMemory, place: int, fault: str) -> None:
    store.put_block(PROMPT.hashes[0], b"payload", attempt=1)
    key = data_key(FINGERPRINT, PROMPT.hashes[0], 1, 0)  # type: ignore[arg-type]
    value = bytearray(raw.values()[key])
    value[place] ^= 1
    raw.write(key, bytes(value))
    (found,) = inspect(raw.backend, key.decode()).values
    assert not found.sound
    assert fault in found.fault


def test_a_value_under_another_key_is_damage(store: KvStore, raw: RawMemory) -> None:
    store.put_blocks([(name, b"x") for name in PROMPT.hashes[:2]], attempt=1)
    keys = [data_key(FINGERPRINT, name, 1, 0) for name in PROMPT.hashes[:2]]  # type: ignore[arg-type]
    raw.write(keys[0], raw.values()[keys[1]])
    (found,) = inspect(raw.backend, keys[0].decode()).values
    assert "name" in found.fault


def test_a_broken_body_is_shown_and_attempts_are_numbers(store: KvStore, raw: RawMemory) -> None:
    ticket = PROMPT.hand_over(store)
    key = body_key(ticket.handoff_id)
    raw.write(key, raw.values()[key][:70])
    found = inspect(raw.backend, ticket.handoff_id)
    assert found.body is None
    assert not found.values[0].sound
    (attempt,) = inspect(raw.backend, attempt_key("request-1").decode()).values
    assert (attempt.kind, attempt.sound) == ("attempt", True)
    raw.write(attempt_key("request-1"), b"3")
    (attempt,) = inspect(raw.backend, attempt_key("request-1").decode()).values
    assert not attempt.sound
    assert "digest" in attempt.fault


def test_what_is_not_there_and_what_is_no_name(raw: RawMemory) -> None:
    assert inspect(raw.backend, "0" * 32).values == []
    assert inspect(raw.backend, "0" * 64).values == []
    assert inspect(raw.backend, "dkv1:nothing").values == []
    with pytest.raises(ValueError, match="no block hash"):
        inspect(raw.backend, "nonsense")


def test_a_flush_takes_one_layout_and_leaves_the_others(store: KvStore, raw: RawMemory) -> None:
    PROMPT.hand_over(store)
    store.put_state(PROMPT.hashes[0], make_bytes("state", 300), attempt=1)
    other = KvStore(raw.backend, small_config(), fingerprint=bytes(8), clock=ManualClock())
    ticket = Prompt("request-2", tuple(range(14))).hand_over(other)
    assert flush(raw.backend, FINGERPRINT) == 3 + 4 + 4 + 2
    assert store.lookup(PROMPT.hashes).num_blocks == 0
    assert [record.handoff_id for record in store.audit()] == [ticket.handoff_id]
    with other.open_ticket(ticket, PROMPT.token_ids) as reader:
        assert reader.fetch().num_tokens == 14
    other.put_state(PROMPT.hashes[0], make_bytes("state", 300), attempt=1)
    assert index_key(bytes(8), PROMPT.hashes[0]) in raw.values()
    assert flush(raw.backend, None) > 0
    assert raw.values() == {}
