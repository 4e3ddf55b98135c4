"""The requests of one engine, from `add` to their last event.

Checks and queues them, ends them, and turns what the sampler chose into events. Knows nothing of
steps, votes or the runner; owned by the engine thread.

Invariants: a request is known here as long as its sequence is live and no longer; each has one last
event (`TokenOut` with `is_last`, `RequestFinished` or `RequestFailed`), which `add` and `abort`
keep until they are asked for it.
"""

from __future__ import annotations

import logging

from engine.config import EngineSettings, ModelLimits
from engine.request import (
    ChunkDone,
    DuplicateRequest,
    EngineEvent,
    EngineRequest,
    FinishReason,
    QueueFull,
    RequestFailed,
    RequestFinished,
    SequenceStatus,
    TokenOut,
)
from engine.sampler import BadLogits, Sampled, SampleRow
from engine.scheduler import Scheduler
from engine.sequence import Sequence

logger = logging.getLogger(__name__)


class LiveRequests:
    """Requests by id.

    Args:
        settings: role and limits.
        limits: what the model dictates.
        scheduler: queues and memory of their sequences.
    """

    def __init__(self, settings: EngineSettings, limits: ModelLimits, scheduler: Scheduler) -> None:
        self._limits = limits
        self._context_tokens = settings.context_tokens(limits)
        self._max_waiting = settings.max_waiting
        self._scheduler = scheduler
        self._sequences: dict[str, Sequence] = {}
        # Events of `add` and `abort`, which report with the next step.
        self._pending: list[EngineEvent] = []
        self.num_generated_tokens = 0
        self.num_failed = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def has_work(self) -> bool:
        """Says whether a request is live or an event is not yet reported."""
        return bool(self._sequences or self._pending)

    def find(self, request_id: str) -> Sequence | None:
        """Returns the sequence of a live request."""
        return self._sequences.get(request_id)

    def check(self, request: EngineRequest) -> None:
        """Checks all of a request that does not depend on what else is queued. Any thread.

        Raises:
            InvalidRequest: a field is wrong (`SamplingError` and `PromptTooLong` are its kinds).
            PoolFull: it needs more memory than there is.
        """
        request.validate(self._limits.vocab_size, self._context_tokens)
        self._scheduler.check_fits(request)

    def add(self, request: EngineRequest) -> None:
        """Queues a request; one whose generation is complete already ends at once.

        Raises:
            InvalidRequest: as `check`, or `DuplicateRequest`.
            PoolFull: it needs more memory than there is.
            QueueFull: the queue is at its bound.
        """
        if request.request_id in self._sequences:
            raise DuplicateRequest(
                f"request {request.request_id!r} is live: abort it or choose another id"
            )
        self.check(request)
        if self._scheduler.num_waiting >= self._max_waiting:
            raise QueueFull(
                f"{self._scheduler.num_waiting} requests wait, the bound is max_waiting "
                f"{self._max_waiting}: try later or elsewhere"
            )
        sequence = self._scheduler.add(request)
        if (
            sequence.num_generated >= request.sampling.max_tokens
            or sequence.num_tokens >= self._context_tokens
        ):
            self._pending.append(self._end(sequence, SequenceStatus.FINISHED, "length"))
            return
        self._sequences[request.request_id] = sequence

    def abort(self, request_id: str) -> bool:
        """Ends a request and frees what it holds; False when it is not live (any more)."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        self._pending.append(self._end(sequence, SequenceStatus.ABORTED, "abort"))
        return True

    def take_events(self) -> list[EngineEvent]:
        """Returns, once, the events of `add` and `abort`."""
        events, self._pending = self._pending, []
        return events

    def sample_row(self, sequence: Sequence) -> SampleRow:
        """Returns what the sampler must know to choose the next token of a sequence."""
        return SampleRow(
            sampling=sequence.request.sampling,
            token_ids=sequence.tokens,
            num_prompt=sequence.num_prompt,
            position=sequence.num_tokens,
            banned_token_ids=sequence.banned_token_ids(self._limits.eos_token_ids),
        )

    def report(self, sequence: Sequence, outcome: Sampled | BadLogits | None) -> EngineEvent:
        """Turns what a row came to into its event, and ends the request where it is the last.

        Args:
            sequence: live; its row was computed.
            outcome: what was chosen, why nothing could be, or None for a row without a sample.
        """
        if outcome is None:
            return ChunkDone(request_id=sequence.request_id, computed_tokens=sequence.num_computed)
        if isinstance(outcome, BadLogits):
            return self.fail(sequence, outcome)
        return self._take_token(sequence, outcome)

    def fail(self, sequence: Sequence, error: Exception) -> RequestFailed:
        """Ends a request by an error of its own."""
        logger.warning("request %s failed: %s", sequence.request_id, type(error).__name__)
        self.num_failed += 1
        self._close(sequence, SequenceStatus.FAILED)
        return RequestFailed(request_id=sequence.request_id, error=error)

    def _take_token(self, sequence: Sequence, sampled: Sampled) -> TokenOut:
        sequence.tokens.append(sampled.token_id)
        self.num_generated_tokens += 1
        reason = sequence.finish_reason_after(
            sampled.token_id, self._limits.eos_token_ids, self._context_tokens
        )
        is_last = reason is not None or sequence.request.stop_after_first
        event = TokenOut(
            request_id=sequence.request_id,
            token_id=sampled.token_id,
            number=sequence.num_generated,
            logprob=sampled.logprob,
            top_logprobs=sampled.top_logprobs,
            finish_reason=reason,
            is_last=is_last,
        )
        if is_last:
            self._close(sequence, SequenceStatus.FINISHED)
        return event

    def _end(
        self, sequence: Sequence, status: SequenceStatus, reason: FinishReason
    ) -> RequestFinished:
        self._close(sequence, status)
        return RequestFinished(
            request_id=sequence.request_id,
            finish_reason=reason,
            num_generated=sequence.num_generated,
        )

    def _close(self, sequence: Sequence, status: SequenceStatus) -> None:
        self._scheduler.finish(sequence, status)
        self._sequences.pop(sequence.request_id, None)
