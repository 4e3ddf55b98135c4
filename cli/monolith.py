"""The whole model in this process: one engine, one rank, no store, no wire.

The reference that `disagg verify --monolith` runs, and the yardstick for what splitting costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cli.golden import Case, Comparison
from engine.async_engine import AsyncEngine
from engine.build import build_engine
from engine.config import EngineRole, EngineSettings
from engine.request import EngineRequest, RequestFailed, SamplingParams, TokenOut
from runtime.clock import SystemClock

_KV_BYTES = 256 << 20
_MAX_RUNNING = 32
_MAX_ROWS = 512


def run_cases(
    model: Path,
    cases: Sequence[Case],
    *,
    kv_quantisers: str,
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[], None],
    redundant: int = 0,
    rebalance_after: int | None = None,
) -> tuple[Comparison, ...]:
    """Generates every case greedily, at most `concurrency` at once.

    Raises:
        TimeoutError: Not done in time.
        ValueError: The model directory or the settings cannot be used (the engine's errors).
    """
    torch.set_num_threads(1)
    settings = EngineSettings(
        role=EngineRole.NORMAL,
        kv_memory_bytes=_KV_BYTES,
        max_num_seqs=_MAX_RUNNING,
        max_num_batched_tokens=_MAX_ROWS,
        max_waiting=max(len(cases), 1),
    )
    built = build_engine(
        model,
        settings,
        kv_quantisers=kv_quantisers,
        min_redundant=redundant,
        rebalance_interval_steps=rebalance_after,
    )
    try:
        return asyncio.run(
            _run(
                AsyncEngine(built.engine, clock=SystemClock().now),
                cases,
                concurrency,
                timeout_s,
                on_done,
            )
        )
    finally:
        built.ports.close()


async def _run(
    engine: AsyncEngine,
    cases: Sequence[Case],
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[], None],
) -> tuple[Comparison, ...]:
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, case: Case) -> Comparison:
        async with slots:
            comparison = await _generate(engine, f"case-{number}", case)
        on_done()
        return comparison

    engine.start()
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*item)) for item in enumerate(cases)]
        return tuple(task.result() for task in tasks)
    finally:
        await engine.stop()


async def _generate(engine: AsyncEngine, request_id: str, case: Case) -> Comparison:
    request = EngineRequest(
        request_id=request_id,
        token_ids=case.input_ids,
        sampling=SamplingParams(max_tokens=len(case.greedy_ids), ignore_eos=True),
    )
    found: list[int] = []
    error = ""
    async with engine.submit(request) as handle:
        async for event in handle:
            if isinstance(event, TokenOut):
                found.append(event.token_id)
            elif isinstance(event, RequestFailed):
                error = str(event.error)
    return Comparison(case=case, found=tuple(found), error=error)
