"""Names of everything stored: how a key is built, and what it says. Pure, no I/O.

    dkv1:<fingerprint>:b:{<block hash>}:<component>:<rank>:<segment>   a segment of a shared block
    dkv1:<fingerprint>:m:{<block hash>}                                its index record
    dkv1:<fingerprint>:t:{<hand-off id>}:<component>:<rank>:<segment>  a segment of a tail
    dkv1:h:{<hand-off id>}                                             a ticket body
    dkv1:l:{<hand-off id>}                                             a lease
    dkv1:a:{<digest of request id>}                                    the newest attempt

Fingerprints, hashes and digests are lower-case hex, numbers are decimal, the rank is 0.

Invariants: no user text in a key; the braces keep one block or one hand-off in one cluster slot;
`parse_key` gives back what a key was built from.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

HASH_BYTES = 32
HANDOFF_ID_BYTES = 16
FINGERPRINT_BYTES = 8

_PREFIX = b"dkv1"
ALL_PREFIX = _PREFIX + b":"
ATTEMPT_PREFIX = _PREFIX + b":a:"
BODY_PREFIX = _PREFIX + b":h:"
LEASE_PREFIX = _PREFIX + b":l:"


class Component(enum.IntEnum):
    """What a payload is. RECORD is an index record or a ticket body, WRITER a note for traces."""

    RECORD = 0
    KV = 1
    STATE = 2
    TAIL_KV = 3
    TAIL_STATE = 4
    WRITER = 5

    @property
    def kind(self) -> str:
        """Name used in errors and counters."""
        return self.name.lower()


_COMPONENTS = frozenset(map(int, Component))
TAIL_COMPONENTS = (Component.TAIL_KV, Component.TAIL_STATE)


def data_key(
    fingerprint: bytes, name: bytes, component: Component, segment: int, *, rank: int = 0
) -> bytes:
    """Key of one segment of a shared block; `name` is its 32-byte chain hash."""
    return b"%s:%s:b:{%s}:%d:%d:%d" % (
        _PREFIX,
        fingerprint.hex().encode(),
        name.hex().encode(),
        component,
        rank,
        segment,
    )


def first_keys(fingerprint: bytes, component: Component, names: Sequence[bytes]) -> list[bytes]:
    """Keys of the first segment of a component of many blocks; `data_key` for a whole chain."""
    if not names:
        return []
    # All names are of one length: one conversion and one substitution instead of one per block.
    head, tail = f"dkv1:{fingerprint.hex()}:b:{{", f"}}:{int(component)}:0:0"
    text = b"".join(names).hex("|", HASH_BYTES).replace("|", f"{tail}|{head}")
    return f"{head}{text}{tail}".encode().split(b"|")


def index_key(fingerprint: bytes, name: bytes) -> bytes:
    """Key of the index record of a block with a component of several segments."""
    return b"%s:%s:m:{%s}" % (_PREFIX, fingerprint.hex().encode(), name.hex().encode())


def tail_prefix(fingerprint: bytes, handoff_id: str) -> bytes:
    """What all tail keys of a hand-off start with; the `tail_key` of its ticket."""
    return b"%s:%s:t:{%s}" % (_PREFIX, fingerprint.hex().encode(), handoff_id.encode())


def tail_key(
    fingerprint: bytes, handoff_id: str, component: Component, segment: int, *, rank: int = 0
) -> bytes:
    """Key of one segment of a tail component of a hand-off."""
    return b"%s:%d:%d:%d" % (tail_prefix(fingerprint, handoff_id), component, rank, segment)


def body_key(handoff_id: str) -> bytes:
    """Key of the ticket body of a hand-off."""
    return b"%s:h:{%s}" % (_PREFIX, handoff_id.encode())


def lease_key(handoff_id: str) -> bytes:
    """Key of the lease of a hand-off."""
    return b"%s:l:{%s}" % (_PREFIX, handoff_id.encode())


def attempt_key(request_id: str) -> bytes:
    """Key of the newest attempt of a request. The id is user text, so it goes in as a digest."""
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return b"%s:a:{%s}" % (_PREFIX, digest.encode())


def data_prefix(fingerprint: bytes) -> bytes:
    """What the keys of all blocks and tails of a layout start with."""
    return b"%s:%s:" % (_PREFIX, fingerprint.hex().encode())


class KeyName(NamedTuple):
    """What a key says: `kind` is `kv`, `state`, `tail_kv`, `tail_state`, `index`, `body`, ...

    Attributes:
        kind: A component's kind, or `index`, `body`, `lease`, `attempt`, `unknown`.
        fingerprint: Layout fingerprint, 16 hex digits; empty where a key has none.
        name: The part between the braces.
        segment: Number of the segment.
    """

    kind: str
    fingerprint: str = ""
    name: str = ""
    segment: int = 0


_MAX_DIGITS = 5  # of a component, rank or segment: 16 bits in a header
_CONTROL_KINDS = {b"h": "body", b"l": "lease", b"a": "attempt"}


def parse_key(key: bytes) -> KeyName:
    """Takes a key apart; anything that is not ours is `unknown`."""
    match key.split(b":"):
        case [b"dkv1", kind, name] if kind in _CONTROL_KINDS:
            return KeyName(_CONTROL_KINDS[kind], "", _unbraced(name))
        case [b"dkv1", fingerprint, b"m", name]:
            return KeyName("index", fingerprint.decode("ascii", "replace"), _unbraced(name))
        case [b"dkv1", fingerprint, b"b" | b"t", name, component, b"0", segment] if (
            _is_number(component) and _is_number(segment) and int(component) in _COMPONENTS
        ):
            return KeyName(
                Component(int(component)).kind,
                fingerprint.decode("ascii", "replace"),
                _unbraced(name),
                int(segment),
            )
    return KeyName("unknown")


def _is_number(text: bytes) -> bool:
    # Whoever can write to the store can write a key of any length; `int` refuses long numbers.
    return text.isdigit() and len(text) <= _MAX_DIGITS


def _unbraced(name: bytes) -> str:
    return name.strip(b"{}").decode("ascii", "replace")


def handoff_id_of_key(key: bytes) -> str:
    """The part between the braces of a key; empty if it has none."""
    start, end = key.find(b"{"), key.find(b"}")
    return key[start + 1 : end].decode("ascii", "replace") if 0 <= start < end else ""


def is_handoff_id(text: str) -> bool:
    """Whether a string is a hand-off id: 32 lower-case hex digits."""
    return len(text) == 2 * HANDOFF_ID_BYTES and not set(text) - set("0123456789abcdef")
