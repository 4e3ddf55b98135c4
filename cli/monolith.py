"""The whole model without store and wire: one engine in this process, or engines on rank processes.

The reference that `disagg verify --monolith` runs, and the yardstick for what splitting costs. In a
layout of several ranks each engine takes every n-th case; ranks read the cases from a file and
leave what they generated in another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from cli.errors import CommandError
from cli.golden import Case, Comparison
from engine.assembly import BuiltFollower
from engine.async_engine import AsyncEngine
from engine.build import build_engine, build_rank
from engine.config import EngineRole, EngineSettings
from engine.engine import LLMEngine
from engine.parallel.layout import RunLayout, parse_layout
from engine.parallel.worker import RankContext, run_group
from engine.request import EngineRequest, RequestFailed, SamplingParams, TokenOut
from runtime.clock import SystemClock
from runtime.errors import ExitCode

_KV_BYTES = 256 << 20
_RANK_KV_BYTES = 64 << 20
_MAX_RUNNING = 32
_MAX_ROWS = 512
# Beyond the time for the cases: starting ranks and loading, which a machine may have to share.
_START_S = 300.0
_LEAVE_S = 10.0
_CASES = "cases.json"

# Told the number of moves, and of slots that got another expert.
OnMoves = Callable[[int, int], None]


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
    on_moves: OnMoves | None = None,
) -> tuple[Comparison, ...]:
    """Generates every case greedily, at most `concurrency` at once.

    Args:
        on_moves: told at the end how experts have moved, if they were to.

    Raises:
        TimeoutError: Not done in time.
        ValueError: The model directory or the settings cannot be used (the engine's errors).
    """
    torch.set_num_threads(1)
    built = build_engine(
        model,
        _settings(len(cases), _KV_BYTES),
        kv_quantisers=kv_quantisers,
        min_redundant=redundant,
        rebalance_interval_steps=rebalance_after,
    )
    try:
        comparisons = asyncio.run(
            _run(
                AsyncEngine(built.engine, clock=SystemClock().now),
                cases,
                concurrency,
                timeout_s,
                on_done,
            )
        )
        if on_moves is not None:
            on_moves(*_moves(built.engine))
    finally:
        built.ports.close()
    return comparisons


def run_cases_on_ranks(
    model: Path,
    cases: Sequence[Case],
    run: RunLayout,
    *,
    kv_quantisers: str,
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[], None],
    redundant: int = 0,
    rebalance_after: int | None = None,
    on_moves: OnMoves | None = None,
) -> tuple[Comparison, ...]:
    """As `run_cases`, on a rank process for each rank of a layout; cases are done all at once.

    Raises:
        TimeoutError: Not done in time.
        CommandError: A rank failed; its log says why.
        KeyboardInterrupt: A signal ended the ranks.
    """
    with tempfile.TemporaryDirectory(prefix="disagg-monolith-") as name:
        directory = Path(name)
        content = json.dumps([dataclasses.asdict(case) for case in cases])
        (directory / _CASES).write_text(content, encoding="utf-8")
        code = run_group(
            f"{__name__}:serve_rank",
            run.layout.world_size,
            {
                "directory": name,
                "model": str(model),
                "layout": str(run),
                "kv_quantisers": kv_quantisers,
                "concurrency": -(-concurrency // run.layout.num_engines),
                "timeout_s": timeout_s,
                "redundant": redundant,
                "rebalance_after": rebalance_after,
            },
            group_name="monolith",
            start_timeout_s=max(timeout_s, _START_S),
        )
        results = sorted(directory.glob("engine-*.json"))
        found: dict[int, Comparison] = {}
        moved: tuple[int, ...] = (0, 0)
        for path in results:
            answer = json.loads(path.read_text(encoding="utf-8"))
            if answer is None:
                raise TimeoutError
            for number, tokens, error in answer["cases"]:
                found[number] = Comparison(case=cases[number], found=tuple(tokens), error=error)
                on_done()
            moved = max(moved, tuple(answer["moves"]))
    if code:
        raise CommandError("a rank failed, see above; run `disagg doctor`", ExitCode.FAILED)
    if len(results) < run.layout.num_engines:
        raise KeyboardInterrupt
    if on_moves is not None:
        # Ranks that share experts move them together; replicas of a world for themselves.
        on_moves(*moved)
    return tuple(found[number] for number in range(len(cases)))


def serve_rank(
    context: RankContext, options: Mapping[str, str | int | float | bool | None]
) -> None:
    """The entry of a rank process: leaders do their engine's cases, followers follow."""
    directory, run = Path(str(options["directory"])), parse_layout(str(options["layout"]))
    entries = json.loads((directory / _CASES).read_text(encoding="utf-8"))
    rebalance_after = options["rebalance_after"]
    built = build_rank(
        Path(str(options["model"])),
        dataclasses.replace(
            _settings(len(entries), _RANK_KV_BYTES), rank=context.rank, num_ranks=context.num_ranks
        ),
        context=context,
        run=run,
        kv_quantisers=str(options["kv_quantisers"]),
        min_redundant=int(options["redundant"] or 0),
        rebalance_interval_steps=None if rebalance_after is None else int(rebalance_after),
    )
    try:
        if isinstance(built, BuiltFollower):
            built.follower.follow()
            return
        engine = context.rank // run.engine_size
        timeout_s = float(options["timeout_s"] or 0)
        numbers = range(engine, len(entries), run.layout.num_engines)
        own = [_case(entries[number]) for number in numbers]
        answer: dict[str, object] | None = None
        try:
            comparisons = asyncio.run(
                _run(
                    AsyncEngine(built.engine, clock=SystemClock().now),
                    own,
                    int(options["concurrency"] or 1),
                    timeout_s,
                    lambda: None,
                    # Until the last engine is done, all serve their peers.
                    leave_s=timeout_s + _LEAVE_S,
                )
            )
            answer = {
                "cases": [
                    (number, item.found, item.error)
                    for number, item in zip(numbers, comparisons, strict=True)
                ],
                "moves": _moves(built.engine),
            }
        except TimeoutError:
            pass
        path = directory / f"engine-{engine}.json"
        path.write_text(json.dumps(answer), encoding="utf-8")
    finally:
        built.close()


def _moves(engine: LLMEngine) -> tuple[int, int]:
    """Times experts were placed anew, and slots that changed by it."""
    found = engine.statistics()
    return found.expert_moves or 0, found.changed_slots or 0


def _settings(num_cases: int, kv_memory_bytes: int) -> EngineSettings:
    return EngineSettings(
        role=EngineRole.NORMAL,
        kv_memory_bytes=kv_memory_bytes,
        max_num_seqs=_MAX_RUNNING,
        max_num_batched_tokens=_MAX_ROWS,
        max_waiting=max(num_cases, 1),
    )


def _case(entry: Mapping[str, list[int]]) -> Case:
    return Case(
        name=str(entry["name"]),
        input_ids=tuple(entry["input_ids"]),
        greedy_ids=tuple(entry["greedy_ids"]),
    )


async def _run(
    engine: AsyncEngine,
    cases: Sequence[Case],
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[], None],
    *,
    leave_s: float = _LEAVE_S,
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
        await engine.stop(timeout_s=leave_s)


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
