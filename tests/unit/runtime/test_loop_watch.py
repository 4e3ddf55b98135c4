"""How late an event loop is."""

from __future__ import annotations

import asyncio
import time

from runtime.loop_watch import watch_loop
from runtime.metrics import Metrics


async def test_a_blocked_loop_is_late() -> None:
    metrics = Metrics()
    turns: list[float] = []
    loop = asyncio.get_running_loop()
    watcher = asyncio.get_running_loop().create_task(
        watch_loop(metrics, "decode", interval_s=0.001, on_turn=lambda: turns.append(loop.time()))
    )
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 0.06)  # what no code of ours may do
    await asyncio.sleep(0.05)
    watcher.cancel()
    name = "disagg_event_loop_delay_seconds_sum{role=decode}"
    assert metrics.snapshot()[name] >= 0.05
    assert turns
