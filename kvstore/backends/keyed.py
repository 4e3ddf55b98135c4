"""A store that is not trusted: every value carries a keyed BLAKE3 tag behind its payload.

The tag covers the full key, the header and the payload, so whoever can write to the store but does
not have the key file can neither change a value nor move one under another name. What remains: he
can delete, and he can put an older value of the same name back, which is the same bytes by
definition. Attempts and leases carry no tag; forging them refuses hand-offs and changes none.

A wrapper over any backend. All parts of a system share the setting; the key is part of the layout
fingerprint, and a value without the right tag is damaged. Costs a pass of BLAKE3 and a copy on top
of the usual digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvstore.backends.base import (
    Backend,
    BackendStatistics,
    Facts,
    HandoffKeys,
    LeaseEntry,
    LeaseGrant,
    LeaseReply,
    OnBytes,
    OnValue,
    Place,
    PutItem,
)
from kvstore.buffers import Buffer, flat_view, new_buffer
from kvstore.headers import BAD_TAG
from kvstore.keys import ATTEMPT_PREFIX, FINGERPRINT_BYTES

KEY_BYTES = 32
TAG_BYTES = 16
_CONTEXT = "disagg kvstore 2026 value tag"


def read_key(path: str) -> bytes:
    """The key in a file: any 32 bytes or more, of which a key of its own is derived.

    Raises:
        ValueError: The file cannot be read or holds too little.
    """
    try:
        material = Path(path).read_bytes().strip()
    except OSError as error:
        raise ValueError(f"integrity_key_file {path!r} cannot be read: {error.strerror}") from error
    if len(material) < KEY_BYTES:
        raise ValueError(
            f"integrity_key_file {path!r} holds {len(material)} bytes, at least {KEY_BYTES} are "
            "needed; make one with `openssl rand -hex 32`"
        )
    from blake3 import blake3

    return bytes(blake3(material, derive_key_context=_CONTEXT).digest())


def keyed_fingerprint(fingerprint: bytes, key: bytes) -> bytes:
    """The layout fingerprint of values with tags of this key: other bytes go by other names.

    So a member with another key, or none, is another layout: it is never paired with those that
    have it, and neither reads nor quarantines what is theirs. The key cannot be found from it.
    """
    from blake3 import blake3

    return bytes(blake3(fingerprint, key=key).digest(FINGERPRINT_BYTES))


class KeyedBackend:
    """All ports of a backend, with tags. Thread-safe if the backend is."""

    def __init__(self, backend: Backend, key: bytes) -> None:
        from blake3 import blake3

        self._backend = backend
        self._hash = blake3(key=key)

    def _tag(self, key: bytes, *parts: Buffer) -> bytes:
        state = self._hash.copy()
        state.update(len(key).to_bytes(4, "little") + key)
        for part in parts:
            state.update(flat_view(part))
        return bytes(state.digest(TAG_BYTES))

    def _tagged(self, key: bytes, value: bytes) -> bytes:
        return value + self._tag(key, value) if value else value

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        return self._backend.lookup(keys, extend_ms=extend_ms)

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """See `BlockStore`."""
        return self._backend.put(
            item._replace(trailer=self._tag(item.key, item.header, item.payload)) for item in items
        )

    def put_index(
        self, key: bytes, segments: Sequence[bytes], expected: bytes, value: bytes, ttl_ms: int
    ) -> bool:
        """See `BlockStore`."""
        return self._backend.put_index(
            key, segments, self._tagged(key, expected), self._tagged(key, value), ttl_ms
        )

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """See `BlockStore`. A value with a wrong tag arrives as `BAD_TAG`."""

        def check(idx: int, stored: memoryview | None) -> None:
            if stored is None:
                on_value(idx, None)
                return
            value, tag = stored[:-TAG_BYTES], stored[-TAG_BYTES:]
            if len(tag) != TAG_BYTES or self._tag(keys[idx], value) != tag:
                on_value(idx, memoryview(bytearray(BAD_TAG)))
                return
            memory = place(idx, len(value)) if place else new_buffer(len(value))
            view = flat_view(memory)[: len(value)]
            view[:] = value
            if on_bytes is not None:
                on_bytes(len(value))
            on_value(idx, view)

        self._backend.get(keys, check)

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """See `BlockStore`."""
        return self._backend.quarantine(key, b"" if header == BAD_TAG else header)

    def statistics(self) -> BackendStatistics:
        """See `BlockStore`."""
        return self._backend.statistics()

    def close(self) -> None:
        """See `BlockStore`."""
        self._backend.close()

    # LeaseStore

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int | None:
        """See `LeaseStore`."""
        return self._backend.fence(key, attempt, ttl_ms)

    def commit(self, keys: HandoffKeys, body: bytes, grant: LeaseGrant) -> LeaseReply:
        """See `LeaseStore`."""
        return self._backend.commit(keys, self._tagged(keys.body, body), grant)

    def acquire(self, keys: HandoffKeys, grant: LeaseGrant, fencing_token: int) -> LeaseReply:
        """See `LeaseStore`."""
        return self._backend.acquire(keys, grant, fencing_token)

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        """See `LeaseStore`."""
        return self._backend.renew(keys, fencing_token, lease_ms)

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        """See `LeaseStore`."""
        return self._backend.release(keys, fencing_token)

    def expire(self, keys: HandoffKeys) -> bool:
        """See `LeaseStore`."""
        return self._backend.expire(keys)

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`."""
        return [
            entry
            if entry.has_lease
            else replace(entry, num_bytes=max(0, entry.num_bytes - TAG_BYTES * len(entry.tails)))
            for entry in self._backend.audit()
        ]

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        return self._backend.keys(prefix)

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`; without the tags."""
        sizes = self._backend.sizes(keys)
        return [
            size if key.startswith(ATTEMPT_PREFIX) else max(0, size - TAG_BYTES)
            for key, size in zip(keys, sizes, strict=True)
        ]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        return self._backend.delete(keys)

    def facts(self) -> list[Facts]:
        """See `KeyStore`."""
        return self._backend.facts()
