"""A prefill group: ranks with a queue each, steps that all ranks take together.

A step gives each rank up to `chunk_tokens` rows from the front of its queue, several prompts when
they fit, and lasts as long as its slowest rank needs. Prompts whose prefix has not arrived yet are
passed over. What is in a step stays in it; what arrives meanwhile waits for the next.

    queue -> in a step -> queue (more chunks) | done
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from simulator.hardware.cost import Chunk, CostModel


@dataclass(slots=True, kw_only=True)
class PrefillJob:
    """A prompt in prefill.

    Args:
        key: Whose.
        prompt_tokens: The whole prompt.
        done_tokens: What is cached or computed; starts with the cached prefix.
        ready_at: When the cached prefix has arrived.
        compute_s: Its share, by rows, of the steps it was in.
    """

    key: int
    prompt_tokens: int
    done_tokens: int
    ready_at: float
    started_at: float | None = None
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step did for one prompt: `q` rows on `rank`, and whether that was the end of it."""

    rank: int
    job: PrefillJob
    q: int
    is_done: bool


@dataclass(slots=True)
class _Rank:
    queue: deque[PrefillJob] = field(default_factory=deque)
    step: list[tuple[PrefillJob, int]] = field(default_factory=list)
    busy_s: float = 0.0


class PrefillGroup:
    """Ranks in lockstep; one rank without peers is a group of its own.

    Args:
        cost: Times of a step.
        num_ranks: Engines of the group.
        chunk_tokens: Rows of a rank in one step.
    """

    def __init__(self, cost: CostModel, *, num_ranks: int, chunk_tokens: int) -> None:
        if num_ranks < 1 or chunk_tokens < 1:
            raise ValueError(
                f"num_ranks {num_ranks} and chunk_tokens {chunk_tokens} must be at least 1"
            )
        self._cost = cost
        self._chunk_tokens = chunk_tokens
        self._ranks = [_Rank() for _ in range(num_ranks)]
        self.ends_at: float | None = None  # of the step in flight
        self._began_at = 0.0
        self.num_steps = 0
        self.busy_s = 0.0

    @property
    def num_ranks(self) -> int:
        """Engines of the group."""
        return len(self._ranks)

    def add(self, rank: int, job: PrefillJob) -> None:
        """Queues a prompt; the caller asks `begin` for a step when none is in flight."""
        self._ranks[rank].queue.append(job)

    def begin(self, now: float) -> float | None:
        """Starts a step if none is in flight and a rank has work.

        Returns:
            When to come back: the end of the step, or the arrival of the first prefix that the
            group waits for; None without work.
        """
        if self.ends_at is not None:
            return self.ends_at
        chunks = []
        for rank in self._ranks:
            rank.step = self._fill(rank, now)
            if rank.step:
                chunks.append(
                    [
                        Chunk(q=q, k=job.done_tokens + q, prompt=job.prompt_tokens)
                        for job, q in rank.step
                    ]
                )
        if not chunks:
            return min((job.ready_at for rank in self._ranks for job in rank.queue), default=None)
        self._began_at = now
        self.ends_at = now + self._cost.prefill_step_s(chunks)
        self.num_steps += 1
        return self.ends_at

    def end(self, now: float) -> list[Progress]:
        """Ends the step in flight; returns what it did, rank by rank."""
        assert self.ends_at is not None, "no step is in flight"
        took_s = now - self._began_at
        self.ends_at = None
        self.busy_s += took_s
        found = []
        for number, rank in enumerate(self._ranks):
            rows = sum(q for _, q in rank.step)
            for job, q in rank.step:
                job.compute_s += took_s * q / rows
                job.done_tokens += q
                is_done = job.done_tokens >= job.prompt_tokens
                if is_done:
                    rank.queue.remove(job)
                found.append(Progress(rank=number, job=job, q=q, is_done=is_done))
            if rank.step:
                rank.busy_s += took_s
            rank.step = []
        return found

    def load(self, rank: int) -> tuple[int, int, int]:
        """Prompts in the step, prompts that wait, and tokens not yet computed of a rank."""
        queue = self._ranks[rank].queue
        running = len(self._ranks[rank].step)
        left = sum(job.prompt_tokens - job.done_tokens for job in queue)
        return running, len(queue) - running, left

    def busy_share(self, until: float) -> float:
        """Share of the ranks' time in which they had rows of their own."""
        return sum(rank.busy_s for rank in self._ranks) / (len(self._ranks) * until)

    def _fill(self, rank: _Rank, now: float) -> list[tuple[PrefillJob, int]]:
        room, taken = self._chunk_tokens, []
        for job in rank.queue:
            if job.ready_at > now:
                continue
            q = min(room, job.prompt_tokens - job.done_tokens)
            if job.started_at is None:
                job.started_at = now
            taken.append((job, q))
            room -= q
            if not room:
                break
        return taken
