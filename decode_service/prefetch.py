"""Reads blocks of a hand-off while its prompt still computes, so that the ticket costs a tail.

A prefetch is one call that is open beside the prefill of one attempt. It owns what it reads until
the sequence takes it over, or until the call ends, whichever comes first; nothing outlives both.
Bytes have a budget of their own and never wait for it: what does not fit is read after the ticket,
as is everything that could not be read ahead. So a prefetch can save time and never cost a request.
A damaged block ends it with an error: it was taken away, so whoever waits for the ticket waits in
vain.

    run ──counts──► read ahead ──┬── taken ──► the sequence has the blocks, and frees the bytes
                                 └── call ends ──► bytes freed

Belongs to one event loop. Invariant: no byte is used that was not verified, once against its name
when it was read and once against the ticket when it is taken (`kvstore.handoffs.prefetched`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from disagg import wire
from engine.handoff import KvLayout
from kvstore.errors import BlockCorrupt, KvStoreError
from kvstore.handoffs.prefetched import Prefetched
from kvstore.store import KvStore
from kvstore.ticket import TokenChain
from runtime.attempts import AttemptFence
from runtime.budget import Budget, BudgetFull, Grant
from runtime.errors import FieldViolation, InvalidRequest, Reason
from runtime.metrics import Metrics
from runtime.offload import offload

# One read of a thread that other sequences may wait for: about a millisecond.
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchRequest:
    """A hand-off to read ahead.

    Args:
        request_id: Of the caller.
        attempt: From 1.
        token_ids: All tokens the ticket will cover.
        cache_salt: Tenant salt of the block chain.
        credit_id: Open credit of the request.
    """

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    cache_salt: str
    credit_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a sequence took over."""

    num_blocks: int
    num_bytes: int


class Prefetch:
    """What was read ahead for one attempt."""

    def __init__(self, request: PrefetchRequest, chain: TokenChain) -> None:
        self.request = request
        self.chain = chain
        self.blocks = Prefetched()
        self.is_taken = False
        self.handed = Handed(num_blocks=0, num_bytes=0)
        self.cause = ""
        self.num_asked = 0
        self.num_unused = 0
        self._grants: list[Grant] = []
        self._is_quiet = asyncio.Event()  # no thread reads for it
        self._is_quiet.set()
        self._is_over = asyncio.Event()

    async def read(
        self, store: KvStore, executor: Executor, names: Sequence[bytes], grant: Grant
    ) -> None:
        """Reads blocks in a thread and keeps them with the bytes that were granted for them."""
        self._grants.append(grant)
        self._is_quiet.clear()
        try:
            await offload(executor, lambda: store.prefetch(names, self.blocks))
        finally:
            self._is_quiet.set()

    async def quiet(self) -> None:
        """Waits for the read that is on."""
        await self._is_quiet.wait()

    async def over(self) -> None:
        """Waits until a sequence has what was read."""
        await self._is_over.wait()

    def end(self) -> None:
        """Frees the bytes; twice is harmless."""
        self.num_unused += self.blocks.clear()
        for grant in self._grants:
            grant.give_back()
        self._is_over.set()


