"""What of a prompt is in the store already, asked before the request is placed.

The answer prices the prefill, nothing more: it is advisory, and prefill looks for itself. So it may
take little time, and whatever goes wrong counts as nothing stored, under its cause. The balancer
may serve members of several KV layouts; asked is under that of the first prefill member that takes
work, since almost always there is one layout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from balancer.journey.request import Request
from balancer.membership import Membership
from balancer.remote.handoffs import StoredLayout
from kvstore.errors import KvStoreError
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

_MAX_OPEN = 64  # look-ups that run or wait for a thread; beyond it the store is the bottleneck


class PrefixStore(Protocol):
    """The part of the shared store that is used here."""

    def look_up(
        self, layout: StoredLayout, token_ids: Sequence[int], salt: str
    ) -> asyncio.Future[int]:
        """Begins to find out how many leading tokens prefill need not compute."""
        ...


class Prefixes:
    """Asks the store; belongs to one event loop.

    Args:
        limit_s: Seconds an answer may take; 0 asks never.
    """

    def __init__(
        self,
        store: PrefixStore,
        members: Membership,
        clock: Clock,
        *,
        limit_s: float,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._members = members
        self._clock = clock
        self._limit_s = limit_s
        self._metrics = metrics
        self._open: set[asyncio.Future[int]] = set()

    async def stored_tokens(self, request: Request) -> int:
        """Prompt tokens whose KV is stored and resumable; 0 if that cannot be found out in time."""
        layout = self._layout()
        if not self._limit_s or layout is None or len(request.token_ids) <= layout.block_tokens:
            return 0
        if len(self._open) >= _MAX_OPEN:
            return self._unknown("lookup_busy")
        found = self._store.look_up(layout, request.token_ids, request.cache_salt)
        # A look-up that is late keeps its place among the open ones until its thread is free.
        self._open.add(found)
        found.add_done_callback(self._close)
        done, _ = await asyncio.wait({found}, timeout=self._limit_s)
        if not done:
            return self._unknown("lookup_late")
        if (error := found.exception()) is not None:
            if not isinstance(error, (KvStoreError, OSError)):
                raise error
            _log.debug("prefix.unknown", request_id=request.request_id, error=str(error))
            return self._unknown("lookup_failed")
        return found.result()

    def _close(self, found: asyncio.Future[int]) -> None:
        self._open.discard(found)
        if not found.cancelled():
            found.exception()  # seen, also if nobody waits any more

    def _layout(self) -> StoredLayout | None:
        columns = self._members.snapshot(self._clock.now()).prefill
        rows = (columns.cause == 0).nonzero()[0]
        if not len(rows):
            return None
        member = columns.members[int(rows[0])]
        return StoredLayout(
            fingerprint=member.fingerprint,
            block_tokens=member.block_tokens,
            window_replay_tokens=member.window_replay_tokens or None,
        )

    def _unknown(self, cause: str) -> int:
        self._metrics.count("disagg_prefix_fallback_total", cause=cause)
        return 0
