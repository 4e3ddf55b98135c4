"""Which trace wrote a block, for the links of traces that use it later.

Only recorded requests leave such a note, beside some of their blocks, and only they look for one.
Nothing depends on a note: it is written without being waited for, the first of a block stays, and
one that is missing or damaged is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.backends.base import PutItem
from kvstore.headers import HeaderError
from kvstore.keys import Component, first_keys
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.sealing import PayloadRef
from kvstore.verification import Expected, verify_segment

STRIDE = 8
"""Every so many blocks have a note, so that a shared part is found to this precision."""
MAX_LOOKED = 256
"""Blocks that are looked at; the newest ones, since a chain grows at its end."""


def noted(first: int, end: int) -> list[int]:
    """Positions in a chain that get a note when blocks [first, end) were written."""
    positions = [idx for idx in range(first, end) if (idx + 1) % STRIDE == 0]
    if end > first and end % STRIDE:
        positions.append(end - 1)
    return positions


def note_writer(payloads: Payloads, names: Sequence[bytes], context: str, ttl_ms: int) -> None:
    """Leaves the context of a span at blocks that have no note yet."""
    sealed = (
        payloads.seal(PayloadRef(Component.WRITER, bytes(name)), context.encode()) for name in names
    )
    payloads.backend.put(
        PutItem(
            payload.ref.key(payloads.fingerprint, 0),
            payload.headers[0],
            payload.segments[0],
            ttl_ms,
        )
        for payload in sealed
    )


def writers_of(payloads: Payloads, names: Sequence[bytes], limit: int) -> list[str]:
    """Contexts of the newest writers of a chain, each once, newest first.

    Args:
        names: The chain; a later block was never written before an earlier one.
        limit: How many at most.
    """
    looked = list(names[-MAX_LOOKED:])
    found: dict[int, str] = {}

    def take(idx: int, value: memoryview | None) -> None:
        if value is None:
            return
        expected = Expected(payloads.fingerprint, looked[idx], Component.WRITER, 0, 0)
        try:
            payload = verify_segment(value, expected).payload
            found[idx] = bytes(payload).decode("ascii")
        except (HeaderError, UnicodeDecodeError):
            return

    payloads.backend.get(first_keys(payloads.fingerprint, Component.WRITER, looked), take)
    newest_first = (found[idx] for idx in sorted(found, reverse=True))
    return list(dict.fromkeys(newest_first))[:limit]
