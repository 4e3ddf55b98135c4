"""Which tokens of which sequences the next step computes. Pure: no clock, no tensor, no collective.

The step kind is decided elsewhere (by all ranks together, `engine.parallel.lockstep`); this module
says what this rank wants (`demand`) and fills a step of the agreed kind (`schedule`). Who comes in
is decided by the rules of `engine.admission`, and how much of a sequence by those of
`engine.chunks`.

Rules:
- a sequence gets a slot and the pages of all its known tokens at admission, or nothing; decode adds
  a page when a block is full;
- when a page is missing, the victim is the running sequence that arrived last: it has had the least
  service, and the order of arrival stays the order of completion, so the oldest always advances
  (it fits alone, else it would have been refused). Its state goes to host memory and comes back
  bit by bit; nothing is recomputed;
- a paused sequence keeps its memory while nobody else wants it; it is the first victim, and gives
  way to an admission too.

`schedule` only decides. The engine then carries out, in this order: copy out the preempted, copy
in the admitted, run. Pages of the preempted may already belong to others, which is safe because
nothing is written before they were copied out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from engine.admission import (
    Reservations,
    Room,
    admissible,
    max_kv_tokens,
    pages_alone,
    pages_to_admit,
)
from engine.block_manager import BlockManager
from engine.chunks import StepBudget, has_row_in, rows_wanted, state_boundaries
from engine.config import CacheSize, EngineSettings
from engine.plan import SequenceStep, StepKind
from engine.queues import Queues
from engine.request import EngineRequest, SequenceStatus
from engine.schedule import Demand, Preemption, Row, Schedule, step_of
from engine.sequence import Sequence


class Scheduler:
    """Queue, running sequences and their memory.

    Args:
        settings: role, limits and budget.
        cache: pages and slots of this rank.
        context_tokens: tokens of a sequence at most.
    """

    def __init__(self, settings: EngineSettings, cache: CacheSize, context_tokens: int) -> None:
        self._settings = settings
        self._cache = cache
        self._context_tokens = context_tokens
        self.blocks = BlockManager(cache.num_pages, cache.num_state_slots)
        self._queues = Queues()
        self._reservations = Reservations()
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without device memory, the preempted included."""
        return len(self._queues.waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot and pages."""
        return len(self._queues.running)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens that wait to be computed, over all live sequences."""
        return sum(sequence.num_missing for sequence in self._queues.live())

    @property
    def num_kv_tokens(self) -> int:
        """Tokens in KV on the device."""
        return sum(sequence.num_computed for sequence in self._queues.running)

    def add(self, request: EngineRequest) -> Sequence:
        """Queues a checked request behind those that came, or reserved, before it.

        Raises:
            PoolFull: it would not fit even alone.
        """
        num_kv_tokens = max_kv_tokens(request, self._context_tokens)
        max_pages = pages_alone(num_kv_tokens, self._cache)
        num_stored_tokens = request.image.num_tokens if request.image else 0
        boundaries = state_boundaries(request, self._cache.block_tokens)
        reserved_idx = self._reservations.take(request.reservation_id)
        sequence = Sequence(
            request,
            arrival_idx=self._queues.take_arrival_idx() if reserved_idx is None else reserved_idx,
            max_kv_tokens=num_kv_tokens,
            max_pages=max_pages,
            num_stored_blocks=num_stored_tokens // self._cache.block_tokens,
            boundaries=boundaries,
        )
        self._queues.add(sequence)
        return sequence

    def check_fits(self, request: EngineRequest) -> None:
        """Says whether the request could run on an empty engine.

        Raises:
            PoolFull: it could not.
        """
        pages_alone(max_kv_tokens(request, self._context_tokens), self._cache)

    def try_reserve(self, reservation_id: str, num_tokens: int) -> bool:
        """Keeps room for a request that will come; False when there is none beside what is queued.

        A second call with the same id changes nothing. The room is used by the request that names
        the reservation, or given back by `release_reservation`.
        """
        if reservation_id in self._reservations:
            return True
        num_pages = self._cache.pages_for(num_tokens)
        room = self._room()
        for sequence in self._queues.waiting:
            room.take(self._cache.pages_for(sequence.num_tokens))
        if not room.has(num_pages):
            return False
        self._reservations.add(reservation_id, num_pages, self._queues.take_arrival_idx())
        return True

    def release_reservation(self, reservation_id: str) -> bool:
        """Gives reserved room back; False when there is no such reservation (any more)."""
        return self._reservations.take(reservation_id) is not None

    def finish(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Makes a sequence final and takes everything back it holds."""
        if self.blocks.has_owner(sequence.request_id):
            self.blocks.free(sequence.request_id)
        self._queues.remove(sequence)
        sequence.image = None
        sequence.move_to(status)

    def demand(self) -> Demand:
        """Returns what this rank wants of the next step."""
        num_prefill = self._num_rows(StepKind.PREFILL)
        num_decode = self._num_rows(StepKind.DECODE)
        return Demand(
            is_unfinished=any(
                not (sequence.is_paused or sequence.is_ending) for sequence in self._queues.live()
            ),
            wants_prefill=num_prefill > 0,
            has_decode_rows=num_decode > 0,
            num_decode_rows=num_decode,
            num_prefill_rows=num_prefill,
        )

    def schedule(self, kind: StepKind, *, max_rows: int | None = None) -> Schedule:
        """Fills a step of the agreed kind; may come out empty.

        Args:
            kind: agreed by all ranks.
            max_rows: what this rank announced in the vote, where peers made room for no more; an
                admission that only a preemption makes possible then waits for the next step.
        """
        schedule = Schedule()
        candidates, budget = self._candidates(kind)
        for sequence, num_missing in candidates:
            if not self.blocks.has_owner(sequence.request_id):
                continue  # preempted for an older one a moment ago
            is_newest = num_missing == 1
            num_tokens = budget.take_newest() if is_newest else budget.chunk_of(sequence)
            if num_tokens == 0 or not self._make_room(sequence, num_tokens, schedule):
                continue
            if not is_newest:
                budget.take_chunk(num_tokens)
            schedule.rows.append(Row(sequence, num_tokens))
        if max_rows is not None:
            budget.limit_to(max_rows - schedule.num_tokens)
        self._admit(kind, budget, schedule)
        return schedule

    def steps_of(self, rows: list[Row]) -> tuple[SequenceStep, ...]:
        """Writes rows as the steps of a plan."""
        return tuple(step_of(row, self.blocks, self._cache) for row in rows)

    def complete(self, row: Row) -> None:
        """Notes that the tokens of a row have KV, now or when the step in flight has ended."""
        sequence = row.sequence
        sequence.num_computed += row.num_tokens
        if sequence.status is SequenceStatus.PREFILLING and not sequence.is_prefilling:
            sequence.move_to(SequenceStatus.DECODING)

    def check_integrity(self) -> None:
        """Checks order, ownership and coverage of pages.

        Raises:
            AssertionError: an invariant is broken.
        """
        self.blocks.check_integrity()
        self._queues.check_integrity()
        _require(
            self.blocks.statistics().num_owners == len(self._queues.running),
            "an owner does not run",
        )
        for sequence in self._queues.running:
            _require(sequence.is_live, f"{sequence.request_id} is final but runs")
            pages = self.blocks.num_pages_of(sequence.request_id)
            covered = pages * self._cache.block_tokens
            _require(sequence.num_computed <= covered, "KV beyond the pages of a sequence")
            _require(pages <= sequence.max_pages, "more pages than a sequence can use")

    def _candidates(self, kind: StepKind) -> tuple[list[tuple[Sequence, int]], StepBudget]:
        """Running sequences with rows in a step, what they miss, and the budget of the step."""
        candidates = rows_wanted(self._queues.running, kind, self._settings.role)
        budget = StepBudget(
            self._settings.max_num_batched_tokens,
            # Rows of decode steps are computed on all ranks, those of prefill steps are shared.
            cp=self._settings.cp if kind is StepKind.PREFILL else 1,
            num_newest=sum(1 for _, num_missing in candidates if num_missing == 1),
        )
        return candidates, budget

    def _num_rows(self, kind: StepKind) -> int:
        """Rows `schedule` gives if nothing has to be preempted; with that it gives no more."""
        candidates, budget = self._candidates(kind)
        num_rows = budget.num_newest
        for sequence, num_missing in candidates:
            if num_missing > 1:
                num_tokens = budget.chunk_of(sequence)
                num_rows += num_tokens
                budget.take_chunk(num_tokens)
        if budget.can_take_chunk():
            for head in self._admissible(kind):
                num_tokens = budget.chunk_of(head)
                num_rows += num_tokens
                budget.take_chunk(num_tokens)
                if not budget.can_take_chunk():
                    break
        return num_rows

    def _admissible(self, kind: StepKind) -> Iterator[Sequence]:
        """Who has a slot and room in a step of a kind, with what paused sequences would give up."""
        if not self._queues.waiting:
            return iter(())
        room = self._room(without_paused=True)
        return admissible(
            self._queues.waiting, room, self._cache, partial(has_row_in, kind, self._settings.role)
        )

    def _room(self, *, without_paused: bool = False) -> Room:
        return Room.measure(
            self._queues.running,
            self._reservations,
            self.blocks,
            self._settings.max_num_seqs,
            without_paused=without_paused,
        )

    def _make_room(self, sequence: Sequence, num_tokens: int, schedule: Schedule) -> bool:
        """Grows a sequence for its row; False when it was itself the last to arrive."""
        num_pages = self._cache.pages_for(sequence.num_computed + num_tokens)
        while not self.blocks.try_grow(sequence.request_id, num_pages):
            victim = self._queues.victim()
            self._preempt(victim, schedule)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, schedule: Schedule) -> None:
        owner = victim.request_id
        if victim.num_computed:
            schedule.preempted.append(
                Preemption(
                    victim,
                    self.blocks.block_table(owner),
                    self.blocks.state_slot(owner),
                    victim.num_computed,
                )
            )
            victim.move_to(SequenceStatus.SWAPPED)
        else:
            victim.move_to(SequenceStatus.WAITING)
        self.num_preemptions += 1
        self._queues.preempt(victim)
        self.blocks.free(owner)

    def _admit(self, kind: StepKind, budget: StepBudget, schedule: Schedule) -> None:
        while budget.can_take_chunk():
            head = next(self._admissible(kind), None)
            if head is None or not self._make_way(head, schedule):
                return
            self._queues.admit(head)
            head.move_to(
                SequenceStatus.PREFILLING if head.is_prefilling else SequenceStatus.DECODING
            )
            schedule.admitted.append(head)
            num_tokens = budget.chunk_of(head)
            budget.take_chunk(num_tokens)
            schedule.rows.append(Row(head, num_tokens))

    def _make_way(self, head: Sequence, schedule: Schedule) -> bool:
        """Allocates for an admission, at the cost of paused sequences where it must."""
        while not self._room().has(pages_to_admit(head, self._cache)):
            victim = self._queues.last_paused()
            if victim is None:
                # Pages of paused sequences may still be under a transfer.
                return False
            self._preempt(victim, schedule)
        return self.blocks.try_allocate(head.request_id, self._cache.pages_for(head.num_tokens))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
