"""The balancer's view of the shared store: is it there, has it room, what of a prompt does it hold,
and drop what nobody reads.

The store library is synchronous, so every call runs in a thread of a small pool of its own; a store
that hangs blocks that pool and nothing else. Connections are made on first use: a balancer starts
before its store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from balancer.config import StoreSettings
from balancer.remote.legs import Ticket
from disagg.block_hash import chain
from kvstore import KvStore, KvStoreConfig, LeaseRecord, PrefixMatch
from kvstore.backends.base import BackendStatistics
from kvstore.config import parse_url
from kvstore.errors import KvStoreError
from kvstore.measures import StoreMeasures
from kvstore.pressure import Pressure, Shedding
from kvstore.resume import plan_resume
from kvstore.store import open_backend
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.offload import offload

_log = get_logger(__name__)

# A prefill that notices its caller's leaving needs some time to take its hand-off back itself.
_LOST_TICKET_WAIT_S = 0.3
_ALL_SHARDS = "all"  # the servers of a cluster are asked together
_NO_LAYOUT = bytes(8)  # pings do not depend on the layout


def open_handoffs(settings: StoreSettings, clock: Clock, metrics: Metrics) -> StoreHandoffs:
    """The shared store of the settings; nothing is connected yet.

    Raises:
        StoreUrlError: The URL names no known kind of store.
    """
    parse_url(settings.url)
    config = KvStoreConfig(block_tokens=1, owner="balancer")  # neither matters for what is used

    # Members announce the fingerprint under which they store.
    def open_store(fingerprint: bytes) -> KvStore:
        backend = open_backend(settings.url, config, clock.now)
        store = KvStore(backend, config, fingerprint=fingerprint, clock=clock.now)
        store.observe(StoreMeasures(metrics))
        return store

    return StoreHandoffs(open_store, ping_s=settings.ping_s, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayout:
    """How members store and resume prefixes, as they announce it.

    Args:
        fingerprint: Of their KV layout, 8 bytes.
        block_tokens: Tokens of a block.
        window_replay_tokens: See `kvstore.resume.plan_resume`.
    """

    fingerprint: bytes
    block_tokens: int
    window_replay_tokens: int | None = None


class Store(Protocol):
    """The part of the store library that is used here; synchronous and thread-safe."""

    def ping(self) -> object:
        """Raises KvStoreError unless the server answers."""
        ...

    def abort(self, handoff_id: str) -> object:
        """Drops a hand-off; idempotent."""
        ...

    def lookup(self, hashes: Sequence[bytes]) -> PrefixMatch:
        """Longest stored prefix of a chain of block hashes."""
        ...

    def pressure(self) -> Pressure:
        """How full the server is; may walk all keys."""
        ...

    def audit(self) -> Sequence[LeaseRecord]:
        """All hand-offs in the store; walks all keys."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...


