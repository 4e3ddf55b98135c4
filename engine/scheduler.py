"""Which tokens of which sequences the next step computes. Pure: no clock, no tensor, no collective.

The step kind is decided elsewhere (by all ranks together, `engine.parallel.lockstep`); this module
says what this rank wants (`demand`) and fills a step of the agreed kind (`schedule`).

Rules:
- first come, first served: the queue is ordered by arrival and only its head is admitted, so nobody
  is overtaken for ever;
- a sequence gets a slot and the pages of all its known tokens at admission, or nothing; decode adds
  a page when a block is full;
- admission leaves a page for every running sequence that can still grow, and what was reserved;
- when a page is missing, the victim is the running sequence that arrived last: it has had the least
  service, and the order of arrival stays the order of completion, so the oldest always advances
  (it fits alone, else it would have been refused). Its state goes to host memory and comes back
  bit by bit; nothing is recomputed;
- a paused sequence keeps its memory while nobody else wants it; it is the first victim, gives way
  to an admission too, and is passed over in the queue until it is resumed;
- a prefill chunk ends at a boundary where the export wants the state, since rings move on;
- with context parallelism a prefill chunk takes its padded length of the budget, so that no rank
  of the engine has more rows than its part of the budget.

`schedule` only decides. The engine then carries out, in this order: copy out the preempted, copy
in the admitted, run. Pages of the preempted may already belong to others, which is safe because
nothing is written before they were copied out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.block_manager import BlockManager
from engine.config import CacheSize, EngineRole, EngineSettings
from engine.parallel.rows.budget import charge, chunk_multiple
from engine.plan import SequenceStep, StepKind
from engine.request import EngineRequest, PoolFull, SequenceStatus
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What this rank brings to the step vote; reading it changes nothing.

    Args:
        is_unfinished: some sequence is not paused and has more to compute than the step in flight.
        wants_prefill: a prefill row could run now: slot, pages and budget are there.
        has_decode_rows: a decode row could run now.
        num_decode_rows: rows of a decode step; fewer only if a page is missing, a state cannot be
            moved in, or a sequence ends with the step in flight. Never more, see `schedule`.
        num_prefill_rows: likewise, of a prefill step.
    """

    is_unfinished: bool
    wants_prefill: bool
    has_decode_rows: bool
    num_decode_rows: int
    num_prefill_rows: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence that lost its memory in this step, and where its state still lies."""

    sequence: Sequence
    block_table: tuple[int, ...]
    state_slot: int
    num_computed: int


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence and how many of its missing tokens this step computes."""

    sequence: Sequence
    num_tokens: int


