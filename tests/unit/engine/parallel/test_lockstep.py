"""Vote vectors T-V by name, and the machine's invariants on random inputs."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.parallel.lockstep import EngineKind, LockstepState, VotePoint, VoteVector
from engine.plan import StepKind

VECTORS = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[3] / "vectors" / "votes.json").read_text())
}


def reduce(vectors):
    return np.max([vector.to_array() for vector in vectors], axis=0)


def vote(*, f0=1, want=0, rows=0, **more):
    return VoteVector(unfinished=bool(f0), wants_prefill=bool(want), decode_rows=rows, **more)


def inputs_per_step(segments):
    for segment in segments:
        wants = [
            want and buildable
            for want, buildable in zip(
                segment["want"], segment.get("buildable", segment["want"]), strict=True
            )
        ]
        for _ in range(segment["steps"]):
            yield [
                vote(f0=f0, want=want, rows=rows)
                for f0, want, rows in zip(
                    segment["unfinished"], wants, segment["decode_rows"], strict=True
                )
            ]


@pytest.mark.parametrize("name", VECTORS)
def test_votes_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]["ours"]
    state = LockstepState(
        EngineKind.NORMAL,
        attempt_interval=inputs["A"],
        any_interval=inputs["Y"],
        running=inputs["start"]["state"] == "RUN",
        counter=inputs["start"]["n"],
    )

    decisions = [state.decide(reduce(ranks)) for ranks in inputs_per_step(inputs["segments"])]

    runs = []
    for kind, run in itertools.groupby(decisions, key=lambda decision: decision.step_kind):
        steps = list(run)
        runs.append(
            {
                "kind": kind.value,
                "steps": len(steps),
                "first_n": steps[0].counter,
                "votes": [
                    {"n": step.counter, "point": step.point.value, "passed": step.passed}
                    for step in steps
                    if step.point is not None
                ],
            }
        )
        if "reason" in (wanted := expected["runs"][len(runs) - 1]):
            assert {step.reason for step in steps} == {wanted.pop("reason")}
    assert runs == expected["runs"]
    assert state.counter == expected["n_after"]


def test_the_fields_of_a_vector():
    vector = VoteVector(
        unfinished=True,
        wants_prefill=True,
        decode_rows=7,
        prefill_rows=40,
        needs_eager=True,
        epoch=3,
    ).to_array()
    assert vector.dtype == np.int64
    assert vector.tolist() == [1, 1, 0, 1, 1, 7, 40, 3, -3]
    assert VoteVector(unfinished=False).to_array().tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_an_epoch_is_agreed_only_when_all_ranks_ask_for_it():
    state = LockstepState(EngineKind.NORMAL)
    asked = [vote(f0=0, epoch=5), vote(f0=0, epoch=4)]
    assert state.decide(reduce(asked)).agreed_epoch is None
    assert state.decide(reduce([vote(f0=0, epoch=5)] * 2)).agreed_epoch == 5
    assert state.decide(reduce([vote(f0=0)] * 2)).agreed_epoch == 0


def test_rows_and_graphs_are_agreed():
    decision = LockstepState(EngineKind.NORMAL).decide(
        reduce([vote(rows=3, prefill_rows=9), vote(rows=5, needs_eager=True)])
    )
    assert (decision.max_decode_rows, decision.max_prefill_rows) == (5, 9)
    assert not decision.can_replay_graph
    assert LockstepState(EngineKind.NORMAL).decide(reduce([vote(rows=1)])).can_replay_graph


def test_a_prefill_engine_steps_whenever_somebody_wants():
    state = LockstepState(EngineKind.PREFILL)
    assert state.decide(reduce([vote(want=1), vote(f0=0)])).step_kind is StepKind.PREFILL
    assert state.decide(reduce([vote(), vote(f0=0)])).step_kind is StepKind.NONE
    assert state.decide(reduce([vote(f0=0)])).idle


def test_a_decode_engine_never_prefills():
    state = LockstepState(EngineKind.DECODE)
    assert state.decide(reduce([vote(rows=1), vote(want=1)])).step_kind is StepKind.DECODE
    stalled = state.decide(reduce([vote(want=1)]))
    assert stalled.step_kind is StepKind.NONE
    assert not stalled.idle


def test_stalled_rounds_are_counted_and_end_with_progress():
    state = LockstepState(EngineKind.NORMAL)
    counts = [state.decide(reduce([vote()])).stalled_rounds for _ in range(3)]
    assert counts == [1, 2, 3]
    assert state.decide(reduce([vote(rows=1)])).stalled_rounds == 0
    assert state.decide(reduce([vote()])).stalled_rounds == 1


@pytest.mark.parametrize(
    ("intervals", "words"),
    [
        ({"attempt_interval": 1}, ("attempt_interval 1", "raise it")),
        ({"attempt_interval": 9, "any_interval": 8}, ("any_interval 8", "attempt_interval 9")),
    ],
)
def test_intervals_out_of_order_are_refused(intervals, words):
    with pytest.raises(ValueError) as caught:
        LockstepState(EngineKind.NORMAL, **intervals)
    for word in words:
        assert word in str(caught.value)


rank_votes = st.builds(
    lambda f0, want, rows: vote(f0=f0 or want or rows, want=want, rows=rows),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 2),
)


@settings(max_examples=50)
@given(
    steps=st.lists(st.lists(rank_votes, min_size=3, max_size=3), max_size=60),
    attempt=st.integers(2, 5),
    more=st.integers(0, 9),
)
def test_bounds_on_random_inputs(steps, attempt, more):
    state = LockstepState(EngineKind.NORMAL, attempt_interval=attempt, any_interval=attempt + more)
    decodes_since_prefill = None
    waited = 0
    for ranks in steps:
        reduced = reduce(ranks)
        decision = state.decide(reduced)
        has_work, wants, has_rows = bool(reduced[0]), bool(reduced[1]), bool(reduced[3])
        assert decision.idle == (not has_work)
        if decision.step_kind is StepKind.PREFILL:
            assert wants
            # Minimum decode progress between two prefills while somebody decodes.
            if has_rows and decodes_since_prefill is not None:
                assert decodes_since_prefill >= attempt
            decodes_since_prefill, waited = 0, 0
        elif decision.step_kind is StepKind.DECODE:
            assert has_rows
            waited = waited + 1 if wants else 0
            assert waited <= attempt + more
            if decodes_since_prefill is not None:
                decodes_since_prefill += 1
        else:
            assert not has_work or not (wants or has_rows)
            waited = 0
            if decision.idle:
                decodes_since_prefill = None
        assert decision.point is not VotePoint.ANY or decision.passed
