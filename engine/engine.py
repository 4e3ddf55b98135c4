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

from collections.abc import Callable

from engine.agreement import STOP_EPOCH, Agreed, StepAgreement
from engine.config import CacheSize, EngineSettings, ModelLimits
from engine.live_requests import LiveRequests
from engine.parallel.lockstep import Decision, VotePort
from engine.parallel.votes import LocalVote
from engine.plan import AgreedStep, Runner, StepKind, StepPlan, placeholder_plan
from engine.request import EngineError, EngineEvent, EngineRequest
from engine.sampler import BadLogits, Sampled, sample
from engine.schedule import Row, Schedule
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.state_mover import StateMover
from engine.statistics import EngineStatistics, ExpertMoves
from engine.step_launcher import StepInFlight, StepLauncher


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
        self._agreement = StepAgreement(settings, vote or LocalVote(), gathers_rows=gathers_rows)
        self._on_step = on_step
        self._on_failure = on_failure
        self._group = group
        self._moves: ExpertMoves | None = None
        self._scheduler = Scheduler(settings, cache, self.context_tokens)
        self._requests = LiveRequests(settings, limits, self._scheduler)
        self._mover = StateMover(runner, self._scheduler.blocks, cache)
        self._epoch = 0
        self._failure: BaseException | None = None
        self.is_stop_agreed = False
        self._step = 0
        self._steps = 0
        self._prefill_steps = 0
        self._placeholder_steps = 0
        self._computed_tokens = 0

    def check(self, request: EngineRequest) -> None:
        """Checks a request by itself; see `LiveRequests.check`. Any thread."""
        self._requests.check(request)

    def add(self, request: EngineRequest) -> None:
        """Queues a request; see `LiveRequests.add` for what is refused."""
        self._requests.add(request)

    def abort(self, request_id: str) -> bool:
        """Ends a request and frees what it holds; False when it is not live (any more)."""
        return self._requests.abort(request_id)

    def take_events(self) -> list[EngineEvent]:
        """Returns, once, the events of `add` and `abort` that no step has reported yet."""
        return self._requests.take_events()

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Keeps a sequence where it is while its reader lags, or lets it go on."""
        sequence = self._requests.find(request_id)
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
        return self._requests.has_work()

    def request_stop(self) -> None:
        """Asks the group to leave the step loop; `is_stop_agreed` turns True on all ranks at once.

        Until then this rank goes on stepping, so that its peers can finish what they have.
        """
        self._epoch = STOP_EPOCH

    def wait_for_work(self, timeout_s: float) -> None:
        """Sleeps until `ring`, at most `timeout_s`; to be called after a step that ran nothing."""
        self._agreement.vote.wait_for_work(timeout_s)

    def ring(self) -> None:
        """Wakes the step loops of the group. Any thread."""
        self._agreement.vote.ring()

    def step(self) -> tuple[Decision, list[EngineEvent]]:
        """Takes part in one agreed step, or none; returns the decision and what happened.

        Raises:
            EngineFailed: this rank is lost for its group.
        """
        if self._failure is not None:
            raise EngineFailed("the engine failed before") from self._failure
        events = self.take_events()
        try:
            agreed = self._agreement.agree(self._scheduler.demand(), self._epoch)
            decision = agreed.decision
            if decision.agreed_epoch == STOP_EPOCH:
                self._settle(events)
                self._launcher.close()
                self.is_stop_agreed = True
            elif decision.step_kind is StepKind.NONE:
                self._settle(events)
            else:
                self._run_step(agreed, events)
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
            generated_tokens=self._requests.num_generated_tokens,
            preemptions=scheduler.num_preemptions,
            swapped_bytes=self._mover.swapped_bytes,
            failed_requests=self._requests.num_failed,
            stalled_rounds=self._agreement.stalled_rounds,
            steps_since_move=moves.steps_since if moves else None,
            expert_moves=moves.moves if moves else None,
            changed_slots=moves.changed_slots if moves else None,
        )

    def describe_progress(self) -> str:
        """Says in one phrase where the group stands: name, step, last decision and vote."""
        return (
            f"group {self._group}, rank {self.settings.rank}: step {self._step}, "
            f"{self._agreement.describe_last()}"
        )

    def check_integrity(self) -> None:
        """Recounts pages, slots and queues.

        Raises:
            AssertionError: an invariant is broken.
        """
        self._scheduler.check_integrity()
        live = self._scheduler.num_running + self._scheduler.num_waiting
        if live != len(self._requests):
            raise AssertionError(f"{live} sequences are queued, {len(self._requests)} are live")

    def _run_step(self, agreed: Agreed, events: list[EngineEvent]) -> None:
        """Schedules an agreed step, ends the one in flight, starts the new one; adds its events."""
        kind, group_rows = agreed.decision.step_kind, agreed.group_rows
        schedule = Schedule()
        local_error: Exception | None = None
        try:
            schedule = self._scheduler.schedule(kind, max_rows=agreed.max_rows)
        except Exception as error:
            local_error = error
        self._settle(events)
        self._step += 1
        if self._on_step is not None:
            self._moves = self._on_step(AgreedStep(kind=kind, step=self._step, vote=agreed.vote))
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
        chosen = sample(
            result.logits, [self._requests.sample_row(sequence) for sequence in sampled_rows]
        )
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
                events.append(self._requests.fail(preemption.sequence, error))
        for sequence in schedule.admitted:
            if not sequence.is_live:
                continue
            try:
                self._mover.load(sequence)
            except Exception as error:
                events.append(self._requests.fail(sequence, error))
        return [row for row in schedule.rows if row.sequence.is_live]

    def _report(
        self, sequence: Sequence, outcome: Sampled | BadLogits | None, events: list[EngineEvent]
    ) -> None:
        """Exports what a row computed and turns its sample into events."""
        try:
            self._mover.export(sequence)
        except Exception as error:
            events.append(self._requests.fail(sequence, error))
            return
        events.append(self._requests.report(sequence, outcome))