class StoreHandoffs:
    """See the module; one instance per process.

    Args:
        open_store: Opens the store under a layout fingerprint of 8 bytes.
        ping_s: How long a ping may take.
    """

    def __init__(
        self,
        open_store: Callable[[bytes], Store],
        *,
        ping_s: float,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._open_store = open_store
        self._ping_s = ping_s
        self._stores: dict[bytes, Store] = {}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="store")
        # Of their own, so that look-ups which hang leave pings and clean-up alone.
        self._lookup_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="lookup")
        self._ping: asyncio.Future[object] | None = None
        self._is_down = False
        self._lost: dict[bytes, set[tuple[str, int]]] = {}
        self._shedding = Shedding()
        self._pressure: Pressure | None = None
        self._look: asyncio.Future[Pressure] | None = None

    @property
    def refusal(self) -> str:
        """Why no new hand-off should begin, as of the last look; empty if one may."""
        return self._shedding.refusal

    @property
    def pressure(self) -> Pressure | None:
        """How full the store was at the last look that it answered; None before the first."""
        return self._pressure

    def look_at_pressure(self) -> None:
        """Has a thread measure how full the store is; one look at a time. Event loop."""
        if self._look is None or self._look.done():
            loop = asyncio.get_running_loop()
            self._look = loop.run_in_executor(
                self._threads, lambda: self._store(_NO_LAYOUT).pressure()
            )
            self._look.add_done_callback(self._take_pressure)

    def _take_pressure(self, look: asyncio.Future[Pressure]) -> None:
        if look.cancelled():
            return
        if (error := look.exception()) is not None:
            # Whether it is there at all is another question, which readiness answers.
            _log.debug("store.pressure_unknown", error=str(error))
            return
        self._pressure = look.result()
        if self._shedding.update(self._pressure):
            _log.warning("store.pressure", refuses=self.refusal or "nothing any more")

    @property
    def is_down(self) -> bool:
        """Whether the last ping had no answer; False before the first."""
        return self._is_down

    async def is_reachable(self) -> bool:
        """Whether the store answers in time. A ping that hangs is waited for, not repeated."""
        if self._ping is None or self._ping.done():
            loop = asyncio.get_running_loop()
            self._ping = loop.run_in_executor(self._threads, lambda: self._store(_NO_LAYOUT).ping())
            self._ping.add_done_callback(_mark_seen)
        try:
            async with asyncio.timeout(self._ping_s):
                server = await asyncio.shield(self._ping)
        except (KvStoreError, OSError, TimeoutError) as error:
            _log.debug("store.unreachable", error=str(error))
            self._metrics.set("disagg_kv_store_up", 0)
            self._is_down = True
            return False
        self._metrics.set("disagg_kv_store_up", 1)
        self._is_down = False
        if isinstance(server, BackendStatistics):
            self._metrics.set("disagg_kv_store_used_bytes", server.used_bytes, shard=_ALL_SHARDS)
            self._metrics.set("disagg_kv_store_limit_bytes", server.max_bytes, shard=_ALL_SHARDS)
        return True

    def look_up(
        self, layout: StoredLayout, token_ids: Sequence[int], salt: str
    ) -> asyncio.Future[int]:
        """Begins to find out how many leading tokens of a prompt prefill need not compute.

        Advisory, and one look-up; what it finds, or the error of the store, comes with the future.

        Args:
            layout: Of the members that would read it.
        """
        return asyncio.get_running_loop().run_in_executor(
            self._lookup_threads, self._look_up, layout, token_ids, salt
        )

    def _look_up(self, layout: StoredLayout, token_ids: Sequence[int], salt: str) -> int:
        block_tokens = layout.block_tokens
        usable = (len(token_ids) - 1) // block_tokens * block_tokens  # one token is always computed
        if usable < block_tokens:
            return 0
        hashes = chain(token_ids[:usable], block_tokens, salt=salt)
        plan = plan_resume(
            self._store(layout.fingerprint).lookup(hashes),
            block_tokens=block_tokens,
            window_replay_tokens=layout.window_replay_tokens,
        )
        return plan.saved_tokens

    async def abort(self, ticket: Ticket) -> None:
        """Drops a hand-off that no decode took over; idempotent."""
        try:
            await offload(
                self._threads, lambda: self._store(ticket.fingerprint).abort(ticket.handoff_id)
            )
        except KvStoreError as error:
            # The hand-off's own deadline ends it.
            _log.warning("handoff.not_dropped", handoff_id=ticket.handoff_id, error=str(error))

    async def abort_request(self, fingerprint: bytes, request_id: str, attempt: int) -> None:
        """Drops the hand-offs of an attempt whose ticket may have been lost on its way here.

        A prefill whose caller leaves takes its hand-off back, unless it was already done when the
        leaving arrived; then nobody holds the ticket. The search walks the whole store, so all
        attempts that were left within a moment share one.
        """
        lost = self._lost.setdefault(fingerprint, set())
        is_first = not lost
        lost.add((request_id, attempt))
        if not is_first:
            return
        try:
            await asyncio.sleep(_LOST_TICKET_WAIT_S)
        finally:
            del self._lost[fingerprint]
        try:
            await offload(self._threads, lambda: self._abort_all(fingerprint, lost))
        except KvStoreError as error:
            # The hand-offs' own deadlines end them.
            _log.warning("handoffs.not_searched", num_attempts=len(lost), error=str(error))

    def _abort_all(self, fingerprint: bytes, attempts: set[tuple[str, int]]) -> None:
        store = self._store(fingerprint)
        for record in store.audit():
            if (record.request_id, record.attempt) in attempts:
                store.abort(record.handoff_id)

    def close(self) -> None:
        """Closes connections and threads; running calls end by their own time-outs."""
        for store in self._stores.values():
            store.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._lookup_threads.shutdown(wait=False, cancel_futures=True)

    def _store(self, fingerprint: bytes) -> Store:
        """In a thread. Two threads may open one twice; the loser is closed."""
        if fingerprint not in self._stores:
            opened = self._open_store(fingerprint)
            if self._stores.setdefault(fingerprint, opened) is not opened:
                opened.close()
        return self._stores[fingerprint]


def _mark_seen(ping: asyncio.Future[object]) -> None:
    """A ping that fails after its time is no error nobody looked at."""
    if not ping.cancelled():
        ping.exception()
