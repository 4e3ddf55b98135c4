"""Messages between leader and followers: what goes in comes out, whatever it is."""

import dataclasses

import pytest

from engine.handoff import SequenceImage
from engine.parallel.plans.messages import (
    BeginStep,
    ImportImage,
    ResetSlot,
    RunStep,
    Stop,
    decode,
    encode,
)
from engine.plan import AgreedStep, SequenceStep, StepKind, StepPlan, placeholder_plan

STEPS = (
    SequenceStep(
        request_id="a-é-漢",
        token_ids=(5, 1 << 40, 0),
        start=7,
        block_table=(3, 9),
        state_slot=2,
        sample=True,
        stored_tokens=64,
        window_start=5,
    ),
    SequenceStep(
        request_id="", token_ids=(1,), start=0, block_table=(1,), state_slot=1, sample=False
    ),
)
IMAGE = SequenceImage(
    num_tokens=70, blocks=(b"block one", bytearray(b"block two")), partial=b"", state=b"\0\1"
)
CALLS = [
    BeginStep(AgreedStep(kind=StepKind.DECODE, step=1 << 40, vote=(1, 0, -7))),
    RunStep(StepPlan(kind=StepKind.PREFILL, step=12, sequences=STEPS, is_placeholder=False)),
    RunStep(placeholder_plan(StepKind.DECODE, 1 << 40, (3, 0, 96))),
    ImportImage(IMAGE, (4, 5), 3),
    ImportImage(dataclasses.replace(IMAGE, state=b"", replay_from=9), (4, 5), 3),
    ResetSlot(6),
    Stop(),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_a_call_survives_the_way(call):
    assert decode(b"".join(encode(call))) == call


def test_plans_have_no_field_that_a_message_leaves_out():
    """A new field of a plan must be sent, or followers run another step than their leader."""
    assert {field.name for field in dataclasses.fields(StepPlan)} == {
        "kind",
        "step",
        "sequences",
        "is_placeholder",
        "group_rows",
    }
    assert {field.name for field in dataclasses.fields(SequenceStep)} == {
        "request_id",
        "token_ids",
        "start",
        "block_table",
        "state_slot",
        "sample",
        "stored_tokens",
        "window_start",
    }
    assert {field.name for field in dataclasses.fields(SequenceImage)} == {
        "num_tokens",
        "blocks",
        "partial",
        "state",
        "replay_from",
    }


@pytest.mark.parametrize("call", CALLS[:-1], ids=lambda call: type(call).__name__)
def test_a_message_that_is_cut_short_is_refused(call):
    message = b"".join(encode(call))
    for length in range(1, len(message)):
        with pytest.raises(ValueError, match="ends early"):
            decode(message[:length])


def test_other_messages_are_refused():
    with pytest.raises(ValueError, match="begins with b'X', which names no call"):
        decode(b"X")
    with pytest.raises(ValueError, match="2 bytes follow a Stop message"):
        decode(b"S12")
