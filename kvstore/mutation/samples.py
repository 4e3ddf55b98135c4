"""Small hand-offs to damage: shared and private blocks, payloads of one and of several segments."""

from __future__ import annotations

import hashlib
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
        block_tokens=BLOCK_TOKENS, owner="mutation", segment_bytes=SEGMENT_BYTES, pipeline_depth=4
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

    def hand_over(self, store: KvStore) -> Ticket:
        """Publishes the blocks and commits."""
        hashes = self.hashes
        blocks = [(name, _bytes_of(name.hex(), self.block_bytes)) for name in hashes]
        digests = store.put_blocks(blocks, attempt=self.attempt)
        rest = self.token_ids[len(hashes) * BLOCK_TOKENS :]
        text = f"{self.salt} {self.token_ids}"
        return store.commit(
            HandoffDraft(
                request_id=self.request_id,
                attempt=self.attempt,
                num_tokens=len(self.token_ids),
                block_hashes=hashes,
                block_digests=digests,
                tail_tokens=rest,
                tail_kv=_bytes_of(f"tail {text}", _TAIL_TOKEN_BYTES * len(rest)),
                tail_state=_bytes_of(f"state {text}", _STATE_BYTES),
                first_token=7,
                salt=self.salt,
            )
        )

    def value_keys(self, ticket: Ticket) -> list[bytes]:
        """Keys of all values a reader of its hand-off needs."""
        fingerprint, handoff_id = ticket.fingerprint, ticket.handoff_id
        keys = [body_key(handoff_id)]
        for name in self.hashes:
            count = _num_segments(self.block_bytes)
            keys += [data_key(fingerprint, name, Component.KV, number) for number in range(count)]
            if count > 1:
                keys.append(index_key(fingerprint, name))
        rest = len(self.token_ids) % BLOCK_TOKENS
        for component, size in zip(
            TAIL_COMPONENTS, (_TAIL_TOKEN_BYTES * rest, _STATE_BYTES), strict=True
        ):
            keys += [
                tail_key(fingerprint, handoff_id, component, number)
                for number in range(_num_segments(size))
            ]
        return sorted(keys)

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
