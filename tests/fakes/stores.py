"""Stores for tests: a clock that is moved by hand, hand-offs of small size, raw access to bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import redis

from disagg import block_hash
from kvstore import HandoffDraft, KvStore, KvStoreConfig, Ticket, embedded
from kvstore.backends.base import Backend
from kvstore.backends.files import FilesBackend
from kvstore.backends.keyed import KeyedBackend
from kvstore.backends.memory import MemoryBackend
from kvstore.backends.redis import RedisBackend
from kvstore.config import parse_url

FINGERPRINT = bytes.fromhex("0123456789abcdef")
BLOCK_TOKENS = 4


class ManualClock:
    """Seconds that pass when the test says so."""

    def __init__(self, start: float = 1000.0) -> None:
        self.time = start

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


def small_config(**changes: object) -> KvStoreConfig:
    """Small blocks and segments, so that a few hundred bytes take several segments."""
    values: dict[str, object] = {
        "block_tokens": BLOCK_TOKENS,
        "owner": "writer",
        "segment_bytes": 128,
        "pipeline_depth": 4,
    }
    return KvStoreConfig(**{**values, **changes})  # type: ignore[arg-type]


def make_bytes(name: str, num_bytes: int) -> bytes:
    """Bytes that depend on a name alone."""
    return hashlib.shake_128(name.encode()).digest(num_bytes)


@dataclass(frozen=True)
class Prompt:
    """A prompt with the payloads a prefill would write for it."""

    request_id: str
    token_ids: tuple[int, ...]
    salt: str = ""
    block_bytes: int = 100
    attempt: int = 1
    first_token: int = 7

    @property
    def hashes(self) -> list[bytes]:
        return block_hash.chain(self.token_ids, BLOCK_TOKENS, salt=self.salt)

    @property
    def payloads(self) -> list[bytes]:
        return [make_bytes(name.hex(), self.block_bytes) for name in self.hashes]

    @property
    def tail_kv(self) -> bytes:
        rest = len(self.token_ids) % BLOCK_TOKENS
        return make_bytes(f"tail {self.salt} {self.token_ids}", 25 * rest)

    @property
    def tail_state(self) -> bytes:
        return make_bytes(f"state {self.salt} {self.token_ids}", 300)

    def draft(self, digests: list[bytes]) -> HandoffDraft:
        hashes = self.hashes
        return HandoffDraft(
            request_id=self.request_id,
            attempt=self.attempt,
            num_tokens=len(self.token_ids),
            block_hashes=hashes,
            block_digests=digests,
            tail_tokens=self.token_ids[len(hashes) * BLOCK_TOKENS :],
            tail_kv=self.tail_kv,
            tail_state=self.tail_state,
            first_token=self.first_token,
            salt=self.salt,
        )

    def hand_over(self, store: KvStore) -> Ticket:
        """Publishes all blocks and commits."""
        pairs = list(zip(self.hashes, self.payloads, strict=True))
        return store.commit(self.draft(store.put_blocks(pairs, attempt=self.attempt)))


def make_store(backend: Backend, clock: ManualClock | None = None, **changes: object) -> KvStore:
    """A store client over a backend that others may share."""
    return KvStore(
        backend, small_config(**changes), fingerprint=FINGERPRINT, clock=clock or ManualClock()
    )


class RawStore(Protocol):
    """Bytes behind the back of the library."""

    backend: Backend

    def values(self) -> dict[bytes, bytes]: ...

    def write(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def drop_lease(self, key: bytes) -> None: ...

    def lapse(self, key: bytes) -> None:
        """Puts the deadline of a lease into the past."""

    def clear(self) -> None: ...


class RawMemory:
    """Raw access to a memory backend."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend: Backend = backend
        self._memory = backend

    def values(self) -> dict[bytes, bytes]:
        return {key: bytes(value.data) for key, value in self._memory._values.items()}

    def write(self, key: bytes, value: bytes) -> None:
        self._memory._values[key].data[:] = value

    def delete(self, key: bytes) -> None:
        del self._memory._values[key]

    def drop_lease(self, key: bytes) -> None:
        del self._memory._leases[key]

    def lapse(self, key: bytes) -> None:
        self._memory._leases[key].deadline_ms = 0

    def clear(self) -> None:
        self._memory._values.clear()
        self._memory._leases.clear()


