"""A follower repeats what it is told, in order, and gives the world up when it cannot."""

import pytest

from engine.handoff import SequenceImage
from engine.parallel.plans.follower import Follower
from engine.parallel.plans.messages import (
    BeginStep,
    ImportImage,
    ResetSlot,
    RunStep,
    Stop,
    encode,
)
from engine.plan import AgreedStep, StepKind, placeholder_plan

IMAGE = SequenceImage(num_tokens=3, blocks=(), partial=b"p", state=b"s")
PLAN = placeholder_plan(StepKind.PREFILL, 9)
AGREED = AgreedStep(kind=StepKind.PREFILL, step=9, vote=(1, 1, 0))


class Queue:
    def __init__(self, calls):
        self._messages = [b"".join(encode(call)) for call in calls]

    def take(self):
        return bytearray(self._messages.pop(0))


class Runner:
    def __init__(self):
        self.calls = []

    def run(self, plan):
        if plan.step > 100:
            raise RuntimeError("out of memory")
        self.calls.append(plan)

    def import_image(self, image, block_table, state_slot):
        self.calls.append((image, block_table, state_slot))

    def reset_slot(self, state_slot):
        self.calls.append(state_slot)


def made(calls):
    """A follower of these calls, its runner, and the list of its failures."""
    runner, failures = Runner(), []
    follower = Follower(
        runner,
        Queue(calls),
        on_step=runner.calls.append,
        on_failure=lambda: failures.append("lost"),
    )
    return follower, runner, failures


def test_calls_are_repeated_until_the_leader_stops():
    calls = [BeginStep(AGREED), ResetSlot(2), ImportImage(IMAGE, (4,), 3), RunStep(PLAN)]
    follower, runner, failures = made([*calls, Stop(), ResetSlot(1)])
    follower.follow()
    assert runner.calls == [AGREED, 2, (IMAGE, (4,), 3), PLAN]
    assert failures == []


def test_a_follower_that_cannot_repeat_gives_the_world_up():
    follower, _, failures = made([RunStep(placeholder_plan(StepKind.DECODE, 101)), Stop()])
    with pytest.raises(RuntimeError, match="out of memory"):
        follower.follow()
    assert failures == ["lost"]
