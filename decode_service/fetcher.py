"""Brings the state of a committed hand-off into host memory, every byte verified.

The lease is held from opening the ticket to the last verified byte, inside one call in a thread,
and released there: it cannot outlive the call, whoever is cancelled meanwhile. After that the state
is ours and the blocks in the store are cache.

Bytes are bounded: a fetch takes the size of its state from a budget first and waits in line when
they are not free; whoever receives the state gives them back once the engine has it.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from decode_service.prefetch import Prefetch
from engine.handoff import KvLayout, SequenceImage
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    KvStoreError,
    LayoutDiffers,
    LeaseLost,
    TicketInvalid,
)
from kvstore.store import KvStore
from kvstore.ticket import Ticket
from runtime.clock import Clock
from runtime.metrics import Metrics
from runtime.offload import offload

_OUTCOMES: dict[type[KvStoreError], str] = {
    BlockMissing: "evicted",
    BlockCorrupt: "corrupt",
    TicketInvalid: "corrupt",
    LeaseLost: "lease_lost",
    LayoutDiffers: "layout_differs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A verified state.

    Args:
        image: The state, in the form the engine takes.
        num_bytes: Bytes read from the store.
        prefetched_bytes: Those of them that had been read before there was a ticket.
        fetch_s: From the call to the verified state, in seconds.
    """

    image: SequenceImage
    num_bytes: int
    prefetched_bytes: int
    fetch_s: float


class Fetcher:
    """Fetches for one rank."""

    def __init__(
        self,
        *,
        store: KvStore,
        layout: KvLayout,
        executor: Executor,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._layout = layout
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._held = 0
        self._lock = threading.Lock()

    @property
    def leases(self) -> int:
        """Leases held now."""
        return self._held

    def size_of(self, num_tokens: int) -> int:
        """Bytes of the state of `num_tokens` tokens."""
        layout = self._layout
        return (
            num_tokens // layout.block_tokens * layout.block_bytes
            + layout.partial_bytes(num_tokens)
            + layout.state_bytes(num_tokens)
        )

    async def fetch(
        self,
        ticket: Ticket,
        token_ids: Sequence[int],
        salt: str,
        early: Prefetch | None = None,
    ) -> Fetched:
        """Returns the state that a ticket promises for exactly these tokens.

        Args:
            ticket: Of the committed hand-off.
            token_ids: All tokens the ticket covers.
            salt: Tenant salt of their block chain.
            early: What was read ahead for exactly these tokens and this salt.

        Raises:
            kvstore.errors.KvStoreError: The state is missing, not what it should be, not ours, or
                the store fails; each case is counted by its cause.
        """
        began = self._clock.now()

        def read() -> Fetched:
            tokens, blocks = (token_ids, None) if early is None else (early.chain, early.blocks)
            with self._store.open_ticket(ticket, tokens, salt) as reader, self._holding():
                state = reader.fetch(prefetched=blocks)
            image = SequenceImage(
                num_tokens=state.num_tokens,
                blocks=tuple(state.blocks),
                partial=state.tail_kv,
                state=state.tail_state,
            )
            # The digests prove who wrote the bytes; the sizes, that both sides mean the same.
            self._layout.check(image)
            return Fetched(
                image=image,
                num_bytes=state.num_bytes,
                prefetched_bytes=0 if blocks is None else blocks.taken_bytes,
                fetch_s=self._clock.now() - began,
            )

        try:
            fetched = await offload(self._executor, read)
        except KvStoreError as error:
            self._count(error)
            raise
        self._metrics.count("disagg_handoff_total", outcome="ok")
        self._metrics.observe("disagg_handoff_duration_seconds", fetched.fetch_s)
        self._metrics.observe("disagg_handoff_bytes", fetched.num_bytes)
        return fetched

    def _count(self, error: KvStoreError) -> None:
        outcome = next(
            (name for kind, name in _OUTCOMES.items() if isinstance(error, kind)), error.cause
        )
        self._metrics.count("disagg_handoff_total", outcome=outcome)
        if isinstance(error, BlockMissing):
            self._metrics.count("disagg_kv_early_evictions_total", component=error.kind)
        elif isinstance(error, BlockCorrupt):
            self._metrics.count("disagg_kv_checksum_failures_total", component=error.kind)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
