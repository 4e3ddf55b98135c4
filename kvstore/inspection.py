"""What is in a store, for people: counts, one value or hand-off in detail, removal of a layout.

Administration: slow, reads many keys, and no snapshot. Damaged values are shown, never an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from kvstore.backends.base import Backend, BackendStatistics
from kvstore.backends.keyed import TAG_BYTES
from kvstore.digests import payload_digest
from kvstore.errors import BlockCorrupt
from kvstore.handoffs.leases import LeaseRecord, classify
from kvstore.headers import BAD_TAG, HEADER_BYTES, Header, HeaderError, unpack_header
from kvstore.keys import (
    ALL_PREFIX,
    BODY_PREFIX,
    HASH_BYTES,
    KeyName,
    body_key,
    data_prefix,
    is_handoff_id,
    lease_key,
    parse_key,
)
from kvstore.records import open_attempt
from kvstore.ticket import TicketBody, decode_body

_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCounts:
    """Values of one layout by kind."""

    values: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Contents of a store.

    Attributes:
        server: What the server says of itself.
        layouts: Values and bytes by kind, by layout fingerprint (16 hex digits).
        control: Bodies, leases and attempts.
        foreign_keys: Keys that are not ours.
    """

    server: BackendStatistics
    layouts: dict[str, LayoutCounts]
    control: Counter[str]
    foreign_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One stored value and whether its bytes are what its header says.

    `is_tagged` says that it is sound but for a keyed tag behind it: the store's key was not given.
    """

    key: str
    kind: str
    num_bytes: int
    sound: bool
    fault: str = ""
    fingerprint: str = ""
    name: str = ""
    segment: int = 0
    num_segments: int = 0
    attempt: int = 0
    digest: str = ""
    is_tagged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found under a name: values, and for a hand-off its lease and body."""

    values: list[Value]
    lease: LeaseRecord | None = None
    body: TicketBody | None = None


def survey(backend: Backend) -> Survey:
    """Counts all keys; raises StoreDown."""
    layouts: dict[str, LayoutCounts] = {}
    control: Counter[str] = Counter()
    num_ours = 0
    keys = backend.keys(ALL_PREFIX)
    while batch := list(islice(keys, _BATCH)):
        num_ours += len(batch)
        for key, size in zip(batch, backend.sizes(batch), strict=True):
            name = parse_key(key)
            if not name.fingerprint:
                control[name.kind] += 1
                continue
            counts = layouts.setdefault(name.fingerprint, LayoutCounts())
            counts.values[name.kind] += 1
            counts.num_bytes[name.kind] += size
    server = backend.statistics()
    return Survey(
        server=server,
        layouts=dict(sorted(layouts.items())),
        control=control,
        foreign_keys=max(0, server.num_keys - num_ours),
    )


def inspect(backend: Backend, name: str) -> Inspection:
    """Looks at a key, at all values of a block (64 hex digits), or at a hand-off (32).

    Raises:
        ValueError: The name is none of these.
    """
    if name.startswith(ALL_PREFIX.decode()):
        key = parse_key(name.encode())
        if key.kind == "lease":
            return _inspect_handoff(backend, key.name)
        return Inspection(values=_values(backend, [name.encode()]))
    if is_handoff_id(name):
        return _inspect_handoff(backend, name)
    if len(name) == 2 * HASH_BYTES and not set(name) - set("0123456789abcdef"):
        braced = f"{{{name}}}".encode()
        keys = sorted(key for key in backend.keys(ALL_PREFIX) if braced in key)
        return Inspection(values=_values(backend, keys))
    raise ValueError(
        f"{name[:80]!r} is no key (dkv1:...), no hand-off id (32 hex digits) and no block hash (64)"
    )


def flush(backend: Backend, fingerprint: bytes | None) -> int:
    """Deletes everything of a layout, or of every layout; how many keys there were.

    Readers find their blocks missing and recompute; whoever holds a lease loses it.
    """
    if fingerprint is None:
        return _delete(backend, backend.keys(ALL_PREFIX))
    # The key of a body does not name its layout, its header does.
    ids = [
        value.name
        for batch in _batches(backend.keys(BODY_PREFIX))
        for value in _values(backend, batch)
        if value.fingerprint == fingerprint.hex()
    ]
    control = [key for name in ids for key in (body_key(name), lease_key(name))]
    return backend.delete(control) + _delete(backend, backend.keys(data_prefix(fingerprint)))


def _inspect_handoff(backend: Backend, handoff_id: str) -> Inspection:
    entry = next((item for item in backend.audit() if item.handoff_id == handoff_id), None)
    if entry is None:
        return Inspection(values=[])
    key = body_key(handoff_id)
    stored = _read(backend, [key])[0]
    try:
        body = decode_body(stored[HEADER_BYTES:]) if stored is not None else None
    except BlockCorrupt:
        body = None
    keys = ([key] if stored is not None else []) + list(entry.tails)
    return Inspection(values=_values(backend, keys), lease=classify(entry), body=body)


def _values(backend: Backend, keys: list[bytes]) -> list[Value]:
    """One line per key that is there."""
    return [
        _judge(key, value)
        for key, value in zip(keys, _read(backend, keys), strict=True)
        if value is not None
    ]


def _judge(key: bytes, value: bytes) -> Value:
    name = parse_key(key)
    text = key.decode("ascii", "replace")
    if name.kind == "attempt":
        sound = open_attempt(key, value) is not None
        fault = "" if sound else "its digest is not what its key and number say"
        return Value(
            key=text, kind=name.kind, num_bytes=len(value), sound=sound, fault=fault, name=name.name
        )
    if value == BAD_TAG:
        # Without the right key nobody can tell which of the two it is.
        fault = "its keyed tag is wrong: it is damaged, or the key file is not that of its writer"
        return Value(key=text, kind=name.kind, num_bytes=0, sound=False, fault=fault)
    try:
        header = unpack_header(value)
    except HeaderError as error:
        return Value(key=text, kind=name.kind, num_bytes=len(value), sound=False, fault=str(error))
    payload = value[HEADER_BYTES:]
    fault = _fault(name, header, payload)
    is_tagged = bool(fault) and not _fault(name, header, payload[:-TAG_BYTES])
    return Value(
        key=text,
        kind=name.kind,
        num_bytes=len(payload),
        sound=not fault,
        fault="it carries a keyed tag, and the key was not given" if is_tagged else fault,
        is_tagged=is_tagged,
        fingerprint=header.fingerprint.hex(),
        name=name.name,
        segment=header.segment,
        num_segments=header.num_segments,
        attempt=header.attempt,
        digest=header.digest.hex(),
    )


def _fault(key: KeyName, header: Header, payload: bytes) -> str:
    """What of a value contradicts its key or itself; empty if nothing does."""
    for what, is_right in (
        ("length", header.num_bytes == len(payload)),
        ("digest", header.digest == payload_digest(payload)),
        ("name", key.name.startswith(header.name.hex())),
        ("fingerprint", key.fingerprint in ("", header.fingerprint.hex())),
        ("segment", header.segment == key.segment),
    ):
        if not is_right:
            return f"its {what} is not what its header or key says"
    return ""


def _read(backend: Backend, keys: list[bytes]) -> list[bytes | None]:
    values: list[bytes | None] = [None] * len(keys)

    def keep(idx: int, value: memoryview | None) -> None:
        values[idx] = None if value is None else bytes(value)

    backend.get(keys, keep)
    return values


def _delete(backend: Backend, keys: Iterator[bytes]) -> int:
    return sum(backend.delete(batch) for batch in _batches(keys))


def _batches(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(keys, _BATCH)):
        yield batch
