"""One way in: prompts of every form, deadlines, and the checks behind it."""

from __future__ import annotations

import pytest

from balancer.intake import Intake
from balancer.text import TextCodec, TextError
from disagg.v1 import generation_pb2
from runtime.clock import ManualClock
from runtime.errors import InvalidRequest, NotFound
from tests.fakes.front_door import MODEL


def intake(clock: ManualClock | None = None) -> Intake:
    return Intake(
        codec=TextCodec(MODEL),
        clock=clock or ManualClock(),
        default_timeout_s=600.0,
        max_timeout_s=900.0,
    )


def message(**fields: object) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(**fields)  # type: ignore[arg-type]


async def test_every_form_of_a_prompt_gives_the_same_ids() -> None:
    door = intake()
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    ids = await door.encode(message(chat=chat))
    assert await door.encode(message(text="<｜User｜>Hi<｜Assistant｜></think>")) == ids
    assert await door.encode(message(token_ids={"ids": ids})) == ids
    assert await door.encode(generation_pb2.TokenizeRequest(chat=chat)) == ids
    long = "And it came to pass. " * 300  # encoded in a thread
    assert await door.encode(message(text=long)) == door.codec.encode_text(long)


async def test_no_prompt_and_ids_that_are_none() -> None:
    with pytest.raises(InvalidRequest, match="send text, chat or token_ids"):
        await intake().encode(message())
    with pytest.raises(TextError, match=r"token id 2048 is outside"):
        await intake().encode(message(token_ids={"ids": [2048]}))


@pytest.mark.parametrize(("timeout_s", "deadline"), [(None, 607.0), (5.0, 12.0), (1e6, 907.0)])
def test_a_deadline_is_given_kept_or_cut(timeout_s: float | None, deadline: float) -> None:
    door = intake(ManualClock(now=7.0))
    checked = door.check(
        message(), request_id="r", token_ids=[1], arrived_at=door.now(), timeout_s=timeout_s
    )
    assert (checked.arrived_at, checked.deadline) == (7.0, deadline)


def test_the_model_is_checked() -> None:
    door = intake()
    assert door.card.name == "tiny-v4"
    with pytest.raises(NotFound, match="use 'tiny-v4'"):
        door.check(
            message(model="gpt"), request_id="r", token_ids=[1], arrived_at=0.0, timeout_s=None
        )
