"""How late an event loop is: everything a process serves waits that long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runtime.metrics import Metrics

INTERVAL_S = 0.25


async def watch_loop(
    metrics: Metrics,
    role: str,
    *,
    interval_s: float = INTERVAL_S,
    on_turn: Callable[[], None] | None = None,
) -> None:
    """Measures until cancelled.

    Args:
        on_turn: Called each time; by how much it is late is how long the loop stood.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        late_s = max(0.0, loop.time() - due)
        metrics.observe("disagg_event_loop_delay_seconds", late_s, role=role)
        if on_turn is not None:
            on_turn()