class Prefetches:
    """The prefetches of one rank.

    Args:
        executor: Threads that read; each read is short.
        budget: Bytes that may be read ahead; nobody waits for them, so its line has no place.
    """

    def __init__(
        self,
        *,
        store: KvStore,
        layout: KvLayout,
        executor: Executor,
        budget: Budget,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._block_tokens = layout.block_tokens
        self._block_bytes = layout.block_bytes
        self._batch = max(1, _READ_BYTES // layout.block_bytes)
        self._executor = executor
        self._budget = budget
        self._metrics = metrics
        self._fence = AttemptFence()
        self._open: dict[str, Prefetch] = {}

    def __len__(self) -> int:
        return len(self._fence)

    @property
    def held_bytes(self) -> int:
        """Bytes that were read ahead and not taken yet."""
        return self._budget.statistics().held

    async def run(self, request: PrefetchRequest, counts: AsyncGenerator[int]) -> Handed:
        """Reads ahead as the leading blocks that are stored grow; ends when a sequence took them.

        Args:
            request: Whose hand-off; its credit was checked.
            counts: How many leading blocks can be read, growing; ends when there is nothing more.

        Raises:
            InvalidRequest, kvstore.errors.TicketInvalid: The request makes no sense.
            Conflict, AlreadyRunning: See `runtime.attempts`.
            kvstore.errors.BlockCorrupt: A block was damaged; it is gone now.
        """
        check(request)
        with self._fence.enter(request.request_id, request.attempt):
            chain = await offload(
                self._executor,
                lambda: TokenChain.of(request.token_ids, self._block_tokens, request.cache_salt),
            )
            prefetch = Prefetch(request, chain)
            self._open[request.request_id] = prefetch
            try:
                async with aclosing(counts):
                    async for num_blocks in counts:
                        _check_count(num_blocks, len(chain.hashes))
                        await self._read_up_to(prefetch, num_blocks)
                await prefetch.over()
                return prefetch.handed
            finally:
                if self._open.get(request.request_id) is prefetch:
                    del self._open[request.request_id]
                if not prefetch.is_taken:
                    prefetch.end()
                self._count(prefetch)

    def overtaken(self) -> None:
        """A call came when its sequence had its slot already: nothing was read for it."""
        self._metrics.count("disagg_prefetch_total", outcome="overtaken")

    @asynccontextmanager
    async def taken(
        self, request_id: str, attempt: int, token_ids: tuple[int, ...], cache_salt: str
    ) -> AsyncIterator[Prefetch | None]:
        """What was read ahead for exactly these tokens, for the body to use; None if nothing was.

        Reading ahead stops; the bytes are freed behind the body, which has taken what it wants.
        """
        prefetch = self._open.get(request_id)
        if prefetch is None or prefetch.request.attempt != attempt or prefetch.is_taken:
            yield None
            return
        asked = prefetch.request
        if (asked.token_ids, asked.cache_salt) != (token_ids, cache_salt):
            prefetch.cause = "other_tokens"
            yield None
            return
        prefetch.is_taken = True
        try:
            await prefetch.quiet()
            yield prefetch
            blocks = prefetch.blocks
            prefetch.handed = Handed(num_blocks=blocks.num_taken, num_bytes=blocks.taken_bytes)
        finally:
            prefetch.end()

    async def _read_up_to(self, prefetch: Prefetch, num_blocks: int) -> None:
        while prefetch.num_asked < num_blocks and not (prefetch.is_taken or prefetch.cause):
            end = min(num_blocks, prefetch.num_asked + self._batch)
            names = prefetch.chain.hashes[prefetch.num_asked : end]
            try:
                grant = await self._budget.take(len(names) * self._block_bytes)
            except BudgetFull:
                prefetch.cause = "no_room"
                return
            try:
                await prefetch.read(self._store, self._executor, names, grant)
            except BlockCorrupt as error:
                # It was taken away, so this hand-off cannot be completed: better said at once.
                prefetch.cause = error.cause
                self._metrics.count("disagg_kv_checksum_failures_total", component=error.kind)
                raise
            except KvStoreError as error:
                # After the ticket they are read again, and that decides.
                prefetch.cause = error.cause
                return
            prefetch.num_asked = end

    def _count(self, prefetch: Prefetch) -> None:
        outcome = prefetch.cause or ("used" if prefetch.is_taken else "abandoned")
        self._metrics.count("disagg_prefetch_total", outcome=outcome)
        blocks = prefetch.blocks
        self._metrics.count("disagg_prefetch_blocks_total", blocks.num_taken, result="used")
        self._metrics.count("disagg_prefetch_blocks_total", blocks.num_refused, result="refused")
        self._metrics.count("disagg_prefetch_blocks_total", prefetch.num_unused, result="unused")


def check(request: PrefetchRequest) -> None:
    """Refuses what names no hand-off.

    Raises:
        InvalidRequest: With the field, its value and what would be accepted.
    """
    problem = wire.request_id_problem(request.request_id)
    if problem is not None:
        raise _bad("begin.request_id", problem)
    if request.attempt < 1:
        raise _bad("begin.attempt", f"attempt is {request.attempt}: attempts count from 1")
    if not request.token_ids:
        raise _bad("begin.token_ids", "token_ids is empty: send those the ticket will cover")


def _check_count(num_blocks: int, most: int) -> None:
    if num_blocks > most:
        raise _bad(
            "stored.num_blocks",
            f"stored.num_blocks is {num_blocks}, the tokens have {most} full blocks",
        )


def _bad(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(
        description,
        reason=Reason.BAD_REQUEST,
        violations=(FieldViolation(field=field, description=description),),
    )
