"""Parts of a bar: in order, without overlap, and nothing that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from balancer.journey.recent import Ended
from balancer.journey.request import Timing
from balancer.ui.trips import PHASES, parts_of, trip_lines

TIMES = st.integers(0, 10**9)


def test_parts_follow_each_other() -> None:
    timing = Timing(
        placement_us=100,
        lookup_us=30,
        admit_us=50,
        prefix_load_us=5,
        prefill_queue_us=7,
        prefill_us=200,
        first_token_us=330,
        commit_us=40,
        fetch_us=11,
    )
    assert [(PHASES[number], begin, length) for number, begin, length in parts_of(timing)] == [
        ("lookup", 0, 30),
        ("queue", 30, 50),
        ("route", 80, 20),
        ("load", 100, 5),
        ("wait", 105, 7),
        ("compute", 112, 200),
        ("publish", 330, 40),
        ("fetch", 370, 11),
    ]


@given(
    st.builds(
        Timing,
        placement_us=TIMES,
        lookup_us=TIMES,
        admit_us=TIMES,
        prefix_load_us=TIMES,
        prefill_queue_us=TIMES,
        prefill_us=TIMES,
        first_token_us=TIMES,
        commit_us=TIMES,
        fetch_us=TIMES,
    )
)
def test_parts_never_overlap_and_have_a_length(timing: Timing) -> None:
    at_us, last = 0, -1
    for number, begin_us, length_us in parts_of(timing):
        assert number > last
        assert begin_us >= at_us
        assert length_us > 0
        at_us, last = begin_us + length_us, number


def test_a_request_that_failed_early_has_an_empty_bar() -> None:
    ended = Ended(
        request_id="r",
        ended_at=3.0,
        outcome="failed",
        reason="QUEUE_FULL",
        prompt_tokens=4,
        cached_tokens=0,
        generated_tokens=0,
        attempts=1,
        timing=Timing(total_us=9),
    )
    [line] = trip_lines([ended], 4.25)
    assert (line["parts"], line["age_s"], line["reason"]) == ([], 1.2, "QUEUE_FULL")
    assert json.loads(json.dumps(line))["total_us"] == 9


def test_a_bar_of_several_attempts_is_the_last_one_from_its_own_beginning() -> None:
    timing = Timing(
        placement_us=100,
        lookup_us=30,
        prefill_us=200,
        first_token_us=45,
        commit_us=40,
        total_us=5_000,
    )
    ended = Ended(
        request_id="r",
        ended_at=3.0,
        outcome="length",
        reason="",
        prompt_tokens=4,
        cached_tokens=0,
        generated_tokens=9,
        attempts=2,
        timing=timing,
    )
    [line] = trip_lines([ended], 4.0)
    compute, publish = PHASES.index("compute"), PHASES.index("publish")
    assert line["parts"] == [(compute, 0, 200), (publish, 200, 40)]
    assert (line["mark_us"], line["first_token_us"]) == (0, 45)
    [whole] = trip_lines([replace(ended, attempts=1)], 4.0)
    assert whole["mark_us"] == 45
