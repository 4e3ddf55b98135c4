"""What is stored of a prompt: asked once, in bounded time, and counted when it stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from balancer.journey.prefixes import Prefixes
from balancer.journey.request import Request, Sampling
from balancer.membership import Membership, Role
from balancer.remote.handoffs import StoredLayout
from kvstore.errors import StoreDown
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from tests.fakes.memberships import member


class Store:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[StoredLayout, int, str]] = []
        self.found: list[asyncio.Future[int]] = []
        self.answer: int | Exception | None = 64

    def look_up(
        self, layout: StoredLayout, token_ids: Sequence[int], salt: str
    ) -> asyncio.Future[int]:
        self.asked.append((layout, len(token_ids), salt))
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.found.append(found)
        if isinstance(self.answer, Exception):
            found.set_exception(self.answer)
        elif self.answer is not None:
            found.set_result(self.answer)
        return found


class Bench:
    """A look-up with its surroundings."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self.store, self.metrics = Store(), Metrics()
        self.members = Membership(stale_after_s=5.0, forget_after_s=60.0)
        self.prefixes = Prefixes(
            self.store, self.members, ManualClock(), limit_s=limit_s, metrics=self.metrics
        )

    def announce(self, name: str = "p0", **fields: object) -> None:
        self.members.observe(member(name, Role.PREFILL, **fields), 0.0)

    def given_up(self, cause: str) -> float:
        return self.metrics.value("disagg_prefix_fallback_total", cause=cause)


def asking(num_tokens: int = 100) -> Request:
    return Request(
        request_id="r",
        token_ids=(1,) * num_tokens,
        sampling=Sampling(seed=0, max_tokens=5),
        arrived_at=0.0,
        deadline=99.0,
        cache_salt="t",
    )


async def test_the_store_is_asked_once_under_the_layout_of_the_ready_members() -> None:
    bench = Bench()
    bench.announce("p0", fingerprint=b"old", ready=False)
    bench.announce("p1", fingerprint=b"new", block_tokens=16, window_replay_tokens=70)
    assert await bench.prefixes.stored_tokens(asking()) == 64
    layout = StoredLayout(fingerprint=b"new", block_tokens=16, window_replay_tokens=70)
    assert bench.store.asked == [(layout, 100, "t")]


async def test_nobody_is_asked_when_the_answer_is_known() -> None:
    bench = Bench()
    assert await bench.prefixes.stored_tokens(asking()) == 0  # no member
    bench.announce()
    assert await bench.prefixes.stored_tokens(asking(32)) == 0  # one token is always computed
    off = Bench(limit_s=0.0)
    off.announce()
    assert await off.prefixes.stored_tokens(asking()) == 0
    assert bench.store.asked == off.store.asked == []


async def test_a_store_that_fails_counts_as_nothing_stored() -> None:
    bench = Bench()
    bench.announce()
    bench.store.answer = StoreDown("store", "gone")
    assert await bench.prefixes.stored_tokens(asking()) == 0
    assert bench.given_up("lookup_failed") == 1
    bench.store.answer = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await bench.prefixes.stored_tokens(asking())


async def test_a_store_that_hangs_is_not_waited_for_and_not_piled_upon() -> None:
    bench = Bench(limit_s=0.001)
    bench.announce()
    bench.store.answer = None
    for _ in range(64):
        assert await bench.prefixes.stored_tokens(asking()) == 0
    assert bench.given_up("lookup_late") == 64
    assert await bench.prefixes.stored_tokens(asking()) == 0
    assert bench.given_up("lookup_busy") == 1
    assert len(bench.store.asked) == 64
    for found in bench.store.found[:32]:
        found.set_result(0)
    for found in bench.store.found[32:]:
        found.set_exception(StoreDown("store", "gone"))
    await asyncio.sleep(0)
    bench.store.answer = 32
    assert await bench.prefixes.stored_tokens(asking()) == 32
