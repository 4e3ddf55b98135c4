"""Two queues in order of arrival: nobody is lost, and who waits again waits at its old place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.queues import Queues
from tests.fakes.sequences import sequence_of


def filled(*names: str) -> Queues:
    queues = Queues()
    for name in names:
        queues.add(sequence_of(name, arrival_idx=queues.take_arrival_idx()))
    return queues


def test_a_place_is_given_once_and_kept_until_it_is_used() -> None:
    queues = Queues()
    early, late = queues.take_arrival_idx(), queues.take_arrival_idx()
    assert early < late
    queues.add(sequence_of("late", arrival_idx=late))
    queues.add(sequence_of("early", arrival_idx=early))
    assert [sequence.request_id for sequence in queues.waiting] == ["early", "late"]


def test_the_victim_arrived_last_but_the_paused_come_first() -> None:
    queues = filled("a", "b", "c")
    for sequence in list(queues.waiting):
        queues.admit(sequence)
    a, b, c = queues.running
    assert queues.victim() is c
    assert queues.last_paused() is None
    a.is_paused = b.is_paused = True
    assert queues.victim() is queues.last_paused() is b


def test_where_nothing_runs_there_is_no_victim() -> None:
    with pytest.raises(IndexError):
        filled("a").victim()


def test_a_wrong_order_is_found() -> None:
    queues = filled("a", "b")
    queues.waiting.reverse()
    with pytest.raises(AssertionError, match="order of arrival"):
        queues.check_integrity()


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "preempt", "remove", "add", "pause"]), st.booleans()),
        max_size=20,
    )
)
def test_any_moves_keep_everybody_in_one_queue_and_in_order(moves: list[tuple[str, bool]]) -> None:
    queues = filled("x", "y", "z")
    present = {"x", "y", "z"}
    for number, (move, is_last) in enumerate(moves):
        idx = -1 if is_last else 0
        if move == "add":
            queues.add(sequence_of(f"r{number}", arrival_idx=queues.take_arrival_idx()))
            present.add(f"r{number}")
        elif move == "admit" and queues.waiting:
            queues.admit(queues.waiting[idx])
        elif move == "preempt" and queues.running:
            queues.preempt(queues.running[idx])
        elif move == "remove" and (queue := queues.running or queues.waiting):
            present.remove(queue[idx].request_id)
            queues.remove(queue[idx])
        elif move == "pause" and queues.running:
            queues.running[idx].is_paused ^= True
        queues.check_integrity()
        found = [sequence.request_id for sequence in queues.live()]
        assert sorted(found) == sorted(present)
        running = queues.running
        if len(running) > 1 and not running[0].is_paused:
            assert queues.victim() is not running[0]
