"""Which leading blocks of a prompt can be read already, told to a reader that starts early.

Writer threads note blocks in any order; one task beside the path reports the run of leading ones as
it grows. Reports are coalesced: one for what is written together, not one for each block.

Invariant: a reported count never falls, and every block before it is in the store.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

logger = logging.getLogger(__name__)

# Blocks that are reported although more are being written; about what one read takes at once.
_REPORT_BLOCKS = 16

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """The first `num_blocks` full blocks of the prompt can be read from the store."""

    num_blocks: int


class StoredBlocks:
    """The leading blocks of one prompt that are stored. Made in the event loop of its reader.

    Args:
        num_stored: Blocks that were stored before anything was computed.
    """

    def __init__(self, num_stored: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._lock = threading.Lock()
        self._leading = num_stored
        self._behind_a_gap: set[int] = set()
        self._being_written = 0
        self.num_reported = 0
        self.is_closed = False

    def expect(self) -> None:
        """A block was queued for writing; any thread."""
        with self._lock:
            self._being_written += 1

    def note(self, block_idx: int) -> None:
        """A block is in the store; any thread."""
        with self._lock:
            self._being_written -= 1
            self._behind_a_gap.add(block_idx)
            while self._leading in self._behind_a_gap:
                self._behind_a_gap.remove(self._leading)
                self._leading += 1
            is_due = self._is_due()
        if is_due:
            try:
                self._loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:
                logger.debug("event loop closed before a block was reported")

    def close(self) -> None:
        """Nothing more is reported; event loop thread. Twice is harmless."""
        self.is_closed = True
        self._changed.set()

    async def grown(self) -> int | None:
        """Waits until there is something to report; the new count, None once closed."""
        while not self.is_closed:
            self._changed.clear()
            with self._lock:
                if self._is_due():
                    self.num_reported = self._leading
                    return self._leading
            await self._changed.wait()
        return None

    def _is_due(self) -> bool:
        grown = self._leading - self.num_reported
        return grown >= _REPORT_BLOCKS or (grown > 0 and self._being_written == 0)


@asynccontextmanager
async def reported(
    stored: StoredBlocks, emit: Callable[[E | BlocksStored], Awaitable[None]]
) -> AsyncIterator[Callable[[E], Awaitable[None]]]:
    """Reports what is stored while the body runs; the body emits through what it is given.

    Events of both come one after another, and nothing is reported once `stored` was closed. A
    report that cannot be sent ends the reports: the body meets the same fault by itself.
    """
    turn = asyncio.Lock()

    async def report() -> None:
        while (num_blocks := await stored.grown()) is not None:
            async with turn:
                if stored.is_closed:
                    return
                try:
                    await emit(BlocksStored(num_blocks=num_blocks))
                except Exception:
                    logger.debug("stored blocks could not be reported", exc_info=True)
                    return

    async def emit_in_turn(event: E) -> None:
        async with turn:
            await emit(event)

    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        reporter = group.create_task(report(), name="report stored blocks")
        try:
            yield emit_in_turn
        except BaseException as error:
            # Kept from the group, which would wrap it.
            failure = error
            reporter.cancel()
        finally:
            stored.close()
    if failure is not None:
        raise failure