class RawFiles:
    """Raw access to a directory."""

    def __init__(self, directory: Path) -> None:
        self._files = FilesBackend(parse_url(f"file://{directory}"))
        self.backend: Backend = self._files

    def values(self) -> dict[bytes, bytes]:
        keys = [key for key in self._files.keys(b"dkv1:") if b":l:" not in key]
        return {key: self._files._path(key).read_bytes() for key in keys}

    def write(self, key: bytes, value: bytes) -> None:
        path = self._files._path(key)
        life = path.stat().st_mtime_ns
        path.write_bytes(value)
        os.utime(path, ns=(life, life))

    def delete(self, key: bytes) -> None:
        self._files._path(key).unlink()

    def drop_lease(self, key: bytes) -> None:
        self.delete(key)

    def lapse(self, key: bytes) -> None:
        lease = self._files._lease(key)
        assert lease is not None
        lease.deadline_ms = 0
        self._files._save_lease(key, lease)

    def clear(self) -> None:
        self._files.delete(list(self._files.keys(b"dkv1:")))


class RawKeyed:
    """Raw access behind the tags of another backend: what is written has the right ones."""

    def __init__(self, raw: RawMemory) -> None:
        self._raw = raw
        self._keyed = KeyedBackend(raw.backend, bytes(range(32)))
        self.backend: Backend = self._keyed
        self.delete, self.drop_lease = raw.delete, raw.drop_lease
        self.lapse, self.clear = raw.lapse, raw.clear

    def values(self) -> dict[bytes, bytes]:
        return {
            key: value if b":a:" in key else value[:-16]
            for key, value in self._raw.values().items()
        }

    def write(self, key: bytes, value: bytes) -> None:
        self._raw.write(key, self._keyed._tagged(key, value))


class RawRedis:
    """Raw access to a server or a cluster; further settings as `KvStoreConfig` has them."""

    def __init__(self, url: str, client: Any = None, **settings: object) -> None:
        self.url = url
        self.settings = settings
        self.backend: Backend = RedisBackend(parse_url(url), small_config(**settings))
        self.client = client or redis.Redis(unix_socket_path=parse_url(url).path)

    def values(self) -> dict[bytes, bytes]:
        keys = [key for key in self.client.scan_iter(count=1000) if b":l:" not in key]
        values = [self.client.get(key) for key in keys]
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def write(self, key: bytes, value: bytes) -> None:
        self.client.set(key, value, keepttl=True)

    def delete(self, key: bytes) -> None:
        self.client.delete(key)

    def drop_lease(self, key: bytes) -> None:
        self.client.delete(key)

    def lapse(self, key: bytes) -> None:
        self.client.hset(key, "deadline_ms", "0")

    def clear(self) -> None:
        self.client.flushall()

    def close(self) -> None:
        self.client.close()
        self.backend.close()


@contextmanager
def raw_redis() -> Iterator[RawRedis]:
    """A private server and raw access to it."""
    with embedded.start(max_memory_bytes=256 << 20) as server:
        raw = RawRedis(server.url)
        try:
            yield raw
        finally:
            raw.close()


def read_all(store: KvStore, prompt: Prompt, ticket: Ticket) -> None:
    """Fetches a hand-off and compares every byte."""
    with store.open_ticket(ticket, prompt.token_ids, prompt.salt) as reader:
        state = reader.fetch()
    assert [bytes(block) for block in state.blocks] == prompt.payloads
    assert bytes(state.tail_kv) == prompt.tail_kv
    assert bytes(state.tail_state) == prompt.tail_state
    assert state.num_tokens == len(prompt.token_ids)
    assert state.num_bytes == (
        sum(map(len, prompt.payloads)) + len(prompt.tail_kv) + len(prompt.tail_state)
    )
