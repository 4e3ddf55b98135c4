"""The prefetch call: what it says, that it coalesces, and that its end is told and never raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from balancer.journey.request import Sampling
from balancer.membership import Role
from balancer.remote.legs import LegCall
from balancer.remote.peers import GrpcPeers
from balancer.remote.prefetch import Prefetch, ReadAhead
from runtime.errors import Corrupt, DisaggError, InvalidRequest, Reason
from tests.fakes import members as fakes
from tests.fakes.memberships import member

CALL = LegCall(
    request_id="r",
    attempt=2,
    token_ids=(5, 6, 7),
    num_generated=1,
    sampling=Sampling(seed=1, max_tokens=4),
    cache_salt="tenant",
)


@asynccontextmanager
async def opened(fake: fakes.Member) -> AsyncIterator[Prefetch]:
    peers = GrpcPeers()
    await fake.start()
    try:
        target = member(fake.member_id, Role.DECODE, address=fake.address)
        async with asyncio.timeout(10):
            yield peers.prefetch(target, CALL, "c1", timeout_s=5)
    finally:
        await peers.close()
        await fake.stop()


async def test_it_says_whose_hand_off_it_is_and_how_far_it_has_come() -> None:
    fake = fakes.decode_member()
    async with opened(fake) as prefetch:
        prefetch.stored(1)
        prefetch.stored(3)
        prefetch.stored(2)
        prefetch.finish()
        await fake.prefetch_told.wait()
        [(begin, *counts)] = fake.prefetches
        assert list(begin.begin.token_ids) == [5, 6, 7]
        assert (begin.begin.request_id, begin.begin.attempt) == ("r", 2)
        assert (begin.begin.cache_salt, begin.begin.credit_id) == ("tenant", "c1")
        assert [message.stored.num_blocks for message in counts] == [3], "only the newest counts"
        assert await prefetch.failure() is None
        prefetch.close()
        assert await prefetch.failure(wait_s=1.0) is None, "our own end is none"


async def test_closing_cancels_it_over_there() -> None:
    fake = fakes.decode_member()
    async with opened(fake) as prefetch:
        prefetch.stored(1)
        prefetch.finish()
        await fake.prefetch_told.wait()
        prefetch.close()
        while fake.prefetching:  # noqa: ASYNC110  # the member has no event for its end
            await asyncio.sleep(0.001)


async def test_why_it_failed_is_told() -> None:
    fake = fakes.decode_member()
    fake.prefetch_error = InvalidRequest("no such credit")
    async with opened(fake) as prefetch:
        failure = await prefetch.failure(wait_s=5.0)
        assert isinstance(failure, InvalidRequest)
        assert await prefetch.failure() is failure
        prefetch.close()
        assert await prefetch.failure() is failure


async def test_waiting_for_a_failure_ends_and_breaks_nothing() -> None:
    fake = fakes.decode_member()
    async with opened(fake) as prefetch:
        assert await prefetch.failure(wait_s=0.01) is None
        prefetch.stored(2)
        prefetch.finish()
        await fake.prefetch_told.wait()
        assert fake.prefetches[0][-1].stored.num_blocks == 2


async def test_a_member_that_is_gone_is_told_too() -> None:
    fake = fakes.decode_member()
    async with opened(fake) as prefetch:
        prefetch.stored(1)
        prefetch.finish()
        await fake.prefetch_told.wait()
        await fake.stop()
        failure = await prefetch.failure(wait_s=5.0)
        assert failure is not None
        assert failure.reason in (Reason.PEER_GONE, Reason.CALLER_LEFT)


class Recorded:
    """A prefetch that only remembers."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.error: DisaggError | None = None

    def stored(self, num_blocks: int) -> None:
        self.said.append(num_blocks)

    def finish(self) -> None:
        self.said.append("finish")

    async def failure(self, *, wait_s: float = 0.0) -> DisaggError | None:
        return self.error

    def close(self) -> None:
        self.said.append("close")


async def test_the_call_is_made_when_there_is_something_to_read() -> None:
    made: list[Recorded] = []

    def open_call() -> Recorded:
        made.append(Recorded())
        return made[-1]

    ahead = ReadAhead(open_call, lambda: None)
    ahead.finish()
    assert not ahead.is_open
    assert await ahead.close() is None
    await ahead.raise_if_corrupt()
    assert made == []
    ahead.stored(2)
    ahead.stored(5)
    ahead.finish()
    assert ahead.is_open
    made[0].error = InvalidRequest("x")
    await ahead.raise_if_corrupt()
    assert await ahead.close() is made[0].error
    assert await ahead.close() is None
    assert [call.said for call in made] == [[2, 5, "finish", "close"]]


async def test_a_damaged_block_is_raised() -> None:
    call = Recorded()
    told: list[str] = []
    ahead = ReadAhead(lambda: call, lambda: told.append("damage"))
    ahead.stored(1)
    await ahead.raise_if_corrupt()
    assert told == []
    call.error = Corrupt("bad digest")
    with pytest.raises(Corrupt, match="bad digest"):
        await ahead.raise_if_corrupt(wait_s=1.0)
    assert told == ["damage"]
