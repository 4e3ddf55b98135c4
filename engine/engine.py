"""LLMEngine: requests in, events out. The one place where scheduler, cache and runner meet.

Synchronous and owned by one thread. Every `step` walks the same line on all ranks of a lockstep
group: say what is wanted, reduce, decide, fill a plan (perhaps with nothing), run, sample, export,
report. What may differ between ranks is only the content of the plan.

Errors between the agreement and the end of a step:
- those of one request (its image, its export, its logits) fail that request; the step's collectives
  still run, with the other rows or with a placeholder;
- any other local error before the forward pass runs the placeholder in its place, so that the peers
  get their collectives, and is then raised as `EngineFailed`: the rank leaves the group by name;
- an error of the forward pass itself leaves collectives half done: `EngineFailed` at once.
With late scheduling a step may still run when `step` returns; see `engine.step_launcher`.
After `EngineFailed` the engine takes no more steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.agreement import require_equal_settings
from engine.config import CacheSize, EngineRole, EngineSettings, ModelLimits
from engine.parallel.lockstep import (
    Decision,
    EngineKind,
    LockstepState,
    VotePort,
    VoteVector,
    announced_rows,
)
from engine.parallel.votes import LocalVote
from engine.plan import AgreedStep, Runner, StepKind, StepPlan, placeholder_plan
from engine.request import (
    ChunkDone,
    DuplicateRequest,
    EngineError,
    EngineEvent,
    EngineRequest,
    FinishReason,
    QueueFull,
    RequestFailed,
    RequestFinished,
    SequenceStatus,
    TokenOut,
)
from engine.sampler import BadLogits, Sampled, SampleRow, sample
from engine.schedule import Row, Schedule
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.state_mover import StateMover
from engine.statistics import EngineStatistics, ExpertMoves
from engine.step_launcher import StepInFlight, StepLauncher

logger = logging.getLogger(__name__)

_KINDS = {
    EngineRole.NORMAL: EngineKind.NORMAL,
    EngineRole.PREFILL: EngineKind.PREFILL,
    EngineRole.DECODE: EngineKind.DECODE,
}
# The control epoch all ranks ask for when they want to leave the step loop together.
STOP_EPOCH = 1


class EngineFailed(EngineError):
    """This rank can no longer step; its group must restart."""

    cause = "engine_failed"


class LLMEngine:
    """One rank's engine.

    Args:
        settings: role and limits.
        limits: what the model dictates.
        cache: pages and slots the runner really has.
        runner: executes plans.
        vote: how the ranks of the group agree; None is a group of one.
        on_step: told of each agreed step before it runs; returns how experts have moved, or None
            when they never do.
        gathers_rows: collectives of a step take the rows of each rank (path A): votes are gathered,
            not reduced, and plans carry what every rank announced.
        on_failure: called when this rank is lost, so that its peers stop waiting for it at once.
        group: name of the lockstep group, for messages.
    """

    def __init__(
        self,
        *,
        settings: EngineSettings,
        limits: ModelLimits,
        cache: CacheSize,
        runner: Runner,
        vote: VotePort | None = None,
        on_step: Callable[[AgreedStep], ExpertMoves | None] | None = None,
        gathers_rows: bool = False,
        on_failure: Callable[[], None] | None = None,
        group: str = "local",
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.context_tokens = settings.context_tokens(limits)
        self._cache = cache
        self._launcher = StepLauncher(runner)
        self._in_flight: StepInFlight | None = None
        self._vote: VotePort = vote or LocalVote()
        self._on_step = on_step
        self._gathers_rows = gathers_rows
        self._on_failure = on_failure
        self._group = group
        self._last_decision: Decision | None = None
        self._last_vector: tuple[int, ...] = ()
        self._moves: ExpertMoves | None = None
        self._lockstep = LockstepState(
            _KINDS[settings.role],
            attempt_interval=settings.prefill_attempt_interval,
            any_interval=settings.prefill_any_attempt_interval,
        )
        self._scheduler = Scheduler(settings, cache, self.context_tokens)
        self._mover = StateMover(runner, self._scheduler.blocks, cache)
        self._sequences: dict[str, Sequence] = {}
        # Events of `add` and `abort`, which report with the next step.
        self._pending: list[EngineEvent] = []
        self._epoch = 0
        self._failure: BaseException | None = None
        self.is_stop_agreed = False
        self._is_group_checked = settings.num_ranks == 1
        self._step = 0
        self._steps = 0
        self._prefill_steps = 0
        self._placeholder_steps = 0
        self._computed_tokens = 0
        self._generated_tokens = 0
        self._failed_requests = 0

    def check(self, request: EngineRequest) -> None:
        """Checks all of a request that does not depend on what else is queued. Any thread.

        Raises:
            InvalidRequest: a field is wrong (`SamplingError` and `PromptTooLong` are its kinds).
            PoolFull: it needs more memory than there is.
        """
        request.validate(self.limits.vocab_size, self.context_tokens)
        self._scheduler.check_fits(request)

    def add(self, request: EngineRequest) -> None:
        """Queues a request.

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
        if self._scheduler.num_waiting >= self.settings.max_waiting:
            raise QueueFull(
                f"{self._scheduler.num_waiting} requests wait, the bound is max_waiting "
                f"{self.settings.max_waiting}: try later or elsewhere"
            )
        sequence = self._scheduler.add(request)
        if (
            sequence.num_generated >= request.sampling.max_tokens
            or sequence.num_tokens >= self.context_tokens
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
        """Returns, once, the events of `add` and `abort` that no step has reported yet."""
        events, self._pending = self._pending, []
        return events

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Keeps a sequence where it is while its reader lags, or lets it go on."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.is_paused = paused

    def try_reserve(self, reservation_id: str, num_tokens: int) -> bool:
        """Keeps a slot and room for a request to come; see `Scheduler.try_reserve`."""
        return self._scheduler.try_reserve(reservation_id, num_tokens)

    def release_reservation(self, reservation_id: str) -> bool:
        """Gives reserved room back; False when there is none of that name."""
        return self._scheduler.release_reservation(reservation_id)

    def has_work(self) -> bool:
        """Says whether a request is live or an event is not yet reported."""
        return bool(self._sequences or self._pending)

    def request_stop(self) -> None:
        """Asks the group to leave the step loop; `is_stop_agreed` turns True on all ranks at once.

        Until then this rank goes on stepping, so that its peers can finish what they have.
        """
        self._epoch = STOP_EPOCH

    def wait_for_work(self, timeout_s: float) -> None:
        """Sleeps until `ring`, at most `timeout_s`; to be called after a step that ran nothing."""
        self._vote.wait_for_work(timeout_s)

    def ring(self) -> None:
        """Wakes the step loops of the group. Any thread."""
        self._vote.ring()

    def step(self) -> tuple[Decision, list[EngineEvent]]:
        """Takes part in one agreed step, or none; returns the decision and what happened.

        Raises:
            EngineFailed: this rank is lost for its group.
        """
        if self._failure is not None:
            raise EngineFailed("the engine failed before") from self._failure
        events = self.take_events()
        try:
            if not self._is_group_checked:
                self._is_group_checked = True
                require_equal_settings(self._vote, self.settings)
            demand = self._scheduler.demand()
            vote = VoteVector(
                unfinished=demand.is_unfinished,
                wants_prefill=demand.wants_prefill,
                decode_rows=demand.num_decode_rows if demand.has_decode_rows else 0,
                prefill_rows=demand.num_prefill_rows if demand.wants_prefill else 0,
                epoch=self._epoch,
            )
            vectors = None
            if self._gathers_rows:
                vectors = self._vote.gather(vote.to_array())
                reduced = vectors.max(axis=0)
            else:
                reduced = self._vote.reduce_max(vote.to_array())
            decision = self._lockstep.decide(reduced)
            self._last_vector, self._last_decision = tuple(reduced.tolist()), decision
            if decision.agreed_epoch == STOP_EPOCH:
                self._settle(events)
                self._launcher.close()
                self.is_stop_agreed = True
            elif decision.step_kind is StepKind.NONE:
                self._settle(events)
            elif vectors is None:
                self._run_step(decision.step_kind, events)
            else:
                kind = decision.step_kind
                max_rows = vote.prefill_rows if kind is StepKind.PREFILL else vote.decode_rows
                self._run_step(kind, events, announced_rows(vectors, kind), max_rows)
        except BaseException as error:
            self._failure = error
            self._launcher.close()
            if self._on_failure is not None:
                self._on_failure()
            raise EngineFailed(
                f"rank {self.settings.rank} of {self.settings.num_ranks} failed at step "
                f"{self._step}: {type(error).__name__}: {error}"
            ) from error
        return decision, events

    def statistics(self) -> EngineStatistics:
        """Returns what the engine holds and has done. Engine thread."""
        scheduler = self._scheduler
        blocks, moves = scheduler.blocks.statistics(), self._moves
        return EngineStatistics(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            max_running=self.settings.max_num_seqs,
            kv_tokens=scheduler.num_kv_tokens,
            kv_capacity_tokens=blocks.num_pages * self._cache.block_tokens,
            free_pages=blocks.num_free_pages,
            free_slots=blocks.num_free_slots,
            queued_tokens=scheduler.num_queued_tokens,
            steps=self._steps,
            prefill_steps=self._prefill_steps,
            placeholder_steps=self._placeholder_steps,
            computed_tokens=self._computed_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.num_preemptions,
            swapped_bytes=self._mover.swapped_bytes,
            failed_requests=self._failed_requests,
            stalled_rounds=self._lockstep.stalled_rounds,
            steps_since_move=moves.steps_since if moves else None,
            expert_moves=moves.moves if moves else None,
            changed_slots=moves.changed_slots if moves else None,
        )

    def describe_progress(self) -> str:
        """Says in one phrase where the group stands: name, step, last decision and vote."""
        decision = self._last_decision
        kind, reason = ("none", "no vote yet")
        if decision is not None:
            kind, reason = decision.step_kind.value, decision.reason
        return (
            f"group {self._group}, rank {self.settings.rank}: step {self._step}, kind {kind} "
            f"({reason}), last vote {list(self._last_vector)}"
        )

    def check_integrity(self) -> None:
        """Recounts pages, slots and queues.

        Raises:
            AssertionError: an invariant is broken.
        """
        self._scheduler.check_integrity()
        live = self._scheduler.num_running + self._scheduler.num_waiting
        if live != len(self._sequences):
            raise AssertionError(f"{live} sequences are queued, {len(self._sequences)} are live")

    def _run_step(
        self,
        kind: StepKind,
        events: list[EngineEvent],
        group_rows: tuple[int, ...] = (),
        max_rows: int | None = None,
    ) -> None:
        """Schedules an agreed step, ends the one in flight, and starts the new one.

        Args:
            kind: agreed.
            events: what happens is added.
            group_rows, max_rows: what all ranks announced, and this one, where it matters.
        """
        schedule = Schedule()
        local_error: Exception | None = None
        try:
            schedule = self._scheduler.schedule(kind, max_rows=max_rows)
        except Exception as error:
            local_error = error
        self._settle(events)
        self._step += 1
        if self._on_step is not None:
            agreed = AgreedStep(kind=kind, step=self._step, vote=self._last_vector)
            self._moves = self._on_step(agreed)
        rows: list[Row] = []
        plan = placeholder = placeholder_plan(kind, self._step, group_rows)
        try:
            rows = self._prepare(schedule, events)
            if rows:
                plan = StepPlan(
                    kind=kind,
                    step=self._step,
                    sequences=self._scheduler.steps_of(rows),
                    is_placeholder=False,
                    group_rows=group_rows,
                )
        except Exception as error:
            local_error = local_error or error
        if local_error is not None:
            self._launcher.run(placeholder, ())
            raise local_error
        is_late = self._may_be_late(plan, rows)
        self._in_flight = (self._launcher.launch if is_late else self._launcher.run)(plan, rows)
        for row, sequence_step in zip(rows, plan.sequences, strict=True):
            self._scheduler.complete(row)
            row.sequence.num_promised = int(sequence_step.sample)
        if not is_late:
            self._settle(events)

    def _may_be_late(self, plan: StepPlan, rows: list[Row]) -> bool:
        """Says whether the engine may go on while the step runs.

        Not when an export follows: windows must be read before the next step moves them on.
        """
        return (
            self.settings.late_scheduling
            and plan.kind is StepKind.DECODE
            and not any(
                self._mover.exports_at(row.sequence, row.sequence.num_computed + row.num_tokens)
                for row in rows
            )
        )

    def _settle(self, events: list[EngineEvent]) -> None:
        """Waits for the step in flight, if there is one, and reports what it computed."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            return
        result = in_flight.wait()
        plan = in_flight.plan
        if plan.is_placeholder:
            self._placeholder_steps += 1
            return
        self._steps += 1
        self._prefill_steps += plan.kind is StepKind.PREFILL
        self._computed_tokens += plan.num_tokens
        sampled_rows = []
        for row, sequence_step in zip(in_flight.rows, plan.sequences, strict=True):
            row.sequence.num_promised = 0
            if sequence_step.sample:
                sampled_rows.append(row.sequence)
        chosen = sample(result.logits, [self._sample_row(sequence) for sequence in sampled_rows])
        outcomes = dict(zip(sampled_rows, chosen, strict=True))
        for row in in_flight.rows:
            # Not live: aborted while the step ran.
            if row.sequence.is_live:
                self._report(row.sequence, outcomes.get(row.sequence), events)

    def _prepare(self, schedule: Schedule, events: list[EngineEvent]) -> list[Row]:
        """Moves state out and in as scheduled; returns the rows that are still good.

        Sequences that ended with the step before take no part any more.
        """
        for preemption in schedule.preempted:
            if not preemption.sequence.is_live:
                continue
            try:
                self._mover.swap_out(preemption)
            except Exception as error:
                events.append(self._fail(preemption.sequence, error))
        for sequence in schedule.admitted:
            if not sequence.is_live:
                continue
            try:
                self._mover.load(sequence)
            except Exception as error:
                events.append(self._fail(sequence, error))
        return [row for row in schedule.rows if row.sequence.is_live]

    def _sample_row(self, sequence: Sequence) -> SampleRow:
        return SampleRow(
            sampling=sequence.request.sampling,
            token_ids=sequence.tokens,
            num_prompt=sequence.num_prompt,
            position=sequence.num_tokens,
            banned_token_ids=sequence.banned_token_ids(self.limits.eos_token_ids),
        )

    def _report(
        self, sequence: Sequence, outcome: Sampled | BadLogits | None, events: list[EngineEvent]
    ) -> None:
        """Exports what a row computed and turns its sample into events."""
        try:
            self._mover.export(sequence)
        except Exception as error:
            events.append(self._fail(sequence, error))
            return
        if outcome is None:
            events.append(
                ChunkDone(request_id=sequence.request_id, computed_tokens=sequence.num_computed)
            )
        elif isinstance(outcome, BadLogits):
            events.append(self._fail(sequence, outcome))
        else:
            events.append(self._take_token(sequence, outcome))

    def _take_token(self, sequence: Sequence, sampled: Sampled) -> TokenOut:
        sequence.tokens.append(sampled.token_id)
        self._generated_tokens += 1
        reason = sequence.finish_reason_after(
            sampled.token_id, self.limits.eos_token_ids, self.context_tokens
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

    def _fail(self, sequence: Sequence, error: Exception) -> RequestFailed:
        logger.warning("request %s failed: %s", sequence.request_id, type(error).__name__)
        self._failed_requests += 1
        self._close(sequence, SequenceStatus.FAILED)
        return RequestFailed(request_id=sequence.request_id, error=error)

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
