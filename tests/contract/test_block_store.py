"""What a store promises, on every backend: blocks, prefixes, hand-offs, leases, upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvstore import KvStore, LeaseState, Prefetched, PrefixMatch, TokenChain
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    LayoutDiffers,
    LeaseLost,
    StaleAttempt,
    TicketInvalid,
)
from kvstore.keys import body_key, data_key, index_key, lease_key
from tests.fakes.stores import (
    BLOCK_TOKENS,
    FINGERPRINT,
    ManualClock,
    MemoryBackend,
    Prompt,
    RawMemory,
    RawRedis,
    RawStore,
    make_bytes,
    make_store,
    raw_redis,
)

PROMPT = Prompt("request-1", tuple(range(14)))  # three blocks and a tail of two tokens


@pytest.fixture(scope="module")
def server() -> Iterator[RawRedis]:
    with raw_redis() as raw:
        yield raw


@pytest.fixture(params=[pytest.param("memory"), pytest.param("redis", marks=pytest.mark.medium)])
def raw(request: pytest.FixtureRequest) -> RawStore:
    if request.param == "memory":
        return RawMemory(MemoryBackend(ManualClock()))
    server: RawRedis = request.getfixturevalue("server")
    server.clear()
    return server


@pytest.fixture
def store(raw: RawStore) -> KvStore:
    return make_store(raw.backend)


def read_all(store: KvStore, prompt: Prompt, ticket: object) -> None:
    """Fetches and compares every byte."""
    with store.open_ticket(ticket, prompt.token_ids, prompt.salt) as reader:  # type: ignore[arg-type]
        state = reader.fetch()
    assert [bytes(block) for block in state.blocks] == prompt.payloads
    assert bytes(state.tail_kv) == prompt.tail_kv
    assert bytes(state.tail_state) == prompt.tail_state
    assert state.num_tokens == len(prompt.token_ids)
    assert state.num_bytes == (
        sum(map(len, prompt.payloads)) + len(prompt.tail_kv) + len(prompt.tail_state)
    )


# Blocks


@pytest.mark.parametrize("num_bytes", [0, 1, 127, 128, 129, 256, 1000, 5000])
def test_blocks_come_back_as_they_were_put(store: KvStore, num_bytes: int) -> None:
    payload = make_bytes("block", num_bytes)
    digest = store.put_block(PROMPT.hashes[0], payload, attempt=1)
    assert len(digest) == 16
    assert bytes(store.get_blocks(PROMPT.hashes[:1])[0]) == payload


def test_many_blocks_come_back_in_order(store: KvStore) -> None:
    prompt = Prompt("long", tuple(range(400)))
    store.put_blocks(list(zip(prompt.hashes, prompt.payloads, strict=True)), attempt=1)
    order = [*reversed(prompt.hashes), prompt.hashes[0]]
    wanted = [*reversed(prompt.payloads), prompt.payloads[0]]
    assert [bytes(block) for block in store.get_blocks(order)] == wanted


def test_no_blocks_is_a_legal_request(store: KvStore) -> None:
    assert store.get_blocks([]) == []
    assert store.put_blocks([], attempt=1) == []
    assert store.lookup([]) == PrefixMatch(num_blocks=0, resume_blocks=0, replay_tokens=0)


def test_values_go_where_allocate_says(store: KvStore) -> None:
    store.put_block(PROMPT.hashes[0], b"payload", attempt=1)
    arena = bytearray(1000)
    block = store.get_blocks(PROMPT.hashes[:1], allocate=lambda size: memoryview(arena)[:size])[0]
    assert block == b"payload"
    assert bytes(arena[64:71]) == b"payload"


def test_payloads_of_any_item_type_are_bytes(store: KvStore) -> None:
    words = memoryview(bytes(range(16))).cast("I", (2, 2))
    store.put_block(PROMPT.hashes[0], words, attempt=1)  # type: ignore[arg-type]
    assert bytes(store.get_blocks(PROMPT.hashes[:1])[0]) == bytes(range(16))


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_equal_bytes_are_stored_once(store: KvStore, num_bytes: int) -> None:
    payload = make_bytes("block", num_bytes)
    first = store.put_block(PROMPT.hashes[0], payload, attempt=1)
    assert store.put_block(PROMPT.hashes[0], payload, attempt=2) == first
    counts = store.statistics()
    assert counts.blocks_written == counts.blocks_deduplicated > 0


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_other_bytes_under_a_name_are_a_conflict_once(store: KvStore, num_bytes: int) -> None:
    name = PROMPT.hashes[0]
    store.put_block(name, make_bytes("one", num_bytes), attempt=1)
    with pytest.raises(BlockCorrupt) as caught:
        store.put_block(name, make_bytes("two", num_bytes), attempt=1)
    assert (caught.value.kind, caught.value.reason) == ("kv", "conflict")
    assert store.statistics().failures == {"corrupt_conflict": 1}
    store.put_block(name, make_bytes("two", num_bytes), attempt=1)
    assert bytes(store.get_blocks([name])[0]) == make_bytes("two", num_bytes)


def test_a_missing_block_is_named_by_its_position(store: KvStore) -> None:
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    with pytest.raises(BlockMissing) as caught:
        store.get_blocks(PROMPT.hashes)
    assert (caught.value.kind, caught.value.index) == ("kv", 1)
    with pytest.raises(BlockMissing) as caught:
        store.get_state(PROMPT.hashes[0])
    assert caught.value.kind == "state"
    assert store.statistics().failures == {"missing_kv": 1, "missing_state": 1}


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_a_flipped_byte_is_found_and_the_key_quarantined(
    store: KvStore, raw: RawStore, num_bytes: int
) -> None:
    name = PROMPT.hashes[0]
    payload = make_bytes("block", num_bytes)
    store.put_block(name, payload, attempt=1)
    key = data_key(FINGERPRINT, name, 1, 0)  # type: ignore[arg-type]
    value = bytearray(raw.values()[key])
    value[70] ^= 1
    raw.write(key, bytes(value))
    with pytest.raises(BlockCorrupt) as caught:
        store.get_blocks([name])
    assert (caught.value.kind, caught.value.index, caught.value.reason) == ("kv", 0, "digest")
    assert key not in raw.values()
    assert store.statistics().quarantined == 1
    assert store.lookup([name]).num_blocks == 0
    store.put_block(name, payload, attempt=2)
    assert bytes(store.get_blocks([name])[0]) == payload


def test_a_block_of_another_layout_is_a_miss(store: KvStore, raw: RawStore) -> None:
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    other = KvStore(raw.backend, store.config, fingerprint=bytes(8), clock=ManualClock())
    assert other.lookup(PROMPT.hashes).num_blocks == 0
    with pytest.raises(BlockMissing):
        other.get_blocks(PROMPT.hashes[:1])


# Payloads in segments


@pytest.mark.parametrize("victim", ["first", "last", "index"])
def test_a_payload_without_one_of_its_parts_is_absent(
    store: KvStore, raw: RawStore, victim: str
) -> None:
    name = PROMPT.hashes[0]
    payload = make_bytes("block", 500)
    store.put_block(name, payload, attempt=1)
    keys = {
        "first": data_key(FINGERPRINT, name, 1, 0),  # type: ignore[arg-type]
        "last": data_key(FINGERPRINT, name, 1, 3),  # type: ignore[arg-type]
        "index": index_key(FINGERPRINT, name),
    }
    raw.delete(keys[victim])
    with pytest.raises(BlockMissing):
        store.get_blocks([name])
    # The remains do not count as a hit any more, and writing again mends them.
    assert store.lookup([name]).num_blocks == 0
    store.put_block(name, payload, attempt=2)
    assert bytes(store.get_blocks([name])[0]) == payload


def test_two_components_of_a_block_share_its_index(store: KvStore) -> None:
    name = PROMPT.hashes[0]
    store.put_block(name, make_bytes("kv", 300), attempt=1)
    store.put_state(name, make_bytes("state", 700), attempt=1)
    assert bytes(store.get_blocks([name])[0]) == make_bytes("kv", 300)
    assert bytes(store.get_state(name)) == make_bytes("state", 700)


# Prefixes


def test_lookup_counts_contiguous_blocks_and_finds_the_last_state(store: KvStore) -> None:
    prompt = Prompt("long", tuple(range(BLOCK_TOKENS * 50)))
    hashes = prompt.hashes
    for idx in [*range(40), 45]:
        store.put_block(hashes[idx], b"kv", attempt=1)
    assert store.lookup(hashes) == PrefixMatch(
        num_blocks=40, resume_blocks=0, replay_tokens=40 * BLOCK_TOKENS
    )
    for idx in (0, 7, 45):
        store.put_state(hashes[idx], b"state", attempt=1)
    assert store.lookup(hashes) == PrefixMatch(
        num_blocks=40, resume_blocks=8, replay_tokens=32 * BLOCK_TOKENS
    )
    store.put_state(hashes[39], b"state", attempt=1)
    assert store.lookup(hashes).resume_blocks == 40


def test_salts_keep_tenants_apart(store: KvStore) -> None:
    one, two = Prompt("a", tuple(range(8)), salt="one"), Prompt("b", tuple(range(8)), salt="two")
    store.put_block(one.hashes[0], b"kv", attempt=1)
    assert store.lookup(one.hashes).num_blocks == 1
    assert store.lookup(two.hashes).num_blocks == 0


# Hand-offs


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 14, 61])
@pytest.mark.parametrize("block_bytes", [100, 300])
def test_a_hand_off_carries_every_byte(store: KvStore, num_tokens: int, block_bytes: int) -> None:
    prompt = Prompt("r", tuple(range(num_tokens)), block_bytes=block_bytes)
    ticket = prompt.hand_over(store)
    assert ticket.num_blocks == num_tokens // BLOCK_TOKENS
    assert ticket.remaining_s == pytest.approx(60, abs=1)
    read_all(store, prompt, ticket)
    assert store.audit() == []
    counts = store.statistics()
    assert (counts.commits, counts.opened, counts.fetched, counts.released) == (1, 1, 1, 1)
    assert counts.failures == {}


def test_the_release_keeps_blocks_and_drops_the_tail(store: KvStore, raw: RawStore) -> None:
    read_all(store, PROMPT, PROMPT.hand_over(store))
    assert store.lookup(PROMPT.hashes).num_blocks == 3
    assert not [key for key in raw.values() if b":t:" in key or b":h:" in key]


def test_committing_twice_is_harmless(store: KvStore) -> None:
    first = PROMPT.hand_over(store)
    second = PROMPT.hand_over(store)
    assert replace(second, remaining_s=0) == replace(first, remaining_s=0)
    read_all(store, PROMPT, first)


def test_committing_again_revives_a_lapsed_hand_off(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    raw.lapse(lease_key(ticket.handoff_id))
    again = PROMPT.hand_over(store)
    assert again.fencing_token == ticket.fencing_token
    assert again.remaining_s == pytest.approx(60, abs=1)
    assert [record.state for record in store.audit()] == [LeaseState.COMMITTED]
    read_all(store, PROMPT, ticket)


def test_a_released_hand_off_cannot_be_opened(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    read_all(store, PROMPT, ticket)
    with pytest.raises(BlockMissing) as caught:
        store.open_ticket(ticket, PROMPT.token_ids)
    assert caught.value.kind == "body"


def test_fencing_tokens_grow_over_lives(store: KvStore) -> None:
    first = PROMPT.hand_over(store)
    reader = store.open_ticket(first, PROMPT.token_ids)
    assert reader.release()
    assert not reader.release()
    second = PROMPT.hand_over(store)
    assert second.handoff_id == first.handoff_id
    assert second.fencing_token > first.fencing_token


def test_a_commit_needs_its_blocks(store: KvStore, raw: RawStore) -> None:
    digests = store.put_blocks(list(zip(PROMPT.hashes, PROMPT.payloads, strict=True)), attempt=1)
    raw.delete(data_key(FINGERPRINT, PROMPT.hashes[1], 1, 0))  # type: ignore[arg-type]
    with pytest.raises(BlockMissing) as caught:
        store.commit(PROMPT.draft(digests))
    assert (caught.value.kind, caught.value.index) == ("kv", 1)
    assert store.audit() == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"block_digests": []}, "block_digests"),
        ({"block_hashes": []}, "block_hashes"),
        ({"tail_tokens": [1]}, "tail_tokens"),
        ({"attempt": 0}, "attempt"),
    ],
)
def test_a_draft_that_contradicts_itself_is_refused(
    store: KvStore, change: dict[str, object], field: str
) -> None:
    draft = replace(PROMPT.draft([bytes(16)] * 3), **change)  # type: ignore[arg-type]
    with pytest.raises(TicketInvalid) as caught:
        store.commit(draft)
    assert caught.value.field == field


def test_prefetched_blocks_are_not_read_again(store: KvStore) -> None:
    prefetched = Prefetched()
    digests = store.put_blocks(list(zip(PROMPT.hashes, PROMPT.payloads, strict=True)), attempt=1)
    store.prefetch(PROMPT.hashes[:2], prefetched)
    store.prefetch(PROMPT.hashes[:2], prefetched)
    assert prefetched.num_bytes == 200
    ticket = store.commit(PROMPT.draft(digests))
    chain = TokenChain.of(PROMPT.token_ids, BLOCK_TOKENS)
    with store.open_ticket(ticket, chain) as reader:
        state = reader.fetch(prefetched=prefetched)
    assert [bytes(block) for block in state.blocks] == PROMPT.payloads
    assert store.statistics().blocks_read == 2 + 1 + 2
    assert prefetched.num_bytes == 0


def test_a_prefetched_block_that_is_not_the_tickets_is_read_again(
    store: KvStore, raw: RawStore
) -> None:
    prefetched = Prefetched()
    store.put_block(PROMPT.hashes[0], b"an earlier one", attempt=1)
    store.prefetch(PROMPT.hashes[:1], prefetched)
    raw.delete(data_key(FINGERPRINT, PROMPT.hashes[0], 1, 0))  # type: ignore[arg-type]
    with store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids) as reader:
        state = reader.fetch(prefetched=prefetched)
    assert [bytes(block) for block in state.blocks] == PROMPT.payloads


def test_a_chain_of_other_tokens_is_refused(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    for chain in (
        TokenChain.of((9, *PROMPT.token_ids[1:]), BLOCK_TOKENS),
        TokenChain.of((*PROMPT.token_ids[:-1], 9), BLOCK_TOKENS),
        TokenChain.of(PROMPT.token_ids, BLOCK_TOKENS, "salt"),
    ):
        with pytest.raises(BlockCorrupt, match="other tokens"):
            store.open_ticket(ticket, chain)
    with pytest.raises(TicketInvalid):
        store.open_ticket(ticket, TokenChain.of(PROMPT.token_ids[:-1], BLOCK_TOKENS))
    with pytest.raises(TicketInvalid):
        store.open_ticket(ticket, TokenChain.of(PROMPT.token_ids, 2 * BLOCK_TOKENS))
    read_all(store, PROMPT, ticket)


# Refused tickets


def test_other_tokens_are_refused(store: KvStore) -> None:
    ticket = PROMPT.hand_over(store)
    for position in (0, 11, 12, 13):
        tokens = list(PROMPT.token_ids)
        tokens[position] += 1
        with pytest.raises(BlockCorrupt) as caught:
            store.open_ticket(ticket, tokens)
        assert caught.value.reason == "chain"
    with pytest.raises(TicketInvalid) as invalid:
        store.open_ticket(ticket, PROMPT.token_ids[:-1])
    assert invalid.value.field == "num_tokens"
    with pytest.raises(TicketInvalid) as invalid:
        store.open_ticket(ticket, [-1] * 14)
    assert invalid.value.field == "token_ids"
    read_all(store, PROMPT, ticket)  # the hand-off itself is unharmed


def test_another_salt_is_refused(store: KvStore) -> None:
    for tokens in (tuple(range(14)), (1, 2)):
        prompt = Prompt(f"r{len(tokens)}", tokens, salt="tenant-a")
        ticket = prompt.hand_over(store)
        with pytest.raises(BlockCorrupt, match="other tokens"):
            store.open_ticket(ticket, tokens, "tenant-b")
        read_all(store, prompt, ticket)


def test_another_layout_is_refused(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    other = KvStore(raw.backend, store.config, fingerprint=bytes(8), clock=ManualClock())
    with pytest.raises(LayoutDiffers) as caught:
        other.open_ticket(ticket, PROMPT.token_ids)
    assert caught.value.field == "fingerprint"
    wider = make_store(raw.backend, block_tokens=8)
    with pytest.raises(LayoutDiffers) as caught:
        wider.open_ticket(ticket, PROMPT.token_ids)
    assert caught.value.field == "block_tokens"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"handoff_id": "nonsense"}, "handoff_id"),
        ({"attempt": 0}, "attempt"),
        ({"tail_key": "dkv1:other"}, "tail_key"),
        ({"num_tokens": 13}, "num_tokens"),
        ({"num_blocks": 2}, "num_blocks"),
        ({"last_block_hash": b""}, "last_block_hash"),
        ({"tail_digest": bytes(16)}, "tail_digest"),
        ({"first_token": 8}, "first_token"),
    ],
)
def test_a_ticket_whose_fields_changed_is_refused(
    store: KvStore, change: dict[str, object], field: str
) -> None:
    ticket = PROMPT.hand_over(store)
    with pytest.raises(TicketInvalid) as caught:
        store.open_ticket(replace(ticket, **change), PROMPT.token_ids)  # type: ignore[arg-type]
    assert caught.value.field == field
    read_all(store, PROMPT, ticket)


def test_an_older_attempt_is_refused_once_a_newer_one_began(store: KvStore) -> None:
    first = PROMPT.hand_over(store)
    store.begin_attempt("request-1", 2)
    with pytest.raises(StaleAttempt) as caught:
        store.open_ticket(first, PROMPT.token_ids)
    assert (caught.value.attempt, caught.value.newest) == (1, 2)
    with pytest.raises(StaleAttempt):
        PROMPT.hand_over(store)
    newer = replace(PROMPT, attempt=2)
    read_all(store, newer, newer.hand_over(store))


def test_an_attempt_that_turns_stale_while_it_is_read_is_discarded(store: KvStore) -> None:
    reader = store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids)
    store.begin_attempt("request-1", 2)
    with pytest.raises(StaleAttempt):
        reader.fetch()
    reader.release()
    assert store.audit() == []


def test_a_store_that_forgot_the_attempts_refuses(store: KvStore, raw: RawStore) -> None:
    ticket = PROMPT.hand_over(store)
    for key in raw.values():
        if b":a:" in key:
            raw.delete(key)
    with pytest.raises(StaleAttempt, match="knows no attempt"):
        store.open_ticket(ticket, PROMPT.token_ids)


# Leases


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


# Administration


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
