"""Which rows a step gets, who is admitted, who loses memory. No runner: decisions only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineRole, EngineSettings
from engine.handoff import SequenceImage
from engine.kv_connector import InMemoryExport
from engine.parallel.rows.zigzag import split_rows
from engine.plan import StepKind
from engine.request import EngineRequest, PoolFull, SamplingParams, SequenceStatus
from engine.schedule import Demand, Schedule
from engine.scheduler import Scheduler
from engine.sequence import Sequence

BLOCK = 4
P, D = StepKind.PREFILL, StepKind.DECODE


def make(role: EngineRole = EngineRole.NORMAL, pages: int = 20, **fields: int) -> Scheduler:
    settings = EngineSettings(
        role=role,
        block_tokens=BLOCK,
        num_pages=pages + 1,
        **{"max_num_seqs": 4, "max_num_batched_tokens": 10, **fields},
    )
    return Scheduler(settings, settings.cache_size(1), 200)


def image_of(num_tokens: int) -> SequenceImage:
    return SequenceImage(num_tokens=num_tokens, blocks=(), partial=b"", state=b"")


def add(
    scheduler: Scheduler, name: str, length: int, max_tokens: int = 20, **fields: object
) -> Sequence:
    return scheduler.add(
        EngineRequest(
            request_id=name,
            token_ids=tuple(range(length)),
            sampling=SamplingParams(max_tokens=max_tokens),
            **fields,  # type: ignore[arg-type]
        )
    )


def run(scheduler: Scheduler, kind: StepKind, max_rows: int | None = None) -> Schedule:
    """Carries a schedule out as the engine does, without a runner."""
    schedule = scheduler.schedule(kind, max_rows=max_rows)
    for preemption in schedule.preempted:
        preemption.sequence.image = image_of(preemption.num_computed)
    for sequence in schedule.admitted:
        sequence.drop_image()
    steps = scheduler.steps_of(schedule.rows)
    for row, step in zip(schedule.rows, steps, strict=True):
        scheduler.complete(row)
        if step.sample:
            row.sequence.tokens.append(0)
    scheduler.check_integrity()
    return schedule


def names(schedule: Schedule) -> list[tuple[str, int]]:
    return [(row.sequence.request_id, row.num_tokens) for row in schedule.rows]


def test_a_prefill_step_fills_its_budget_in_order_of_arrival() -> None:
    scheduler = make()
    for name, length in (("a", 4), ("b", 9), ("c", 2)):
        add(scheduler, name, length)
    assert names(run(scheduler, P)) == [("a", 4), ("b", 6)]
    assert names(run(scheduler, P)) == [("b", 3), ("c", 2)]
    assert names(run(scheduler, P)) == []
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("c", 1)]


def test_chunks_end_where_the_export_wants_a_state() -> None:
    scheduler = make(max_num_batched_tokens=100)
    export = InMemoryExport(BLOCK, state_every_blocks=3)
    add(scheduler, "a", 30, export=export, stop_after_first=True)
    assert [names(run(scheduler, P))[0][1] for _ in range(3)] == [12, 12, 6]
    add(scheduler, "b", 30, export=export, image=image_of(13), stop_after_first=True)
    assert [names(run(scheduler, P))[0][1] for _ in range(2)] == [11, 6]


def test_the_plan_covers_what_it_computes_and_samples_at_the_end_only() -> None:
    scheduler = make()
    add(scheduler, "a", 13)
    schedule = scheduler.schedule(P)
    (step,) = scheduler.steps_of(schedule.rows)
    assert (step.start, step.end, step.sample) == (0, 10, False)
    assert len(step.block_table) == 3
    assert step.token_ids == tuple(range(10))
    scheduler.complete(schedule.rows[0])
    (step,) = scheduler.steps_of(scheduler.schedule(P).rows)
    assert (step.start, step.end, step.sample) == (10, 13, True)
    assert len(step.block_table) == 4


def test_pages_of_all_known_tokens_are_taken_at_admission() -> None:
    scheduler = make()
    sequence = add(scheduler, "a", 30)
    run(scheduler, P)
    assert sequence.status is SequenceStatus.PREFILLING
    assert scheduler.blocks.num_pages_of("a") == 8


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    scheduler = make(pages=10)
    add(scheduler, "a", 20, max_tokens=4)
    run(scheduler, P)
    add(scheduler, "big", 30, max_tokens=4)
    add(scheduler, "small", 1, max_tokens=2)
    while scheduler.demand().wants_prefill:
        run(scheduler, P)
    assert scheduler.num_running == 1
    assert scheduler.num_waiting == 2
    assert scheduler.demand() == Demand(
        is_unfinished=True,
        wants_prefill=False,
        has_decode_rows=True,
        num_decode_rows=1,
        num_prefill_rows=0,
    )


def test_admission_leaves_a_page_for_everyone_who_can_still_grow() -> None:
    scheduler = make(pages=6)
    add(scheduler, "a", 8, max_tokens=9)  # two pages now, four at most
    run(scheduler, P)
    add(scheduler, "b", 8, max_tokens=9)  # two, plus one to grow, plus one for a: four of four
    assert scheduler.demand().wants_prefill
    other = make(pages=5)
    add(other, "a", 8, max_tokens=9)
    run(other, P)
    add(other, "b", 8, max_tokens=9)
    assert not other.demand().wants_prefill
    # Without growth there is nothing to leave room for.
    other.finish(other._queues.waiting[0], SequenceStatus.ABORTED)
    add(other, "c", 8, max_tokens=1)
    assert other.demand().wants_prefill


def test_the_victim_is_the_last_to_arrive_and_comes_back_first() -> None:
    scheduler = make(pages=6, max_num_batched_tokens=40)
    a, b = add(scheduler, "a", 8, max_tokens=17), add(scheduler, "b", 8, max_tokens=9)
    run(scheduler, P)
    waiting = add(scheduler, "c", 1, max_tokens=1)
    preempted = None
    for _ in range(20):
        schedule = run(scheduler, D)
        if schedule.preempted:
            (preempted,) = schedule.preempted
            # Nobody gains from it but the one that grew.
            assert schedule.admitted == []
            assert names(schedule) == [("a", 1)]
            break
    assert preempted is not None
    assert preempted.sequence is b
    assert b.status is SequenceStatus.SWAPPED
    assert preempted.num_computed == b.num_tokens - 1
    assert len(preempted.block_table) == len(set(preempted.block_table))
    assert scheduler.num_preemptions == 1
    assert [s.request_id for s in scheduler._queues.waiting] == ["b", "c"]
    scheduler.finish(a, SequenceStatus.FINISHED)
    assert names(run(scheduler, D)) == [("b", 1)]
    assert b.status is SequenceStatus.DECODING
    assert waiting.status is SequenceStatus.WAITING


def test_a_victim_with_nothing_computed_just_waits_again() -> None:
    scheduler = make(pages=8, max_num_batched_tokens=8)
    a = add(scheduler, "a", 8, max_tokens=20)
    run(scheduler, P)
    b = add(scheduler, "b", 12, max_tokens=2)
    scheduler.schedule(P)  # admitted, but the step never completed
    assert b.status is SequenceStatus.PREFILLING
    while not scheduler.num_preemptions:
        schedule = run(scheduler, D)
        assert a.num_tokens < 30
    assert schedule.preempted == []
    assert b.status is SequenceStatus.WAITING
    assert scheduler.num_waiting == 1


def test_decode_rows_come_before_those_that_catch_up() -> None:
    scheduler = make(EngineRole.DECODE, max_num_batched_tokens=6)
    for name in ("a", "b"):
        add(scheduler, name, 5, image=image_of(4))
    run(scheduler, D)
    add(scheduler, "late", 12)
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("late", 4)]
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("late", 4)]
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("late", 4)]
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("late", 1)]


@pytest.mark.parametrize(
    ("role", "missing", "prefill", "decode"),
    [
        (EngineRole.NORMAL, 3, True, False),
        (EngineRole.NORMAL, 1, False, True),
        (EngineRole.PREFILL, 3, True, False),
        (EngineRole.PREFILL, 1, True, False),
        (EngineRole.DECODE, 3, False, True),
        (EngineRole.DECODE, 1, False, True),
    ],
)
def test_roles_want_only_their_kind(
    role: EngineRole, missing: int, prefill: bool, decode: bool
) -> None:
    scheduler = make(role)
    add(scheduler, "a", 9, num_generated=2, image=image_of(9 - missing))
    demand = scheduler.demand()
    assert (demand.wants_prefill, demand.has_decode_rows) == (prefill, decode)
    assert demand.num_prefill_rows + demand.num_decode_rows == missing
    kinds = {P: prefill, D: decode}
    for kind, wanted in kinds.items():
        if wanted:
            assert names(run(scheduler, kind)) == [("a", missing)]


def test_a_demand_is_kept_by_the_step_it_brings() -> None:
    """What is announced in the vote yields at least one row of that kind."""
    scheduler = make(pages=12)
    for i in range(6):
        add(scheduler, f"r{i}", 3 + 2 * i, max_tokens=6)
    for _ in range(200):
        demand = scheduler.demand()
        if not demand.is_unfinished:
            break
        if demand.wants_prefill:
            assert names(run(scheduler, P))
        elif demand.has_decode_rows:
            assert names(run(scheduler, D))
        for sequence in list(scheduler._queues.running):
            if sequence.num_generated >= 6:
                scheduler.finish(sequence, SequenceStatus.FINISHED)
    assert scheduler.num_running == scheduler.num_waiting == 0


@given(
    lengths=st.lists(st.integers(1, 22), min_size=1, max_size=8),
    images=st.integers(0, 20),
    pages=st.sampled_from([8, 11, 200]),
    budget=st.integers(4, 24),
    role=st.sampled_from(EngineRole),
)
def test_no_step_has_more_rows_than_were_announced(
    lengths: list[int], images: int, pages: int, budget: int, role: EngineRole
) -> None:
    scheduler = make(role, pages, max_num_batched_tokens=budget)
    for i, length in enumerate(lengths):
        image = image_of(min(images, length - 1)) if min(images, length - 1) else None
        add(scheduler, f"r{i}", length, max_tokens=3 + i, image=image)
    for number in range(400):
        demand = scheduler.demand()
        if not demand.is_unfinished:
            break
        # Kinds in turn, as a vote may decide either where both are wanted.
        kind = P if demand.wants_prefill and not (demand.has_decode_rows and number % 2) else D
        announced = demand.num_prefill_rows if kind is P else demand.num_decode_rows
        assert announced > 0
        found = sum(rows for _, rows in names(run(scheduler, kind, max_rows=announced)))
        assert found <= announced
        if pages == 200:
            assert found == announced
        for sequence in list(scheduler._queues.running):
            if sequence.num_generated >= sequence.request.sampling.max_tokens:
                scheduler.finish(sequence, SequenceStatus.FINISHED)
    assert not scheduler.demand().is_unfinished


def test_paused_sequences_bring_no_rows_and_no_demand() -> None:
    scheduler = make()
    sequence = add(scheduler, "a", 5)
    run(scheduler, P)
    sequence.is_paused = True
    demand = scheduler.demand()
    assert not demand.is_unfinished
    assert not demand.has_decode_rows
    assert names(run(scheduler, D)) == []


def test_what_does_not_fit_alone_is_not_queued() -> None:
    scheduler = make(pages=20)
    with pytest.raises(PoolFull, match="the pool holds 80 in all"):
        add(scheduler, "a", 81, 1)
    assert scheduler.num_waiting == 0
    add(scheduler, "a", 80, 1)
    assert scheduler.demand().is_unfinished


def test_reservations_count_what_is_queued_and_keep_their_place() -> None:
    scheduler = make(pages=10)
    add(scheduler, "queued", 16, max_tokens=1)
    assert not scheduler.try_reserve("r", 28)
    assert scheduler.try_reserve("r", 24)
    add(scheduler, "after", 4, max_tokens=1)
    mine = add(scheduler, "mine", 24, max_tokens=1, reservation_id="r")
    assert [s.request_id for s in scheduler._queues.waiting] == ["queued", "mine", "after"]
    assert mine.arrival_idx == 2
    assert not scheduler.release_reservation("r")


def test_reservations_take_slots_too() -> None:
    scheduler = make(max_num_seqs=2)
    assert scheduler.try_reserve("a", 4)
    assert scheduler.try_reserve("b", 4)
    assert not scheduler.try_reserve("c", 4)
    assert scheduler.release_reservation("a")
    assert scheduler.try_reserve("c", 4)


def test_paused_sequences_give_way_and_come_back_where_they_were() -> None:
    scheduler = make(pages=6, max_num_seqs=2)
    slow, other = add(scheduler, "slow", 9, max_tokens=9), add(scheduler, "other", 3, max_tokens=9)
    run(scheduler, P)
    run(scheduler, P)
    late = add(scheduler, "late", 7, max_tokens=2)
    assert not scheduler.demand().wants_prefill
    slow.is_paused = True
    assert scheduler.demand().wants_prefill
    schedule = run(scheduler, P)
    assert [preemption.sequence for preemption in schedule.preempted] == [slow]
    assert schedule.admitted == [late]
    # It is passed over while it is paused, and the first of the queue afterwards.
    scheduler.finish(late, SequenceStatus.FINISHED)
    scheduler.finish(other, SequenceStatus.FINISHED)
    demand = scheduler.demand()
    assert not demand.is_unfinished
    assert not demand.has_decode_rows
    behind = add(scheduler, "behind", 1, max_tokens=2)
    slow.is_paused = False
    assert names(run(scheduler, D)) == [("slow", 1)]
    assert behind.status is SequenceStatus.WAITING


def test_a_paused_sequence_is_the_first_victim() -> None:
    scheduler = make(pages=6, max_num_batched_tokens=40)
    first, second = add(scheduler, "a", 8, max_tokens=17), add(scheduler, "b", 8, max_tokens=17)
    run(scheduler, P)
    first.is_paused = True
    while not scheduler.num_preemptions:
        schedule = run(scheduler, D)
    assert [preemption.sequence for preemption in schedule.preempted] == [first]
    assert names(schedule) == [("b", 1)]
    assert second.status is SequenceStatus.DECODING


def test_a_paused_sequence_keeps_no_page_to_grow() -> None:
    scheduler = make(pages=3)
    slow = add(scheduler, "slow", 3, max_tokens=6)
    run(scheduler, P)
    slow.is_paused = True
    add(scheduler, "all", 12, max_tokens=1)
    assert scheduler.demand().wants_prefill
    assert names(run(scheduler, P)) == [("all", 10)]


def test_under_context_parallelism_chunks_take_their_padded_length() -> None:
    """T-M6 and T-M7: what is cut short ends at a multiple, and nothing smaller is taken."""
    scheduler = make(cp=2)
    add(scheduler, "a", 5)
    add(scheduler, "b", 3)
    assert names(run(scheduler, P)) == [("a", 5)]
    assert names(run(scheduler, P)) == [("b", 3)]
    add(scheduler, "c", 9)
    assert names(run(scheduler, P)) == [("c", 8)]
    assert names(run(scheduler, P)) == [("c", 1)]
    # Decode rows are not padded: ten would fit.
    assert names(run(scheduler, D)) == [("a", 1), ("b", 1), ("c", 1)]


def test_single_tokens_are_charged_too_and_the_oldest_come_first() -> None:
    scheduler = make(cp=2)
    for name in ("a", "b", "c"):
        add(scheduler, name, 1)
    assert names(run(scheduler, P)) == [("a", 1), ("b", 1)]
    assert names(run(scheduler, P)) == [("c", 1)]
    scheduler = make(cp=2)
    found = [add(scheduler, name, 1) for name in ("a", "b", "c")]
    scheduler.schedule(P)
    for sequence in found[:2]:
        sequence.is_paused = True
    scheduler.schedule(P)
    for sequence in found[:2]:
        sequence.is_paused = False
    # All three run and need one token; two of them fit.
    assert scheduler.num_running == 3
    assert names(run(scheduler, P)) == [("a", 1), ("b", 1)]
    assert names(run(scheduler, P)) == [("c", 1)]


def test_chunks_end_at_boundaries_whatever_the_multiple() -> None:
    scheduler = make(max_num_batched_tokens=64, cp=4)
    export = InMemoryExport(BLOCK, state_every_blocks=3)
    add(scheduler, "a", 30, export=export, stop_after_first=True)
    assert [names(run(scheduler, P))[0][1] for _ in range(3)] == [12, 12, 6]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    cp=st.sampled_from((2, 4)),
    budget=st.integers(8, 48),
)
def test_no_rank_gets_more_rows_than_its_part_of_the_budget(
    lengths: list[int], cp: int, budget: int
) -> None:
    scheduler = make(cp=cp, max_num_batched_tokens=budget, pages=60)
    for number, length in enumerate(lengths):
        add(scheduler, str(number), length)
    left = sum(lengths)
    for _ in range(200):
        rows = names(run(scheduler, P))
        assert rows, "a prefill that was wanted ran"
        left -= sum(count for _, count in rows)
        split = split_rows([count for _, count in rows], cp)
        assert split.mirror_length <= budget // cp
        if not left:
            break
    assert not left


def test_a_replay_is_marked_until_its_end_and_a_state_there_can_be_wanted() -> None:
    scheduler = make(max_num_seqs=1, max_num_batched_tokens=3)
    image = SequenceImage(num_tokens=8, blocks=(), partial=b"", state=b"", replay_from=3)
    export = InMemoryExport(BLOCK, state_every_blocks=1)
    sequence = add(scheduler, "a", 14, image=image, export=export)
    assert sequence.boundaries == (8, 12)
    assert sequence.num_exported_blocks == 2
    marks = []
    for _ in range(5):
        schedule = scheduler.schedule(P)
        marks += [
            (step.start, step.end, step.window_start, step.stored_tokens)
            for step in scheduler.steps_of(schedule.rows)
        ]
        for row in schedule.rows:
            scheduler.complete(row)
    assert marks == [(3, 6, 3, 8), (6, 8, 3, 8), (8, 11, 0, 0), (11, 12, 0, 0), (12, 14, 0, 0)]
