"""What a reader gets of a hand-off: by its ticket, or by its prefix as a later request would."""

from __future__ import annotations

import enum

from kvstore.errors import KvStoreError, StoreDown, StoreFull, StoreRefused
from kvstore.mutation.samples import Sample
from kvstore.store import KvStore
from kvstore.ticket import Ticket


class Reading(enum.Enum):
    """Outcome of one read."""

    EXACT = "exact"
    """Everything came back, bit by bit as it was written."""
    LESS = "less"
    """The prefix that the store offers is shorter than what was written."""
    REFUSED = "refused"
    """The library raised an error of its own."""
    WRONG = "wrong"
    """Bytes came back that nobody wrote for these tokens."""


def read_ticket(store: KvStore, ticket: Ticket, sample: Sample) -> Reading:
    """Reads a hand-off as decode does, without ending it.

    Raises:
        StoreDown, StoreFull, StoreRefused: Nothing was found out about what is stored.
    """
    try:
        found = store.open_ticket(ticket, sample.token_ids, sample.salt).fetch()
    except KvStoreError as error:
        return _refused(error)
    got = [bytes(part) for part in (*found.blocks, found.tail_kv, found.tail_state)]
    wanted = [*sample.block_payloads, sample.tail_kv, sample.tail_state]
    return Reading.EXACT if got == wanted else Reading.WRONG


def read_prefix(store: KvStore, sample: Sample) -> Reading:
    """Reads the blocks of a prompt and the state at their end as prefill does.

    Raises:
        StoreDown, StoreFull, StoreRefused: As `read_ticket`.
    """
    hashes = sample.hashes
    try:
        num_blocks = store.lookup(hashes).resume_blocks
        if not num_blocks:
            return Reading.LESS if hashes else Reading.EXACT
        got = [bytes(part) for part in store.get_blocks(hashes[:num_blocks])]
        got.append(bytes(store.get_state(hashes[num_blocks - 1])))
    except KvStoreError as error:
        return _refused(error)
    if got != [*sample.block_payloads[:num_blocks], sample.state_at(num_blocks)]:
        return Reading.WRONG
    return Reading.EXACT if num_blocks == len(hashes) else Reading.LESS


def _refused(error: KvStoreError) -> Reading:
    if isinstance(error, StoreDown | StoreFull | StoreRefused):
        raise error
    return Reading.REFUSED
