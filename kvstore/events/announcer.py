"""Turns what happens in a store client into events, each block announced once.

Only what this client sees becomes an event: a block that the server evicts or that ends with its
life disappears silently, and is announced as removed when a read discovers it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from disagg import block_hash
from kvstore.errors import BlockCorrupt, BlockMissing
from kvstore.events.form import BlockRemoved, Event, stored

_MAX_REMEMBERED = 1 << 18


class StoreListener(Protocol):
    """Told by a `KvStore` about blocks, on the thread that did it; must not block."""

    def blocks_stored(
        self, hashes: Sequence[bytes], block_tokens: int, token_ids: Sequence[int]
    ) -> None:
        """A hand-off was committed whose chain has these blocks."""
        ...

    def blocks_removed(self, hashes: Sequence[bytes]) -> None:
        """Blocks were found missing or damaged."""
        ...

    def close(self) -> None:
        """The store client is closed. Twice is harmless."""
        ...


class Relay:
    """Passes on to the listener of a store client, which may come late or never."""

    def __init__(self, listener: StoreListener | None = None) -> None:
        self.listener = listener

    def blocks_stored(
        self, hashes: Sequence[bytes], block_tokens: int, token_ids: Sequence[int]
    ) -> None:
        """See `StoreListener`."""
        if self.listener is not None:
            self.listener.blocks_stored(hashes, block_tokens, token_ids)

    def blocks_removed(self, hashes: Sequence[bytes]) -> None:
        """See `StoreListener`."""
        if self.listener is not None:
            self.listener.blocks_removed(hashes)

    def close(self) -> None:
        """See `StoreListener`."""
        if self.listener is not None:
            self.listener.close()


def _nothing() -> None:
    """Nothing to end."""


@contextmanager
def removals(listener: StoreListener | None, hashes: Sequence[bytes]) -> Iterator[None]:
    """Tells of the block that a read or write of `hashes` found missing or damaged."""
    try:
        yield
    except (BlockMissing, BlockCorrupt) as error:
        if listener is not None and error.kind == "kv" and error.index < len(hashes):
            listener.blocks_removed([hashes[error.index]])
        raise


class Announcer:
    """A listener that makes events. Thread-safe.

    Args:
        publish: Takes the events of one occasion.
        with_token_ids: Whether events carry token ids; routers that hash for themselves need them.
        end: Called when the store client is closed.
    """

    def __init__(
        self,
        publish: Callable[[Sequence[Event]], object],
        *,
        with_token_ids: bool = True,
        end: Callable[[], object] = _nothing,
    ) -> None:
        self._publish = publish
        self._end = end
        self._with_token_ids = with_token_ids
        self._lock = threading.Lock()
        self._announced: OrderedDict[bytes, None] = OrderedDict()

    def blocks_stored(
        self, hashes: Sequence[bytes], block_tokens: int, token_ids: Sequence[int]
    ) -> None:
        """See `StoreListener`. Blocks that were announced before are left out."""
        with self._lock:
            known = [name in self._announced for name in hashes]
            for name in hashes:
                self._announced[name] = None
                self._announced.move_to_end(name)
            while len(self._announced) > _MAX_REMEMBERED:
                self._announced.popitem(last=False)
        events = [
            stored(
                hashes[:stop],
                first,
                block_tokens=block_tokens,
                token_ids=token_ids if self._with_token_ids else (),
            )
            for first, stop in _runs_of_new(known)
        ]
        if events:
            self._publish(events)

    def blocks_removed(self, hashes: Sequence[bytes]) -> None:
        """See `StoreListener`. Announced also if another process announced the block."""
        with self._lock:
            for name in hashes:
                self._announced.pop(name, None)
        if hashes:
            names = tuple(block_hash.low64(name) for name in hashes)
            self._publish([BlockRemoved(block_hashes=names)])

    def snapshot(self) -> list[int]:
        """Low 64 bits of the names that were announced and not removed, as far as remembered."""
        with self._lock:
            names = list(self._announced)
        return [block_hash.low64(name) for name in names]

    def close(self) -> None:
        """See `StoreListener`."""
        self._end()


def _runs_of_new(known: Sequence[bool]) -> list[tuple[int, int]]:
    """Bounds of the runs of False."""
    runs: list[tuple[int, int]] = []
    for idx, is_known in enumerate(known):
        if is_known:
            continue
        if runs and runs[-1][1] == idx:
            runs[-1] = (runs[-1][0], idx + 1)
        else:
            runs.append((idx, idx + 1))
    return runs
