"""One request per id, one deadline, one switch."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from balancer.journey.request import Request, Sampling
from balancer.journey.running import RequestCancelled, RunningRequests, deadline_passed
from runtime.clock import ManualClock
from runtime.errors import AlreadyRunning, InvalidRequest, Reason, TooLate


def request(request_id: str = "r", allowed_s: float = 5.0) -> Request:
    return Request(
        request_id=request_id,
        token_ids=(1,),
        sampling=Sampling(seed=0, max_tokens=1),
        arrived_at=0.0,
        deadline=allowed_s,
    )


async def test_an_id_is_free_again_after_its_request() -> None:
    running = RunningRequests(ManualClock())
    for _ in range(2):
        async with running.scope(request()):
            assert len(running) == 1
            with pytest.raises(AlreadyRunning, match="'r' is running"):
                async with running.scope(request()):
                    pytest.fail("the id is taken")
            assert len(running) == 1
    assert len(running) == 0


async def test_an_answer_goes_on_with_the_prompt_it_began_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("balancer.journey.running._KNOWN_PROMPTS", 2)
    running = RunningRequests(ManualClock())

    async def run(request_id: str, *token_ids: int, last_seq: int = 0) -> None:
        asked = request(request_id)
        async with running.scope(replace(asked, token_ids=token_ids, last_seq=last_seq)):
            pass

    await run("r", 1, 2)
    await run("r", 1, 2, last_seq=3)
    with pytest.raises(InvalidRequest, match="3 tokens of 'r' belong to another prompt"):
        await run("r", 1, 3, last_seq=3)
    await run("r", 1, 3)  # from its beginning it is another request
    await run("r", 1, 3, last_seq=3)
    for other in ("s", "t"):
        await run(other, 1)
    await run("r", 9, last_seq=3)  # not known any more


async def test_others_run_while_a_long_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.journey.running._SLICE_TOKENS", 10)
    running = RunningRequests(ManualClock())
    long = replace(request(), token_ids=tuple(range(95)))
    order: list[str] = []

    async def run(name: str) -> None:
        try:
            async with running.scope(long):
                order.append(name)
                await asyncio.sleep(0)
        except AlreadyRunning:
            order.append(f"{name} refused")

    async def others() -> None:
        for turn in range(9):
            order.append(f"turn {turn}")
            await asyncio.sleep(0)

    await asyncio.gather(run("first"), run("second"), others())
    assert order == [*(f"turn {turn}" for turn in range(9)), "first", "second refused"]


@pytest.mark.parametrize("num_tokens", [1, 9, 10, 11, 95])
async def test_slices_do_not_change_what_a_prompt_is(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = RunningRequests(ManualClock())
    whole = replace(request(), token_ids=tuple(range(num_tokens)))
    async with running.scope(whole):
        pass
    monkeypatch.setattr("balancer.journey.running._SLICE_TOKENS", 10)
    async with running.scope(replace(whole, last_seq=1)):
        pass
    with pytest.raises(InvalidRequest):
        async with running.scope(
            replace(whole, last_seq=1, token_ids=(*whole.token_ids[:-1], 7777))
        ):
            pytest.fail("another last token is another prompt")


async def test_the_deadline_ends_the_body() -> None:
    running = RunningRequests(ManualClock())
    with pytest.raises(TooLate, match=r"longer than its 0\.01 s") as caught:
        async with running.scope(request(allowed_s=0.01)):
            await asyncio.Event().wait()
    assert caught.value.reason is Reason.DEADLINE
    assert deadline_passed(request()).reason is Reason.DEADLINE
    assert len(running) == 0


async def test_a_cancelled_request_ends_by_its_own_exception() -> None:
    running = RunningRequests(ManualClock())

    async def run() -> None:
        async with running.scope(request()):
            assert running.cancel("r")
            assert running.cancel("r")  # twice is harmless
            await asyncio.Event().wait()

    with pytest.raises(RequestCancelled):
        await run()
    assert not running.cancel("r")


async def test_time_outs_of_the_body_are_its_own() -> None:
    running = RunningRequests(ManualClock())
    with pytest.raises(TimeoutError, match="mine"):
        async with running.scope(request()):
            raise TimeoutError("mine")
