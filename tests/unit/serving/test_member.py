"""A leader in the cluster: engines are counted, not ranks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disagg.v1 import membership_pb2
from engine.config import EngineRole
from engine.parallel.layout import parse_layout
from engine.parallel.worker import RankContext
from prefill_service.config import PrefillSettings
from runtime.clock import ManualClock
from runtime.security import Security
from serving import member
from serving.member import announcer


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (EngineRole.PREFILL, membership_pb2.MEMBER_ROLE_PREFILL),
        (EngineRole.DECODE, membership_pb2.MEMBER_ROLE_DECODE),
    ],
)
def test_an_engine_of_several_ranks_is_one_member(
    kind: EngineRole, wire: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards: list[Any] = []
    both = asyncio.Event()

    def beat_over(channel: Any, announcement: Any, **_: Any) -> Any:
        cards.append(announcement._card)
        if len(cards) == 2:
            both.set()

        async def beat() -> float:
            return 10.0

        return beat

    monkeypatch.setattr(member, "beat_over", beat_over)
    settings = PrefillSettings.model_validate(
        {
            "store": {"url": "memory://"},
            "model": {"path": Path("models/tiny-v4"), "name": "served"},
            "announce": {"balancers": ["127.0.0.1:1", "127.0.0.1:2"]},
        }
    )
    parts: Any = SimpleNamespace(
        settings=settings,
        engine=SimpleNamespace(statistics=None, progress_age_s=None),
        layout=SimpleNamespace(block_tokens=32, window_replay_tokens=378),
        # With keyed tags it stores under another fingerprint than its layout's.
        store=SimpleNamespace(fingerprint=b"stored as"[:8]),
        clock=ManualClock(),
    )
    built: Any = SimpleNamespace(
        ports=SimpleNamespace(run=parse_layout("dp=4,cp=2,ep=8")),
        engine=SimpleNamespace(context_tokens=512),
    )
    role: Any = SimpleNamespace(kind=kind)
    host: Any = SimpleNamespace(address="127.0.0.1:9", begin_drain=None, security=Security())
    context = RankContext(rank=6, num_ranks=8, group_name="group")

    async def announce() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(20):
            beats = announcer(role, context, parts, built, "group-r3-x", 3)
            stop: Any = SimpleNamespace()
            [receivers] = beats(host, stop, stack)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(receivers.run())
                await both.wait()
                running.cancel()

    asyncio.run(announce())
    assert len(cards) == 2
    for card in cards:
        # Of eight ranks every second one leads: this is the last of four engines.
        assert (card.rank, card.group_size, card.group_id) == (3, 4, "group")
        assert card.fingerprint == b"stored a"
        assert (card.role, card.model, card.address) == (wire, "served", "127.0.0.1:9")
