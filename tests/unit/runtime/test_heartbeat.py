"""The heartbeat loop: intervals, back-off, wake-up, life and end."""

import asyncio

import grpc
import grpc.aio
import pytest

from runtime.clock import ManualClock, system_random
from runtime.errors import Unavailable
from runtime.heartbeat import Heartbeat, HeartbeatLimits, describe

FAST = HeartbeatLimits(
    timeout_s=0.05,
    min_interval_s=0.001,
    max_interval_s=0.01,
    min_backoff_s=0.001,
    max_backoff_s=0.004,
)


class Receiver:
    """Answers announcements from a script, then for ever with an interval."""

    def __init__(self, *script: BaseException | float, wanted: int) -> None:
        self.script = list(script)
        self.wanted = wanted
        self.calls = 0
        self.first = asyncio.Event()
        self.done = asyncio.Event()

    async def beat(self) -> float:
        self.calls += 1
        self.first.set()
        if self.calls >= self.wanted:
            self.done.set()
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, BaseException):
                raise step
            return step
        return 0.001


def heartbeat(receiver: Receiver, limits: HeartbeatLimits = FAST) -> Heartbeat:
    return Heartbeat(
        "balancer", receiver.beat, clock=ManualClock(3.0), uniform=system_random(1), limits=limits
    )


async def run_until_done(loop: Heartbeat, receiver: Receiver) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(loop.run())
        await receiver.done.wait()
        await asyncio.sleep(0)
        task.cancel()


def refused() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="refused"
    )


async def test_it_goes_on_announcing() -> None:
    receiver = Receiver(wanted=5)
    loop = heartbeat(receiver)
    await run_until_done(loop, receiver)
    statistics = loop.statistics()
    assert statistics.beats == 5
    assert (statistics.failures, statistics.last_success) == (0, 3.0)


async def test_it_survives_a_receiver_that_is_not_up() -> None:
    receiver = Receiver(
        refused(), OSError("no route"), Unavailable("x"), TimeoutError(), 0.001, wanted=5
    )
    loop = heartbeat(receiver)
    await run_until_done(loop, receiver)
    statistics = loop.statistics()
    assert (statistics.failures, statistics.consecutive_failures, statistics.beats) == (4, 0, 1)


async def test_a_receiver_that_hangs_counts_as_failed() -> None:
    receiver = Receiver(wanted=2)
    hang = asyncio.Event()

    async def beat() -> float:
        await receiver.beat()
        await hang.wait()
        return 0.0

    loop = Heartbeat("balancer", beat, clock=ManualClock(), uniform=system_random(1), limits=FAST)
    await run_until_done(loop, receiver)
    assert loop.statistics().failures >= 1


async def test_a_change_is_announced_at_once() -> None:
    receiver = Receiver(1000.0, wanted=2)
    limits = HeartbeatLimits(max_interval_s=1000.0)
    loop = heartbeat(receiver, limits)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(loop.run())
        await receiver.first.wait()
        loop.announce_now()
        await receiver.done.wait()
        task.cancel()
    assert receiver.calls == 2


async def test_a_bug_ends_the_loop() -> None:
    receiver = Receiver(ZeroDivisionError("bug"), wanted=1)
    with pytest.raises(ZeroDivisionError):
        await heartbeat(receiver).run()


async def test_pauses_grow_to_the_limit_and_are_jittered() -> None:
    receiver = Receiver(*[refused() for _ in range(12)], wanted=1)
    loop = heartbeat(receiver)
    pauses = [await loop._announce() for _ in range(12)]
    for number, pause in enumerate(pauses):
        full = min(0.004, 0.001 * 2**number)
        assert full / 2 <= pause <= full
    assert len(set(pauses)) > 6


@pytest.mark.parametrize(("asked", "given"), [(0.0, 0.001), (0.005, 0.005), (99.0, 0.01)])
async def test_the_asked_interval_is_bounded(asked: float, given: float) -> None:
    assert await heartbeat(Receiver(asked, wanted=1))._announce() == given


@pytest.mark.parametrize("bad", [{"min_interval_s": 20.0}, {"min_backoff_s": 0.0}])
def test_impossible_limits_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need 0 < min <= max"):
        HeartbeatLimits(**bad)


def test_errors_are_described_in_one_line() -> None:
    assert describe(refused()) == "UNAVAILABLE: refused"
    assert describe(OSError("x")) == "OSError: x"
