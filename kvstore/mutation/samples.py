"""Small hand-offs to damage: shared and private blocks, payloads of one and of several segments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from disagg import block_hash
from kvstore.config import KvStoreConfig
from kvstore.keys import (
    TAIL_COMPONENTS,
    Component,
    attempt_key,
    body_key,
    data_key,
    index_key,
    lease_key,
    tail_key,
)
from kvstore.store import KvStore
from kvstore.ticket import HandoffDraft, Ticket

BLOCK_TOKENS = 4
SEGMENT_BYTES = 128
_STATE_BYTES = 300
_TAIL_TOKEN_BYTES = 25


def sample_config() -> KvStoreConfig:
    """Blocks and segments so small that a few hundred bytes take several segments."""
    return KvStoreConfig(
        block_tokens=BLOCK_TOKENS,
        owner="mutation",
        segment_bytes=SEGMENT_BYTES,
        pipeline_depth=4,
        cache_ttl_s=600.0,  # of what a killed run leaves
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A prompt with the payloads that a prefill would write for it; all bytes follow from it."""

    request_id: str
    token_ids: tuple[int, ...]
    salt: str = ""
    attempt: int = 1
    block_bytes: int = 100

    @property
    def hashes(self) -> list[bytes]:
        """Names of its full blocks."""
        return block_hash.chain(self.token_ids, BLOCK_TOKENS, salt=self.salt)

    @property
    def block_payloads(self) -> list[bytes]:
        """One payload per full block."""
        return [_bytes_of(name.hex(), self.block_bytes) for name in self.hashes]

    def state_at(self, num_blocks: int) -> bytes:
        """The boundary state at the end of its first `num_blocks` blocks; in as many segments."""
        name = self.hashes[num_blocks - 1].hex()
        return _bytes_of(f"boundary {name}", self.block_bytes - 10)

    @property
    def tail_kv(self) -> bytes:
        """Entries of the unfinished block; may be empty."""
        rest = len(self.token_ids) % BLOCK_TOKENS
        return _bytes_of(f"tail {self._text}", _TAIL_TOKEN_BYTES * rest)

    @property
    def tail_state(self) -> bytes:
        """State at the end."""
        return _bytes_of(f"state {self._text}", _STATE_BYTES)

    @property
    def _text(self) -> str:
        return f"{self.salt} {self.token_ids}"

    def hand_over(self, store: KvStore) -> Ticket:
        """Publishes the blocks with the states between them, and commits."""
        hashes = self.hashes
        blocks = list(zip(hashes, self.block_payloads, strict=True))
        digests = store.put_blocks(blocks, attempt=self.attempt)
        for idx, name in enumerate(hashes):
            store.put_state(name, self.state_at(idx + 1), attempt=self.attempt)
        rest = self.token_ids[len(hashes) * BLOCK_TOKENS :]
        return store.commit(
            HandoffDraft(
                request_id=self.request_id,
                attempt=self.attempt,
                num_tokens=len(self.token_ids),
                block_hashes=hashes,
                block_digests=digests,
                tail_tokens=rest,
                tail_kv=self.tail_kv,
                tail_state=self.tail_state,
                first_token=7,
                salt=self.salt,
            )
        )

    def value_keys(self, ticket: Ticket) -> list[bytes]:
        """Keys of all values a reader of its hand-off needs."""
        fingerprint, handoff_id = ticket.fingerprint, ticket.handoff_id
        keys = [body_key(handoff_id)]
        keys += self._block_keys(fingerprint, self.hashes, Component.KV)
        rest = len(self.token_ids) % BLOCK_TOKENS
        for component, size in zip(
            TAIL_COMPONENTS, (_TAIL_TOKEN_BYTES * rest, _STATE_BYTES), strict=True
        ):
            keys += [
                tail_key(fingerprint, handoff_id, component, number)
                for number in range(_num_segments(size))
            ]
        return sorted(keys)

    def prefix_keys(self, ticket: Ticket) -> list[bytes]:
        """Keys of all values that a prompt with these blocks needs to go on behind them."""
        hashes, fingerprint = self.hashes, ticket.fingerprint
        keys = self._block_keys(fingerprint, hashes, Component.KV)
        keys += self._block_keys(fingerprint, hashes[-1:], Component.STATE)
        return sorted(set(keys))

    def inner_keys(self, ticket: Ticket) -> list[bytes]:
        """Keys of the states before the last one, which nobody needs who has the last one."""
        return sorted(self._block_keys(ticket.fingerprint, self.hashes[:-1], Component.STATE))

    def _block_keys(
        self, fingerprint: bytes, hashes: Sequence[bytes], component: Component
    ) -> list[bytes]:
        # Blocks and states are of as many segments, so one count and one record is for both.
        count = _num_segments(self.block_bytes)
        keys = [
            data_key(fingerprint, name, component, number)
            for name in hashes
            for number in range(count)
        ]
        if count > 1:
            keys += [index_key(fingerprint, name) for name in hashes]
        return keys

    def control_keys(self, ticket: Ticket) -> tuple[bytes, bytes]:
        """Keys of the lease and of the attempt."""
        return lease_key(ticket.handoff_id), attempt_key(self.request_id)


def samples(prefix: str) -> list[Sample]:
    """The hand-offs of a world; the first three share a prompt's beginning, two of them a tenant.

    Args:
        prefix: Of the request ids, so that two runs on one store do not meet.
    """
    shared = tuple(range(100, 112))
    return [
        Sample(request_id=f"{prefix} a", token_ids=(*shared, 1, 2, 3, 4, 5), salt="one"),
        Sample(request_id=f"{prefix} b", token_ids=(*shared, 9, 8), salt="one"),
        Sample(request_id=f"{prefix} c", token_ids=(*shared, 1, 2, 3, 4, 5), salt="two"),
        Sample(request_id=f"{prefix} d", token_ids=tuple(range(8)), salt="one", block_bytes=300),
        Sample(request_id=f"{prefix} e", token_ids=(5, 6, 7), attempt=2),
    ]


def _num_segments(num_bytes: int) -> int:
    return max(1, -(-num_bytes // SEGMENT_BYTES))


def _bytes_of(name: str, num_bytes: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(num_bytes)