@dataclass(slots=True)
class Schedule:
    """Decisions for one step, to be carried out in the order of the fields.

    Args:
        preempted: whose state must be copied out.
        admitted: whose state must be copied in.
        rows: what to compute.
    """

    preempted: list[Preemption] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Reservation:
    num_pages: int
    arrival_idx: int


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
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._reservations: dict[str, _Reservation] = {}
        self._next_arrival_idx = 0
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without device memory, the preempted included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot and pages."""
        return len(self._running)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens that wait to be computed, over all live sequences."""
        return sum(sequence.num_missing for sequence in self._live())

    @property
    def num_kv_tokens(self) -> int:
        """Tokens in KV on the device."""
        return sum(sequence.num_computed for sequence in self._running)

    def add(self, request: EngineRequest) -> Sequence:
        """Queues a checked request behind those that came, or reserved, before it.

        Raises:
            PoolFull: it would not fit even alone.
        """
        max_kv_tokens = self._max_kv_tokens(request)
        max_pages = self._check_fits(max_kv_tokens)
        num_stored_tokens = request.image.num_tokens if request.image else 0
        boundaries = self._boundaries(request)
        reservation = self._reservations.pop(request.reservation_id or "", None)
        arrival_idx = reservation.arrival_idx if reservation else self._take_arrival_idx()
        sequence = Sequence(
            request,
            arrival_idx=arrival_idx,
            max_kv_tokens=max_kv_tokens,
            max_pages=max_pages,
            num_stored_blocks=num_stored_tokens // self._cache.block_tokens,
            boundaries=boundaries,
        )
        insort(self._waiting, sequence, key=_arrival)
        return sequence

    def check_fits(self, request: EngineRequest) -> None:
        """Says whether the request could run on an empty engine.

        Raises:
            PoolFull: it could not.
        """
        self._check_fits(self._max_kv_tokens(request))

    def try_reserve(self, reservation_id: str, num_tokens: int) -> bool:
        """Keeps room for a request that will come; False when there is none beside what is queued.

        A second call with the same id changes nothing. The room is used by the request that names
        the reservation, or given back by `release_reservation`.
        """
        if reservation_id in self._reservations:
            return True
        num_pages = self._cache.pages_for(num_tokens)
        queued = sum(self._cache.pages_for(sequence.num_tokens) for sequence in self._waiting)
        has_slot = (
            len(self._running) + len(self._waiting) + len(self._reservations)
            < self._settings.max_num_seqs
        )
        free = self.blocks.num_free_pages - self._pages_kept() - queued
        if not has_slot or num_pages > free:
            return False
        self._reservations[reservation_id] = _Reservation(num_pages, self._take_arrival_idx())
        return True

    def release_reservation(self, reservation_id: str) -> bool:
        """Gives reserved room back; False when there is no such reservation (any more)."""
        return self._reservations.pop(reservation_id, None) is not None

    def finish(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Makes a sequence final and takes everything back it holds."""
        if self.blocks.has_owner(sequence.request_id):
            self._running.remove(sequence)
            self.blocks.free(sequence.request_id)
        else:
            self._waiting.remove(sequence)
        sequence.image = None
        sequence.move_to(status)

    def demand(self) -> Demand:
        """Returns what this rank wants of the next step."""
        num_prefill = self._num_rows(StepKind.PREFILL)
        num_decode = self._num_rows(StepKind.DECODE)
        return Demand(
            is_unfinished=any(
                not (sequence.is_paused or sequence.is_ending) for sequence in self._live()
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
        cp = self._cp_of(kind)
        candidates, num_single, spare = self._candidates(kind)
        for sequence, num_missing in candidates:
            if not self.blocks.has_owner(sequence.request_id):
                continue  # preempted for an older one a moment ago
            if num_missing == 1:
                num_tokens = min(num_single, 1)
                num_single -= num_tokens
            else:
                num_tokens = self._chunk_tokens(sequence, spare, cp)
            if num_tokens == 0 or not self._make_room(sequence, num_tokens, schedule):
                continue
            if num_missing > 1:
                spare -= charge(num_tokens, cp)
            schedule.rows.append(Row(sequence, num_tokens))
        if max_rows is not None:
            spare = min(spare, max_rows - sum(row.num_tokens for row in schedule.rows))
        self._admit(kind, spare, schedule)
        return schedule

    def steps_of(self, rows: list[Row]) -> tuple[SequenceStep, ...]:
        """Writes rows as the steps of a plan."""
        return tuple(self._step_of(row) for row in rows)

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
        for queue in (self._waiting, self._running):
            arrivals = [sequence.arrival_idx for sequence in queue]
            _require(arrivals == sorted(set(arrivals)), "a queue is not in order of arrival")
        _require(self.blocks.statistics().num_owners == len(self._running), "an owner does not run")
        for sequence in self._running:
            _require(sequence.is_live, f"{sequence.request_id} is final but runs")
            pages = self.blocks.num_pages_of(sequence.request_id)
            covered = pages * self._cache.block_tokens
            _require(sequence.num_computed <= covered, "KV beyond the pages of a sequence")
            _require(pages <= sequence.max_pages, "more pages than a sequence can use")

    def _live(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def _take_arrival_idx(self) -> int:
        self._next_arrival_idx += 1
        return self._next_arrival_idx

    def _max_kv_tokens(self, request: EngineRequest) -> int:
        num_given = len(request.token_ids)
        if request.stop_after_first:
            return num_given
        total = num_given - request.num_generated + request.sampling.max_tokens
        # The last token of a generation is never computed, so it needs no KV.
        return max(num_given, min(total, self._context_tokens) - 1)

    def _check_fits(self, max_kv_tokens: int) -> int:
        max_pages = self._cache.pages_for(max_kv_tokens)
        usable = self.blocks.num_usable_pages
        if max_pages > usable:
            raise PoolFull(
                f"prompt and max_tokens may need {max_kv_tokens} tokens of KV, but the pool holds "
                f"{usable * self._cache.block_tokens} in all: lower max_tokens, shorten the prompt "
                "or raise num_pages"
            )
        return max_pages

    def _boundaries(self, request: EngineRequest) -> tuple[int, ...]:
        """Returns where the export wants a state, ascending, behind that of the image."""
        export, image = request.export, request.image
        if export is None:
            return ()
        block_tokens = self._cache.block_tokens
        first = block_tokens
        if image is not None:
            # A state that a replay rebuilds is worth storing, too; before its end none is right.
            is_rebuilt = image.replay_from is not None
            first = (image.num_tokens // block_tokens + (not is_rebuilt)) * block_tokens
        ends = range(first, len(request.token_ids) + 1, block_tokens)
        return tuple(end for end in ends if export.wants_state(end))

    def _is_row_of(self, kind: StepKind, sequence: Sequence) -> bool:
        role = self._settings.role
        if role is EngineRole.NORMAL:
            return sequence.is_prefilling is (kind is StepKind.PREFILL)
        return (kind is StepKind.PREFILL) is (role is EngineRole.PREFILL)

    def _candidates(self, kind: StepKind) -> tuple[list[tuple[Sequence, int]], int, int]:
        """Running sequences and what they miss, those that get their newest token, the budget left.

        The newest tokens come first in the budget, so that those catching up never hold back a
        decoding neighbour.
        """
        role, is_prefill = self._settings.role, kind is StepKind.PREFILL
        is_mixed = role is EngineRole.NORMAL
        running = self._running if is_mixed or is_prefill is (role is EngineRole.PREFILL) else []
        # As `_is_row_of`, which a call for each sequence would make the larger part of a vote.
        candidates = [
            (sequence, sequence.num_missing)
            for sequence in running
            if not (sequence.is_paused or sequence.is_ending)
            and (not is_mixed or sequence.is_prefilling is is_prefill)
        ]
        budget, single = self._settings.max_num_batched_tokens, charge(1, self._cp_of(kind))
        num_single = sum(1 for _, num_missing in candidates if num_missing == 1)
        num_single = min(num_single, budget // single)
        return candidates, num_single, budget - num_single * single

    def _num_rows(self, kind: StepKind) -> int:
        """Rows `schedule` gives if nothing has to be preempted; with that it gives no more."""
        cp = self._cp_of(kind)
        candidates, num_rows, spare = self._candidates(kind)
        for sequence, num_missing in candidates:
            if num_missing > 1:
                num_tokens = self._chunk_tokens(sequence, spare, cp)
                num_rows += num_tokens
                spare -= charge(num_tokens, cp)
        if spare >= chunk_multiple(cp):
            for head in self._admissible(kind):
                num_tokens = self._chunk_tokens(head, spare, cp)
                num_rows += num_tokens
                spare -= charge(num_tokens, cp)
                if spare < chunk_multiple(cp):
                    break
        return num_rows

    def _admissible(self, kind: StepKind) -> Iterator[Sequence]:
        """Who has a slot and room in a step of a kind, with what paused sequences would give up."""
        if not self._waiting:
            return
        paused = [other for other in self._running if other.is_paused]
        num_active = len(self._running) - len(paused) + len(self._reservations)
        if num_active >= self._settings.max_num_seqs:
            return
        free = self.blocks.num_free_pages + sum(
            self.blocks.num_pages_of(other.request_id) for other in paused
        )
        kept = self._pages_kept()
        for head in self._waiting:
            if head.is_paused or head.is_ending:
                continue
            need = self._cache.pages_for(head.num_tokens)
            growth = 1 if need < head.max_pages else 0
            if (
                not self._is_row_of(kind, head)
                or num_active >= self._settings.max_num_seqs
                or need + growth + kept > free
            ):
                return
            yield head
            num_active, free, kept = num_active + 1, free - need, kept + growth

    def _pages_kept(self) -> int:
        """Pages that are free but spoken for: reservations, and growth of what runs."""
        reserved = sum(reservation.num_pages for reservation in self._reservations.values())
        return reserved + sum(
            1
            for sequence in self._running
            if not sequence.is_paused
            and self.blocks.num_pages_of(sequence.request_id) < sequence.max_pages
        )

    def _cp_of(self, kind: StepKind) -> int:
        """Ranks that share the rows of a step: those of decode steps are computed on all."""
        return self._settings.cp if kind is StepKind.PREFILL else 1

    def _chunk_tokens(self, sequence: Sequence, budget: int, cp: int) -> int:
        start = sequence.num_computed
        end = start + min(sequence.num_missing, budget - budget % chunk_multiple(cp))
        next_idx = bisect_right(sequence.boundaries, start)
        if next_idx < len(sequence.boundaries):
            end = min(end, sequence.boundaries[next_idx])
        return end - start

    def _make_room(self, sequence: Sequence, num_tokens: int, schedule: Schedule) -> bool:
        """Grows a sequence for its row; False when it was itself the last to arrive."""
        num_pages = self._cache.pages_for(sequence.num_computed + num_tokens)
        while not self.blocks.try_grow(sequence.request_id, num_pages):
            victim = self._last_paused() or self._running[-1]
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
        self._running.remove(victim)
        self.blocks.free(owner)
        insort(self._waiting, victim, key=_arrival)

    def _last_paused(self) -> Sequence | None:
        return next((other for other in reversed(self._running) if other.is_paused), None)

    def _admit(self, kind: StepKind, budget: int, schedule: Schedule) -> None:
        cp = self._cp_of(kind)
        while budget >= chunk_multiple(cp):
            head = next(self._admissible(kind), None)
            if head is None or not self._make_way(head, schedule):
                return
            self._waiting.remove(head)
            insort(self._running, head, key=_arrival)
            head.move_to(
                SequenceStatus.PREFILLING if head.is_prefilling else SequenceStatus.DECODING
            )
            schedule.admitted.append(head)
            num_tokens = self._chunk_tokens(head, budget, cp)
            budget -= charge(num_tokens, cp)
            schedule.rows.append(Row(head, num_tokens))

    def _make_way(self, head: Sequence, schedule: Schedule) -> bool:
        """Allocates for an admission, at the cost of paused sequences where it must."""
        num_pages = self._cache.pages_for(head.num_tokens)
        own_growth = 1 if num_pages < head.max_pages else 0
        while True:
            room = self.blocks.num_free_pages - self._pages_kept() - own_growth
            is_crowded = len(self._running) + len(self._reservations) >= (
                self._settings.max_num_seqs
            )
            if num_pages <= room and not is_crowded:
                return self.blocks.try_allocate(head.request_id, num_pages)
            victim = self._last_paused()
            if victim is None:
                # Pages of paused sequences may still be under a transfer.
                return False
            self._preempt(victim, schedule)

    def _step_of(self, row: Row) -> SequenceStep:
        sequence, num_tokens = row.sequence, row.num_tokens
        start = sequence.num_computed
        end = start + num_tokens
        table = self.blocks.block_table(sequence.request_id)
        return SequenceStep(
            request_id=sequence.request_id,
            token_ids=tuple(sequence.tokens[start:end]),
            start=start,
            block_table=table[: self._cache.pages_for(end)],
            state_slot=self.blocks.state_slot(sequence.request_id),
            sample=end == sequence.num_tokens,
            stored_tokens=sequence.replay_end if sequence.is_replaying else 0,
            window_start=sequence.replay_start if sequence.is_replaying else 0,
        )


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival_idx


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
