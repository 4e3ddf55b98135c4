"""What a store promises of hand-offs and of tickets it refuses, on every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore import KvStore, LeaseState, Prefetched, TokenChain
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    LayoutDiffers,
    StaleAttempt,
    TicketInvalid,
)
from kvstore.keys import data_key, lease_key
from tests.fakes.stores import (
    BLOCK_TOKENS,
    FINGERPRINT,
    ManualClock,
    Prompt,
    RawStore,
    make_store,
    read_all,
)

PROMPT = Prompt("request-1", tuple(range(14)))  # three blocks and a tail of two tokens


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


def _attempt_key(raw: RawStore) -> bytes:
    return next(key for key in raw.values() if b":a:" in key)


def test_no_damage_to_the_record_of_attempts_passes_for_a_newer_attempt(
    store: KvStore, raw: RawStore
) -> None:
    store.begin_attempt("request-1", 1)
    key = _attempt_key(raw)
    good = raw.values()[key]
    flips = [
        good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :]
        for place in range(len(good))
        for bit in range(8)
    ]
    for bad in (*flips, b"", b"1", b"3", good[:-1], good + b"0"):
        raw.write(key, bad)
        with pytest.raises(BlockCorrupt) as caught:
            store.begin_attempt("request-1", 1)
        assert (caught.value.kind, caught.value.reason) == ("attempt", "digest"), bad
        # The attempt that follows, which is what the caller starts, is the newest again.
        store.begin_attempt("request-1", 2)
        raw.delete(key)
        store.begin_attempt("request-1", 1)
    assert raw.values()[key] == good
    assert store.statistics().quarantined == len(flips) + 5
    assert store.statistics().failures == {"corrupt_digest": len(flips) + 5}


def test_a_request_recovers_from_a_damaged_record_and_older_attempts_stay_out(
    store: KvStore, raw: RawStore
) -> None:
    old = PROMPT.hand_over(store)
    second = replace(PROMPT, attempt=2)
    ticket = second.hand_over(store)
    key = _attempt_key(raw)
    raw.write(key, raw.values()[key].replace(b"2", b"4", 1))
    with pytest.raises(BlockCorrupt):
        store.open_ticket(ticket, PROMPT.token_ids)
    for stale in (PROMPT, second):
        with pytest.raises(StaleAttempt) as caught:
            stale.hand_over(store)
        assert caught.value.newest == 3
    for dead in (old, ticket):
        with pytest.raises(StaleAttempt):
            store.open_ticket(dead, PROMPT.token_ids)
    third = replace(PROMPT, attempt=3)
    read_all(store, third, third.hand_over(store))


def test_a_record_damaged_while_the_hand_off_is_read_discards_what_was_read(
    store: KvStore, raw: RawStore
) -> None:
    reader = store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids)
    raw.write(_attempt_key(raw), b"1")
    with pytest.raises(BlockCorrupt):
        reader.fetch()
    reader.release()
    with pytest.raises(StaleAttempt):
        store.begin_attempt("request-1", 1)
    store.begin_attempt("request-1", 2)


def test_the_record_of_another_request_is_no_record(store: KvStore, raw: RawStore) -> None:
    store.begin_attempt("request-1", 3)
    key = _attempt_key(raw)
    foreign = raw.values()[key]
    raw.delete(key)
    store.begin_attempt("request-2", 1)
    raw.write(_attempt_key(raw), foreign)
    with pytest.raises(BlockCorrupt):
        store.begin_attempt("request-2", 1)
