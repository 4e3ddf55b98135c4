"""What a store promises of leases, upkeep and administration, on every backend."""

from __future__ import annotations

import pytest

from kvstore import KvStore, LeaseState
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    LeaseLost,
    TicketInvalid,
)
from kvstore.keys import body_key, lease_key
from kvstore.suitability import find_unfit
from tests.fakes.stores import (
    Prompt,
    RawStore,
    make_store,
    read_all,
)

PROMPT = Prompt("request-1", tuple(range(14)))  # three blocks and a tail of two tokens


def test_a_second_reader_takes_over_and_the_first_one_finds_out(
    store: KvStore, raw: RawStore
) -> None:
    ticket = PROMPT.hand_over(store)
    first = store.open_ticket(ticket, PROMPT.token_ids)
    second = make_store(raw.backend, owner="second").open_ticket(ticket, PROMPT.token_ids)
    with pytest.raises(LeaseLost) as caught:
        first.fetch()
    assert caught.value.reason == "taken"
    assert not first.release()
    assert [record.owner for record in store.audit()] == ["second"]
    assert second.fetch().num_tokens == 14
    assert second.release()


def test_an_abort_takes_the_hand_off_from_its_reader(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    reader = store.open_ticket(ticket, PROMPT.token_ids)
    assert store.abort(ticket.handoff_id)
    assert not store.abort(ticket.handoff_id)
    with pytest.raises((BlockMissing, LeaseLost)):
        reader.fetch()
    assert not reader.release()
    assert store.audit() == []
    with pytest.raises(TicketInvalid):
        store.abort("../../etc")


def test_the_lease_can_be_lost_with_everything_else_in_place(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    reader = store.open_ticket(ticket, PROMPT.token_ids)
    raw.drop_lease(lease_key(ticket.handoff_id))
    with pytest.raises(LeaseLost) as caught:
        reader.fetch()
    assert caught.value.reason == "gone"
    with pytest.raises(LeaseLost):
        store.open_ticket(ticket, PROMPT.token_ids)
    assert [record.state for record in store.audit()] == [LeaseState.ORPHAN]
    assert store.janitor().num_expired == 1
    assert store.audit() == []


def test_tails_that_outlived_lease_and_body_are_orphans_of_unknown_age(
    store: KvStore, raw: RawStore
) -> None:
    ticket = PROMPT.hand_over(store)
    raw.drop_lease(lease_key(ticket.handoff_id))
    raw.delete(body_key(ticket.handoff_id))
    (record,) = store.audit()
    assert (record.state, record.is_orphan) == (LeaseState.ORPHAN, True)
    assert (record.age_s, record.num_bytes) == (None, len(PROMPT.tail_kv) + len(PROMPT.tail_state))
    assert 60 < record.remaining_s <= 600
    assert "tail" in record.reason
    assert store.janitor().num_expired == 1
    assert store.audit() == []
    assert not [key for key in raw.values() if b":t:" in key]


def test_what_is_read_under_a_lapsed_lease_is_discarded(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    reader = store.open_ticket(ticket, PROMPT.token_ids)
    raw.lapse(lease_key(ticket.handoff_id))
    with pytest.raises(LeaseLost) as caught:
        reader.fetch()
    assert caught.value.reason == "lapsed"
    (record,) = store.audit()
    assert record.state is LeaseState.LAPSED
    assert record.is_orphan
    assert record.remaining_s == 0
    assert store.statistics().failures == {"lease_lapsed": 1}


def test_a_lapsed_hand_off_can_be_opened_again_until_it_is_reaped(
    store: KvStore, raw: RawStore
) -> None:
    ticket = PROMPT.hand_over(store)
    raw.lapse(lease_key(ticket.handoff_id))
    store.open_ticket(ticket, PROMPT.token_ids)
    assert store.janitor().num_expired == 0
    raw.lapse(lease_key(ticket.handoff_id))
    assert store.janitor().num_expired == 1
    assert store.statistics().expired == 1
    assert store.audit() == []
    assert not [key for key in raw.values() if b":t:" in key or b":h:" in key]
    with pytest.raises(BlockMissing):
        store.open_ticket(ticket, PROMPT.token_ids)


def test_the_audit_names_owner_request_and_reason(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    (record,) = store.audit()
    assert record.state is LeaseState.COMMITTED
    assert (record.owner, record.request_id, record.attempt) == ("writer", "request-1", 1)
    assert record.handoff_id == ticket.handoff_id
    assert record.num_bytes == len(PROMPT.tail_kv) + len(PROMPT.tail_state)
    assert 0 <= record.age_s < 5
    assert record.reason
    assert not record.is_orphan
    with store.open_ticket(ticket, PROMPT.token_ids):
        assert [record.state for record in store.audit()] == [LeaseState.HELD]
    assert store.audit() == []


def test_the_janitor_leaves_live_hand_offs_alone(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    report = store.janitor()
    assert (report.num_handoffs, report.num_expired) == (1, 0)
    read_all(store, PROMPT, ticket)


def test_a_body_that_cannot_be_read_takes_its_hand_off_away(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    key = body_key(ticket.handoff_id)
    value = bytearray(raw.values()[key])
    value[-1] ^= 1
    raw.write(key, bytes(value))
    with pytest.raises(BlockCorrupt) as caught:
        store.open_ticket(ticket, PROMPT.token_ids)
    assert (caught.value.kind, caught.value.reason) == ("body", "digest")
    assert store.audit() == []
    assert not [key for key in raw.values() if b":t:" in key]


def test_names_hold_no_user_text(store: KvStore, raw: RawStore) -> None:
    Prompt("user text", tuple(range(9)), salt="secret salt").hand_over(store)
    store.put_state(PROMPT.hashes[0], b"x", attempt=1)
    for key in raw.values():
        assert b"user" not in key
        assert b"secret" not in key
        assert set(key.decode()) <= set("0123456789abcdef:{}dkv1bmthla")


def test_the_server_says_how_full_it_is(store: KvStore) -> None:
    PROMPT.hand_over(store)
    statistics = store.ping()
    assert statistics.num_keys > 0
    assert statistics.used_bytes > 0
    assert statistics.address


def test_keys_are_found_by_prefix_sized_and_deleted(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    backend = raw.backend
    values = raw.values()
    lease = lease_key(ticket.handoff_id)
    assert set(backend.keys(b"dkv1:")) == {*values, lease}
    assert list(backend.keys(b"dkv1:h:")) == [body_key(ticket.handoff_id)]
    assert list(backend.keys(b"other")) == []
    names = [*values, lease, b"dkv1:h:{none}"]
    assert backend.sizes(names) == [*map(len, values.values()), 0, 0]
    assert backend.delete(names) == len(values) + 1
    assert backend.delete([]) == 0
    assert raw.values() == {}
    assert store.audit() == []


def test_servers_say_of_themselves_whether_they_are_fit(raw: RawStore) -> None:
    facts = raw.backend.facts()
    assert all(isinstance(server["redis_version"], str) for server in facts)
    assert bool(facts) == hasattr(raw, "client")  # memory and files have no server
    assert find_unfit(facts) == []


def test_the_pressure_counts_hand_offs_until_they_are_released(store: KvStore) -> None:
    limit = store.ping().max_bytes
    ticket = PROMPT.hand_over(store)
    found = store.pressure(incoming_bytes=limit)
    assert (found.used_share >= 1) == (found.handoff_share > 1) == bool(limit)
    read_all(store, PROMPT, ticket)
    assert store.pressure().handoff_share == 0
