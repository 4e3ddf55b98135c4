"""The store through threads: it may fail, hang or be late, the balancer goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import NamedTuple

import pytest

from balancer.config import StoreSettings
from balancer.remote.handoffs import StoredLayout, StoreHandoffs, open_handoffs
from balancer.remote.legs import Ticket
from disagg.block_hash import chain
from kvstore import PrefixMatch
from kvstore.errors import StoreDown, StoreUrlError
from kvstore.lookup import match_prefix
from kvstore.pressure import Pressure
from runtime.clock import SystemClock
from runtime.metrics import Metrics

TICKET = Ticket(handoff_id="a" * 32, fingerprint=b"layout-1", wire=b"")
LAYOUT = StoredLayout(fingerprint=b"layout-1", block_tokens=4)


class Record(NamedTuple):
    request_id: str
    attempt: int
    handoff_id: str


class FakeStore:
    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self.aborted: list[str] = []
        self.closed = False
        self.pings = 0
        self.audits = 0
        self.error: Exception | None = None
        self.hang: threading.Event | None = None
        self.used_share = 0.0
        self.asked: list[bytes] = []
        self.resume_blocks: int | None = None

    def ping(self) -> None:
        self.pings += 1
        if self.hang is not None:
            self.hang.wait(5)
        if self.error is not None:
            raise self.error

    def abort(self, handoff_id: str) -> None:
        self.ping()
        self.aborted.append(handoff_id)

    def audit(self) -> list[Record]:
        self.ping()
        self.audits += 1
        return [Record("r1", 1, "one"), Record("r1", 2, "two"), Record("r2", 1, "three")]

    def lookup(self, hashes: list[bytes]) -> PrefixMatch:
        self.ping()
        self.asked = hashes
        resume_blocks = len(hashes) if self.resume_blocks is None else self.resume_blocks
        return match_prefix(len(hashes), resume_blocks, 1)

    def pressure(self) -> Pressure:
        self.ping()
        return Pressure(used_share=self.used_share, handoff_share=0.0)

    def close(self) -> None:
        self.closed = True


class Opener:
    def __init__(self) -> None:
        self.stores: list[FakeStore] = []

    def __call__(self, fingerprint: bytes) -> FakeStore:
        self.stores.append(FakeStore(fingerprint))
        return self.stores[-1]


async def test_each_layout_has_its_store_opened_once() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    assert await handoffs.is_reachable()
    assert await handoffs.is_reachable()
    await handoffs.abort(TICKET)
    await handoffs.abort(TICKET)
    assert [store.fingerprint for store in opener.stores] == [bytes(8), b"layout-1"]
    assert opener.stores[1].aborted == [TICKET.handoff_id] * 2
    handoffs.close()
    assert all(store.closed for store in opener.stores)


async def test_a_store_that_is_down_is_unreachable_and_costs_no_request() -> None:
    opener, metrics = Opener(), Metrics()
    handoffs = StoreHandoffs(opener, ping_s=1.0, metrics=metrics)
    await handoffs.is_reachable()
    assert metrics.value("disagg_kv_store_up") == 1
    assert not handoffs.is_down
    await handoffs.abort(TICKET)
    for store in opener.stores:
        store.error = StoreDown("unix:/x", "refused")
    assert not await handoffs.is_reachable()
    assert metrics.value("disagg_kv_store_up") == 0
    assert handoffs.is_down
    await handoffs.abort(TICKET)  # the hand-off's own deadline ends it
    opener.stores[0].error = None
    assert await handoffs.is_reachable()
    handoffs.close()


async def test_a_store_that_hangs_is_unreachable() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=0.01)
    await handoffs.is_reachable()
    opener.stores[0].hang = threading.Event()
    assert not await handoffs.is_reachable()
    assert not await handoffs.is_reachable()
    assert opener.stores[0].pings == 2  # the hung one is not repeated
    opener.stores[0].hang.set()
    handoffs.close()


def test_a_bad_url_is_refused_at_once() -> None:
    with pytest.raises(StoreUrlError, match="gopher"):
        open_handoffs(StoreSettings(url="gopher://x"), SystemClock(), Metrics())


async def test_the_store_of_the_settings_is_opened_late() -> None:
    settings = StoreSettings(url="unix:///nowhere/store.sock", ping_s=0.5)
    handoffs = open_handoffs(settings, SystemClock(), Metrics())
    assert not await handoffs.is_reachable()
    handoffs.close()


async def test_a_lost_ticket_is_found_by_request_and_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("balancer.remote.handoffs._LOST_TICKET_WAIT_S", 0.0)
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    await asyncio.gather(
        handoffs.abort_request(b"layout-1", "r1", 1), handoffs.abort_request(b"layout-1", "r2", 1)
    )
    assert opener.stores[0].aborted == ["one", "three"]
    assert opener.stores[0].audits == 1
    opener.stores[0].error = StoreDown("h:1", "gone")
    await handoffs.abort_request(b"layout-1", "r1", 2)  # told in the log, not to the request
    assert opener.stores[0].aborted == ["one", "three"]
    await asyncio.sleep(0)
    opener.stores[0].error = None
    await handoffs.abort_request(b"layout-1", "r1", 2)
    assert opener.stores[0].aborted[2:] == ["two"]
    handoffs.close()


async def _looked(handoffs: StoreHandoffs) -> str:
    handoffs.look_at_pressure()
    assert handoffs._look is not None
    await asyncio.wait([handoffs._look])
    await asyncio.sleep(0)
    return handoffs.refusal


async def test_a_full_store_refuses_until_it_is_well_below_its_limit() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    assert (handoffs.refusal, handoffs.pressure) == ("", None)
    assert await _looked(handoffs) == ""
    [store] = opener.stores
    store.used_share = 0.9
    assert (await _looked(handoffs)).startswith("90% of the KV store's memory")
    assert handoffs.pressure is not None
    assert handoffs.pressure.used_share == 0.9
    store.used_share = 0.82
    assert (await _looked(handoffs)).startswith("82%")
    store.error = StoreDown("s", "gone")
    assert (await _looked(handoffs)).startswith("82%"), "not known is not relieved"
    store.error, store.used_share = None, 0.7
    assert await _looked(handoffs) == ""
    handoffs.close()


async def test_a_look_that_hangs_is_not_repeated_and_holds_nobody_up() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    await _looked(handoffs)
    [store] = opener.stores
    store.hang = threading.Event()
    for _ in range(5):
        handoffs.look_at_pressure()
    assert handoffs.refusal == ""
    store.hang.set()
    assert handoffs._look is not None
    await asyncio.wait([handoffs._look])
    assert store.pings == 2
    handoffs.close()


async def test_one_look_up_tells_what_prefill_need_not_compute() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    tokens = tuple(range(12))
    assert await handoffs.look_up(LAYOUT, tokens, "salt") == 8  # the last is computed
    [store] = opener.stores
    assert (store.fingerprint, store.pings) == (b"layout-1", 1)
    assert store.asked == chain(tokens[:8], 4, salt="salt")
    assert await handoffs.look_up(LAYOUT, tokens[:4], "") == 0
    assert store.pings == 1  # nothing could be resumed
    store.resume_blocks = 0
    assert await handoffs.look_up(LAYOUT, tokens, "") == 0
    replaying = dataclasses.replace(LAYOUT, window_replay_tokens=5)
    assert await handoffs.look_up(replaying, tokens, "") == 3
    store.error = StoreDown("store", "gone")
    with pytest.raises(StoreDown):
        await handoffs.look_up(LAYOUT, tokens, "")
    handoffs.close()


async def test_look_ups_that_hang_leave_pings_alone() -> None:
    opener = Opener()
    handoffs = StoreHandoffs(opener, ping_s=1.0)
    store = FakeStore(b"layout-1")
    store.hang = threading.Event()
    handoffs._stores[b"layout-1"] = store
    found = [handoffs.look_up(LAYOUT, tuple(range(12)), "") for _ in range(8)]
    assert await handoffs.is_reachable()
    store.hang.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*found) == [8] * 8
    handoffs.close()
