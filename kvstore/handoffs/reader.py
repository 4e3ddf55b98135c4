"""The reader's end of a hand-off: fetch under a lease, verify, release.

Order: blocks, tail, then lease and attempt once more. What was read under a lease that lapsed, or
for an attempt that is no longer the newest, is discarded.

Invariant: `fetch` returns state proven to be that of exactly the caller's tokens, or raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from kvstore.backends.base import Allocate, HandoffKeys, LeaseOutcome, LeaseReply, LeaseStore
from kvstore.buffers import new_buffer
from kvstore.config import KvStoreConfig
from kvstore.errors import BlockCorrupt, KvStoreError, LeaseLost, StaleAttempt
from kvstore.events.announcer import StoreListener, removals
from kvstore.handoffs.prefetched import Prefetched
from kvstore.keys import TAIL_COMPONENTS, Component, attempt_key
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.reading import ReadRequest, read
from kvstore.payloads.sealing import PayloadRef, block_refs
from kvstore.statistics import Counters, counted
from kvstore.ticket import TicketBody
from kvstore.tracing import StoreSpans

logger = logging.getLogger(__name__)

_BLOCKS_PER_READ = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedState:
    """State of a sequence, verified. Buffers are owned by this object.

    Attributes:
        num_tokens: Tokens whose KV this is.
        blocks: One payload per full block.
        tail_kv: Entries of the unfinished block; may be empty.
        tail_state: Windows and compressor state at the end.
        num_bytes: Payload bytes of all of it.
    """

    num_tokens: int
    blocks: tuple[memoryview, ...]
    tail_kv: memoryview
    tail_state: memoryview
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderParts:
    """What a reader works with; one per store client."""

    leases: LeaseStore
    payloads: Payloads
    config: KvStoreConfig
    clock: Callable[[], float]
    counters: Counters
    listener: StoreListener | None = None
    spans: StoreSpans = field(default_factory=StoreSpans)


class HandoffReader:
    """A hand-off whose lease we hold: a context manager that releases it.

    Not thread-safe, except `release`, which may come from another thread than `fetch`.
    """

    def __init__(
        self,
        parts: ReaderParts,
        body: TicketBody,
        hashes: Sequence[bytes],
        keys: HandoffKeys,
        fencing_token: int,
    ) -> None:
        self._parts = parts
        self._body = body
        self._hashes = hashes
        self._keys = keys
        self._fencing_token = fencing_token
        self._renewed_at = parts.clock()
        self._lock = threading.Lock()
        self._is_released = False

    @property
    def body(self) -> TicketBody:
        """The verified ticket body."""
        return self._body

    def fetch(
        self, allocate: Allocate = new_buffer, prefetched: Prefetched | None = None
    ) -> FetchedState:
        """Reads and verifies everything; renews the lease meanwhile and checks it at the end.

        Args:
            allocate: Memory for each payload, with 64 bytes in front for its header.
            prefetched: Blocks read before; those with the digest of the ticket are used.

        Raises:
            BlockMissing, BlockCorrupt: A payload is gone or wrong (and quarantined).
            LeaseLost, StaleAttempt: What was read is discarded.
        """
        with (
            counted(self._parts.counters, "read"),
            removals(self._parts.listener, self._hashes),
            self._parts.spans.begin("kvstore.get", "GET") as span,
        ):
            blocks, num_read = self._fetch_blocks(
                allocate, Prefetched() if prefetched is None else prefetched
            )
            tail_kv, tail_state = read(
                self._parts.payloads,
                [self._tail_request(component) for component in TAIL_COMPONENTS],
                allocate,
            )
            self.renew()
            check_attempt(self._parts, self._body.request_id, self._body.attempt)
            num_bytes = sum(map(len, blocks)) + len(tail_kv) + len(tail_state)
            early_bytes = 0 if prefetched is None else prefetched.taken_bytes
            span.set({"disagg.kv.blocks": num_read, "disagg.kv.bytes": num_bytes - early_bytes})
        self._parts.counters.add(fetched=1)
        return FetchedState(
            num_tokens=self._body.num_tokens,
            blocks=tuple(blocks),
            tail_kv=tail_kv,
            tail_state=tail_state,
            num_bytes=num_bytes,
        )

    def renew(self) -> None:
        """Lengthens the lease.

        Raises:
            LeaseLost: It lapsed, was taken over, or the hand-off is gone.
        """
        lease_ms = int(self._parts.config.lease_s * 1000)
        reply = self._parts.leases.renew(self._keys, self._fencing_token, lease_ms)
        require_granted(reply, self._body.handoff_id)
        self._renewed_at = self._parts.clock()

    def release(self) -> bool:
        """Ends the hand-off: deletes body, lease and tail; its blocks join the cache class.

        Idempotent and safe in clean-up: a store that cannot be reached is counted and logged, the
        lease then ends by itself.

        Returns:
            Whether this call deleted the hand-off.
        """
        with self._lock:
            if self._is_released:
                return False
            self._is_released = True
        with self._parts.spans.begin("kvstore.lease", "EVALSHA"):
            return self._give_back()

    def _give_back(self) -> bool:
        parts = self._parts
        try:
            reply = parts.leases.release(self._keys, self._fencing_token)
            parts.payloads.extend(block_refs(self._hashes), int(parts.config.cache_ttl_s * 1000))
        except KvStoreError as error:
            parts.counters.failed(error)
            logger.warning("release of hand-off %s: %s", self._body.handoff_id, error)
            return False
        if reply.outcome is LeaseOutcome.GRANTED:
            parts.counters.add(released=1)
        return reply.outcome is LeaseOutcome.GRANTED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _fetch_blocks(
        self, allocate: Allocate, prefetched: Prefetched
    ) -> tuple[list[memoryview], int]:
        """All blocks in order, and how many of them were read now."""
        named = zip(self._hashes, self._body.block_digests, strict=True)
        found = [prefetched.take(name, digest) for name, digest in named]
        requests = [
            ReadRequest(ref, digest)
            for ref, digest, payload in zip(
                block_refs(self._hashes), self._body.block_digests, found, strict=True
            )
            if payload is None
        ]
        rest: list[memoryview] = []
        for start in range(0, len(requests), _BLOCKS_PER_READ):
            chunk = requests[start : start + _BLOCKS_PER_READ]
            rest += read(self._parts.payloads, chunk, allocate)
            self._renew_if_due()
        remaining = iter(rest)
        blocks = [next(remaining) if payload is None else payload for payload in found]
        return blocks, len(rest)

    def _renew_if_due(self) -> None:
        if self._parts.clock() - self._renewed_at > self._parts.config.lease_s / 3:
            self.renew()

    def _tail_request(self, component: Component) -> ReadRequest:
        return ReadRequest(
            ref=PayloadRef(
                component=component,
                name=bytes.fromhex(self._body.handoff_id),
                attempt=self._body.attempt,
            ),
            segments=self._body.tail_segments(component),
        )


def require_granted(reply: LeaseReply, handoff_id: str) -> None:
    """Raises LeaseLost unless a lease script granted what it was asked for."""
    if reply.outcome is not LeaseOutcome.GRANTED:
        raise LeaseLost(handoff_id, reply.outcome.value)


def raise_attempt(parts: ReaderParts, request_id: str, attempt: int) -> int:
    """Records an attempt unless a newer one is recorded; returns the newest.

    Raises:
        BlockCorrupt: The record was damaged; the next attempt is recorded in its place.
    """
    # Twice the life of a ticket: as long as an old one can be opened, it is known to be old.
    ttl_ms = 2 * int(parts.config.handoff_ttl_s * 1000)
    newest = parts.leases.fence(attempt_key(request_id), attempt, ttl_ms)
    if newest is None:
        parts.counters.add(quarantined=1)
        raise _damaged_record(request_id, attempt)
    return newest


def check_attempt(parts: ReaderParts, request_id: str, attempt: int) -> None:
    """Whether an attempt is the newest one.

    Raises:
        StaleAttempt: It is not, or the store no longer knows (restarted or evicted).
        BlockCorrupt: The record was damaged; the next attempt is recorded in its place.
    """
    newest = parts.leases.fence(attempt_key(request_id), 0, 0)
    if newest is None:
        raise_attempt(parts, request_id, attempt)
        raise _damaged_record(request_id, attempt)  # somebody else replaced it meanwhile
    if newest != attempt:
        raise StaleAttempt(request_id, attempt, newest)


def _damaged_record(request_id: str, attempt: int) -> BlockCorrupt:
    return BlockCorrupt(
        "attempt",
        0,
        "digest",
        f"the record of the attempts of request {request_id} is damaged; start attempt "
        f"{attempt + 1}",
    )
