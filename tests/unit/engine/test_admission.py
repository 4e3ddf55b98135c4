"""What fits at all, what is kept free, and who of the queue comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.admission import (
    Reservations,
    Room,
    admissible,
    max_kv_tokens,
    pages_alone,
    pages_to_admit,
)
from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.request import EngineRequest, PoolFull, SamplingParams
from engine.sequence import Sequence
from tests.fakes.sequences import sequence_of

CACHE = CacheSize(num_pages=21, num_state_slots=9, block_tokens=4)


@pytest.mark.parametrize(
    # tokens given, of them generated, max_tokens, first only, tokens that may have KV
    ("num_given", "num_generated", "max_tokens", "first_only", "expected"),
    [
        (80, 0, 1, False, 80),
        (60, 0, 21, False, 80),
        (60, 0, 22, False, 81),
        (60, 5, 22, False, 76),
        (80, 0, 99, True, 80),
        (10, 0, 999, False, 199),  # the context ends it
        (5, 2, 2, False, 5),  # nothing is left to generate
    ],
)
def test_the_last_token_needs_no_kv(
    num_given: int, num_generated: int, max_tokens: int, first_only: bool, expected: int
) -> None:
    request = EngineRequest(
        request_id="a",
        token_ids=tuple(range(num_given)),
        num_generated=num_generated,
        sampling=SamplingParams(max_tokens=max_tokens),
        stop_after_first=first_only,
    )
    assert max_kv_tokens(request, 200) == expected


def test_what_fits_alone_is_exact() -> None:
    assert [pages_alone(num_tokens, CACHE) for num_tokens in (0, 1, 4, 5, 80)] == [0, 1, 1, 2, 20]
    with pytest.raises(PoolFull, match="may need 81 tokens of KV, but the pool holds 80 in all"):
        pages_alone(81, CACHE)


@pytest.mark.parametrize(("num_tokens", "pages"), [(1, 2), (4, 2), (5, 3), (12, 3)])
def test_an_admission_needs_a_page_to_grow_if_it_can(num_tokens: int, pages: int) -> None:
    assert pages_to_admit(sequence_of(num_tokens=num_tokens, max_pages=3), CACHE) == pages


def test_a_reservation_is_used_once_and_keeps_its_place() -> None:
    reservations = Reservations()
    reservations.add("r", 3, 7)
    reservations.add("s", 4, 8)
    assert (len(reservations), reservations.num_pages) == (2, 7)
    assert "r" in reservations
    assert reservations.take("r") == 7
    assert reservations.take("r") is None
    assert reservations.take(None) is None
    assert (len(reservations), reservations.num_pages) == (1, 4)


def test_who_is_paused_or_about_to_end_is_passed_over() -> None:
    queue = [
        sequence_of("paused", is_paused=True),
        sequence_of("ending", 4, num_computed=4, max_kv_tokens=4),
        sequence_of("next"),
        sequence_of("last"),
    ]
    room = Room(num_slots=2, num_pages=99)
    assert list(admissible(queue, room, CACHE, lambda _: True)) == queue[2:]


def running_with(
    pages: dict[str, tuple[int, bool]], max_pages: int = 4
) -> tuple[list[Sequence], BlockManager]:
    """Sequences that own pages, by name: how many, and whether paused."""
    blocks = BlockManager(CACHE.num_pages, CACHE.num_state_slots)
    running = []
    for name, (num_pages, is_paused) in pages.items():
        assert blocks.try_allocate(name, num_pages)
        running.append(sequence_of(name, max_pages=max_pages, is_paused=is_paused))
    return running, blocks


def test_what_can_grow_and_what_is_reserved_is_kept() -> None:
    running, blocks = running_with({"grows": (3, False), "full": (4, False), "slow": (2, True)})
    reservations = Reservations()
    room = Room.measure(running, reservations, blocks, 8)
    assert (room.num_slots, room.num_pages) == (5, 20 - 9 - 1)
    reservations.add("r", 6, 1)
    room = Room.measure(running, reservations, blocks, 8)
    assert (room.num_slots, room.num_pages) == (4, 4)
    room = Room.measure(running, reservations, blocks, 8, without_paused=True)
    assert (room.num_slots, room.num_pages) == (5, 6)


def test_without_a_slot_there_is_no_room_whatever_the_pages() -> None:
    running, blocks = running_with({"a": (1, False), "slow": (1, True)})
    room = Room.measure(running, Reservations(), blocks, 2)
    assert not room.has(0)
    assert Room.measure(running, Reservations(), blocks, 2, without_paused=True).has(18)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5),
    num_reserved=st.integers(0, 6),
    max_num_seqs=st.integers(1, 8),
)
def test_room_without_the_paused_is_what_is_left_once_they_are_gone(
    sizes: list[tuple[int, bool]], num_reserved: int, max_num_seqs: int
) -> None:
    running, blocks = running_with({f"r{i}": size for i, size in enumerate(sizes)})
    reservations = Reservations()
    reservations.add("r", num_reserved, 0)
    promised = Room.measure(running, reservations, blocks, max_num_seqs, without_paused=True)
    for sequence in running:
        if sequence.is_paused:
            blocks.free(sequence.request_id)
    left = [sequence for sequence in running if not sequence.is_paused]
    assert Room.measure(left, reservations, blocks, max_num_seqs) == promised


@given(
    waiting=st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.booleans()), max_size=8),
    num_slots=st.integers(0, 4),
    num_pages=st.integers(0, 12),
)
def test_nobody_is_overtaken_and_nothing_is_given_twice(
    waiting: list[tuple[int, bool, bool]], num_slots: int, num_pages: int
) -> None:
    queue = [
        sequence_of(f"r{i}", num_tokens, is_paused=is_paused, max_pages=4)
        for i, (num_tokens, is_paused, _) in enumerate(waiting)
    ]
    fitting = {f"r{i}": is_fitting for i, (_, _, is_fitting) in enumerate(waiting)}

    def can_take_part(sequence: Sequence) -> bool:
        return fitting[sequence.request_id]

    room = Room(num_slots=num_slots, num_pages=num_pages)
    found = list(admissible(queue, room, CACHE, can_take_part))
    candidates = [sequence for sequence in queue if not sequence.is_paused]
    assert found == candidates[: len(found)]
    assert len(found) <= num_slots
    assert sum(pages_to_admit(sequence, CACHE) for sequence in found) <= num_pages
    # The first that was left out could not come in.
    if len(found) < len(candidates):
        head = candidates[len(found)]
        assert not (can_take_part(head) and room.has(pages_to_admit(head, CACHE)))
