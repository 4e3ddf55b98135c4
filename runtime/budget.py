"""A bounded amount of something that tasks take in order of arrival, e.g. bytes in flight.

A task that asks for more than is free waits behind those that came before it. The line is bounded:
one task too many is refused at once, with what it asked for and what there is. An amount above the
whole budget is granted when nothing else is held, so that large work runs alone instead of never.

Knows no clock: waiting ends by being granted or by cancellation of the waiting task. All methods
belong to the event loop's thread except `Grant.give_back`, which any thread may call.

Invariant: held is the sum of the amounts of all open grants, and held <= limit unless a single
grant above the limit is open.
"""

import asyncio
import contextlib
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from runtime.telemetry import current
from runtime.tracing.table import SpanName


class BudgetFull(Exception):
    """The line of waiting tasks has no place left.

    Attributes:
        wanted: The amount asked for.
        held: The amount held by others.
        num_waiting: Tasks in line.
    """

    def __init__(self, *, name: str, wanted: int, held: int, num_waiting: int) -> None:
        super().__init__(
            f"{name}: {wanted} wanted while {held} are held and {num_waiting} wait; try later"
        )
        self.wanted = wanted
        self.held = held
        self.num_waiting = num_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatistics:
    """State of a budget at one moment."""

    limit: int
    held: int
    num_waiting: int


class Grant:
    """An amount taken from a budget; a context manager that gives back what is left."""

    def __init__(self, budget: "Budget", amount: int) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._left = amount

    @property
    def left(self) -> int:
        """The amount still held."""
        return self._left

    def give_back(self, amount: int | None = None) -> None:
        """Gives back a part (None: the rest), at most what is held; any thread, repeatable."""
        with self._lock:
            returned = self._left if amount is None else min(amount, self._left)
            self._left -= returned
        if returned:
            self._budget.put_back(returned)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()


class Budget:
    """The amount and the line in front of it."""

    def __init__(
        self, name: str, limit: int, *, max_waiting: int, span: SpanName | None = None
    ) -> None:
        """Sets up an unused budget.

        Args:
            name: Appears in refusals.
            limit: Amount that may be held at once, above 0.
            max_waiting: Tasks that may wait in line.
            span: Name of the span of a wait; None: waits have none.
        """
        if limit <= 0:
            raise ValueError(f"{name}: limit is {limit}, wanted above 0")
        self._name = name
        self._limit = limit
        self._max_waiting = max_waiting
        self._span = span
        self._lock = threading.Lock()
        self._held = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> Grant:
        """Waits in line for `amount`, at least 0.

        Raises:
            BudgetFull: The line is full.
        """
        if amount < 0:
            raise ValueError(f"{self._name}: {amount} wanted, must not be negative")
        with self._lock:
            if not self._line and self._fits(amount):
                self._held += amount
                return Grant(self, amount)
            if len(self._line) >= self._max_waiting:
                raise BudgetFull(
                    name=self._name,
                    wanted=amount,
                    held=self._held,
                    num_waiting=len(self._line),
                )
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append((amount, turn))
        try:
            with self._waiting():
                await turn
        except asyncio.CancelledError:
            self._leave_line(amount, turn)
            raise
        return Grant(self, amount)

    def _waiting(self) -> contextlib.AbstractContextManager[object]:
        if self._span is None:
            return contextlib.nullcontext()
        return current().child(self._span, {"disagg.queue": self._name}).aside()

    def put_back(self, amount: int) -> None:
        """Frees `amount` and serves the line; called by grants, from any thread."""
        with self._lock:
            self._held -= amount
            is_waited_for = bool(self._line)
            loop = self._line[0][1].get_loop() if is_waited_for else None
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._serve_line)

    def statistics(self) -> BudgetStatistics:
        """What is held and who waits."""
        with self._lock:
            return BudgetStatistics(limit=self._limit, held=self._held, num_waiting=len(self._line))

    def _fits(self, amount: int) -> bool:
        return self._held + amount <= self._limit or self._held == 0

    def _serve_line(self) -> None:
        with self._lock:
            while self._line and self._fits(self._line[0][0]):
                amount, turn = self._line.popleft()
                if turn.done():  # cancelled; its task has not run yet
                    continue
                self._held += amount
                turn.set_result(None)

    def _leave_line(self, amount: int, turn: "asyncio.Future[None]") -> None:
        with self._lock:
            was_granted = turn.done() and not turn.cancelled()
            if not was_granted:
                self._line = deque(entry for entry in self._line if entry[1] is not turn)
        if was_granted:
            self.put_back(amount)
        else:
            # The place in front may have been what held the others up.
            self._serve_line()
