"""A decode group in closed form: between two changes of its membership all steps are alike.

All sequences of a group gain one token a step, so a sequence that joins at step s ends at step
s + (tokens left), and the time of m steps is an arithmetic series: contexts grow by one token a
step, and so does what the slowest rank reads. A sequence that arrives in the middle of a step joins
at its end, as in the engine.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from simulator.hardware.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Steps between two changes, for the distribution of gaps between tokens.

    Args:
        step_s: Mean time of a step.
        tokens: Tokens that came out.
    """

    step_s: float
    tokens: int


@dataclass(slots=True)
class _Sequence:
    rank: int
    begin_step: int
    context: int
    base_read: float


class DecodeGroup:
    """Ranks in lockstep.

    Args:
        cost: Times of a step.
        num_ranks: Engines of the group.
    """

    def __init__(self, cost: CostModel, *, num_ranks: int) -> None:
        self._cost = cost
        self._running: dict[int, _Sequence] = {}
        self._ends: list[tuple[int, int]] = []  # (step, key)
        self.requests = np.zeros(num_ranks, dtype=np.int64)
        # KV tokens and bytes read of a rank at step s: offset + requests * s (* slope).
        self._kv_offset = np.zeros(num_ranks, dtype=np.float64)
        self._read_offset = np.zeros(num_ranks, dtype=np.float64)
        self._step = 0  # complete steps at `_at`
        self._at = 0.0  # a step boundary; may lie ahead while a step is in flight
        self._step_s = 0.0  # of the next step after `_at`
        self._growth_s = 0.0  # by which each further step is longer
        self.busy_s = 0.0
        self.spells: list[Spell] = []

    def kv_tokens(self) -> np.ndarray:
        """Tokens held by each rank, `[num_ranks]`."""
        return self._kv_offset + self.requests * self._step

    def kv_of(self, rank: int) -> float:
        """Tokens held by one rank."""
        return float(self._kv_offset[rank]) + int(self.requests[rank]) * self._step

    def join(self, key: int, rank: int, *, context: int, tokens: int, now: float) -> float:
        """Adds a sequence that has `tokens` (at least 1) still to generate.

        Returns:
            When its first token here is out, if nothing else joins at the same boundary.
        """
        self._advance_to_boundary(now)
        read = self._cost.work.read_bytes(context)
        self._running[key] = _Sequence(rank, self._step, context, read)
        heapq.heappush(self._ends, (self._step + tokens, key))
        self.requests[rank] += 1
        self._kv_offset[rank] += context - self._step
        self._read_offset[rank] += read - self._cost.read_slope * self._step
        self._measure()
        return self._at + self._step_s

    def next_end(self) -> float | None:
        """When the next sequence is complete, if nothing joins before."""
        if not self._ends:
            return None
        return self._time_of(self._ends[0][0])

    def pop_ended(self, now: float) -> list[int]:
        """Removes the sequences that are complete at `now`; returns their keys."""
        ended: list[int] = []
        while self._ends and self._time_of(self._ends[0][0]) <= now + 1e-9:
            step, key = heapq.heappop(self._ends)
            if step > self._step:
                self._account(step - self._step)
            sequence = self._running.pop(key)
            self.requests[sequence.rank] -= 1
            self._kv_offset[sequence.rank] -= sequence.context - sequence.begin_step
            self._read_offset[sequence.rank] -= (
                sequence.base_read - self._cost.read_slope * sequence.begin_step
            )
            ended.append(key)
        if ended:
            self._measure()
        return ended

    def _advance_to_boundary(self, now: float) -> None:
        """Counts the steps up to `now` and the one in flight."""
        if not self._running:
            self._at = max(self._at, now)
            return
        passed = now - self._at
        if passed <= 0:
            return
        self._account(self._steps_in(passed))

    def _steps_in(self, passed_s: float) -> int:
        """Steps that have begun after that time."""
        if self._growth_s <= 1e-12:
            return math.ceil(passed_s / self._step_s - 1e-9)
        # m * a + d * m * (m - 1) / 2 = passed, solved for m.
        half, first = self._growth_s / 2, self._step_s - self._growth_s / 2
        found = (-first + math.sqrt(first * first + 4 * half * passed_s)) / (2 * half)
        return math.ceil(found - 1e-9)

    def _account(self, steps: int) -> None:
        took_s = self._span_s(steps)
        self.busy_s += took_s
        self.spells.append(Spell(step_s=took_s / steps, tokens=steps * len(self._running)))
        self._at += took_s
        self._step += steps
        self._step_s += steps * self._growth_s

    def _span_s(self, steps: int) -> float:
        return steps * self._step_s + self._growth_s * steps * (steps - 1) / 2

    def _time_of(self, step: int) -> float:
        return self._at + self._span_s(step - self._step)

    def _measure(self) -> None:
        """Takes the slowest rank at this boundary; it stays the slowest until the next change."""
        rows_all = len(self._running)
        if not rows_all:
            self._step_s = self._growth_s = 0.0
            return
        reads = self._read_offset + self._cost.read_slope * self.requests * self._step
        # A step is as long as its longest term, and each term grows with a rank's rows or with its
        # reads: one of the two leaders is the slowest.
        leaders = {int(np.argmax(self.requests)), int(np.argmax(reads))}
        times = {
            rank: self._cost.decode_step_s(int(self.requests[rank]), float(reads[rank]), rows_all)
            for rank in leaders
        }
        slowest = max(times, key=lambda rank: times[rank])
        rows = int(self.requests[slowest])
        later = self._cost.decode_step_s(
            rows, float(reads[slowest]) + self._cost.read_slope * rows, rows_all
        )
        self._step_s, self._growth_s = times[slowest], later - times[slowest]
