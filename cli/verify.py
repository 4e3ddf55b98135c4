"""`disagg verify GOLDEN`: replays a golden file and compares token by token."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.access import access_of
from cli.errors import CommandError, usage
from cli.golden import Case, Comparison, Golden, Verdict, load_golden
from cli.local import signals
from cli.local.figures import Moves, expert_moves
from cli.local.topology import Topology, add_rank_flags, check_extras, topology_of
from cli.output import plural, say, show, show_json
from runtime.clock import SystemClock
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from client import AsyncClient


_GRACE_S = 10.0


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="replay a golden file and compare every token",
        description="Starts what it needs, replays every prompt of a golden file at once and "
        "compares token ids; exit code 0 only if all are equal.",
        epilog="example:  disagg verify models/tiny-v4/golden.json --decode-ranks 4",
        allow_abbrev=False,
    )
    parser.add_argument("golden", type=Path, metavar="GOLDEN", help="golden file")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="model (default: the golden file's directory)"
    )
    parser.add_argument(
        "--monolith",
        action="store_true",
        help="engines that do both, without services: one in this process, or as many ranks as "
        "--prefill-layout says",
    )
    add_rank_flags(parser)
    parser.add_argument(
        "--rebalance-after", type=int, metavar="STEPS", help="move experts after so many steps"
    )
    parser.add_argument(
        "--concurrency",
        type=_concurrency,
        default=0,
        metavar="N|all",
        help="prompts in flight (default all)",
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds (default 600)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the comparison."""
    if options.timeout <= 0:
        raise usage(f"--timeout {options.timeout:g}: give seconds above 0")
    golden = load_golden(options.golden)
    topology = topology_of(options, model=options.model or options.golden.parent)
    concurrency = min(options.concurrency or len(golden.cases), len(golden.cases))
    progress = _Progress(len(golden.cases))
    moves: list[Moves] = []
    clock = SystemClock()
    started = clock.now()
    try:
        if options.monolith:
            comparisons = _monolith(options, golden, topology, concurrency, progress.step, moves)
        else:
            comparisons = _system(options, golden, topology, concurrency, progress.step, moves)
    except TimeoutError as error:
        raise CommandError(
            f"not done after {options.timeout:g} s; allow more with --timeout", ExitCode.FAILED
        ) from error
    finally:
        progress.end()
    verdict = Verdict(comparisons=comparisons)
    for item in verdict.comparisons:
        if not item.is_equal:
            say(_explain(item))
    repeated = sum(item.attempts > 1 for item in verdict.comparisons)
    if repeated:  # equal all the same, but nobody broke anything on purpose here
        say(f"  {plural(repeated, 'prompt')} needed more than one attempt")
    for moved in moves:
        say(f"  {moved}")
    say(f"{plural(len(golden.cases), 'prompt')} in {clock.now() - started:.1f} s, start included")
    if options.json:
        more: dict[str, object] = {}
        if topology.rebalance_after is not None:
            more["moves"] = sum(moved.count for moved in moves)
            more["changed_slots"] = sum(moved.changed_slots for moved in moves)
        show_json(verdict.as_json() | more)
    else:
        show(str(verdict))
    return ExitCode.OK if verdict.is_equal else ExitCode.FAILED


def _monolith(
    options: argparse.Namespace,
    golden: Golden,
    topology: Topology,
    concurrency: int,
    on_done: Callable[[], None],
    moves: list[Moves],
) -> tuple[Comparison, ...]:
    given = [
        f"--decode-{form}"
        for form in ("ranks", "layout")
        if getattr(options, f"decode_{form}") is not None
    ]
    if given:
        raise usage(
            f"--monolith runs engines that do both; leave out {', '.join(given)} and give their "
            "layout with --prefill-layout"
        )
    check_extras(options)
    from cli import monolith
    from engine.config import EngineRole
    from engine.fit import require_layout
    from engine.model.config import ModelConfig
    from engine.parallel.layout import data_parallel, parse_layout

    name, side = topology.model.resolve().name, topology.prefill
    run = parse_layout(side.layout) if side.layout else data_parallel(side.ranks)
    kwargs: dict[str, Any] = {  # Any: two functions take the same keywords
        "kv_quantisers": golden.kv_quantisers,
        "concurrency": concurrency,
        "timeout_s": options.timeout,
        "on_done": on_done,
        "redundant": topology.redundant,
        "rebalance_after": topology.rebalance_after,
    }
    if topology.rebalance_after is not None:
        kwargs["on_moves"] = lambda count, slots: moves.append(Moves("", count, slots))
    try:
        config = ModelConfig.load(topology.model)
        require_layout(config, run, EngineRole.NORMAL, min_redundant=topology.redundant)
        if side.ranks == 1:
            say(f"one engine in this process, model {name}")
            return monolith.run_cases(topology.model, golden.cases, **kwargs)
        engines = plural(run.layout.num_engines, "engine")
        say(f"{engines} on {plural(side.ranks, 'rank')} of this machine ({run}), model {name}")
        return monolith.run_cases_on_ranks(topology.model, golden.cases, run, **kwargs)
    except ValueError as error:
        # The engine's errors about checkpoints and settings; each says what to mend.
        raise usage(f"{topology.model}: {error}") from error


def _system(
    options: argparse.Namespace,
    golden: Golden,
    topology: Topology,
    concurrency: int,
    on_done: Callable[[], None],
    moves: list[Moves],
) -> tuple[Comparison, ...]:
    import dataclasses

    from cli.local.launcher import StartLate, running_system

    topology = dataclasses.replace(topology, kv_quantisers=golden.kv_quantisers)
    try:
        with running_system(topology, start_timeout_s=options.timeout) as system:
            comparisons = signals.run(
                _replay(system.address, golden.cases, concurrency, options.timeout, on_done)
            )
            if topology.rebalance_after is not None:
                moves += expert_moves(system.address)
            return comparisons
    except StartLate as error:
        raise CommandError(
            f"the system was not ready after {options.timeout:g} s; allow more with --timeout",
            ExitCode.FAILED,
        ) from error


async def _replay(
    address: str,
    cases: Sequence[Case],
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[], None],
) -> tuple[Comparison, ...]:
    from client import AsyncClient

    slots = asyncio.Semaphore(concurrency)

    async def one(client: AsyncClient, number: int, case: Case) -> Comparison:
        async with slots:
            comparison = await _ask(client, f"verify-{number}", case)
        on_done()
        return comparison

    async with AsyncClient(address, timeout_s=timeout_s, access=access_of()) as client:
        # The deadlines of the calls come first and name the prompts; this one is a safety net.
        async with asyncio.timeout(timeout_s + _GRACE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(client, *item)) for item in enumerate(cases)]
        return tuple(task.result() for task in tasks)


async def _ask(client: AsyncClient, request_id: str, case: Case) -> Comparison:
    from client import ClientError, Sampling

    sampling = Sampling(temperature=0.0, max_tokens=len(case.greedy_ids), ignore_eos=True)
    found: list[int] = []
    attempts = 1
    try:
        async for chunk in client.stream(case.input_ids, request_id=request_id, sampling=sampling):
            found.extend(chunk.token_ids)
            attempts = chunk.attempt
    except ClientError as error:
        return Comparison(
            case=case, found=tuple(found), error=f"{error.reason or error.code}: {error}"
        )
    return Comparison(case=case, found=tuple(found), attempts=attempts)


def _explain(item: Comparison) -> str:
    difference = item.difference()
    text = (
        f"  differs: {difference['prompt']} ({difference['prompt_tokens']} tokens) at generated "
        f"token {difference['position']}: expected {difference['expected']}, found "
        f"{difference['found']}"
    )
    return f"{text}; {item.error}" if item.error else text


class _Progress:
    """A counter on the terminal; silent where standard error is none."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._is_shown = sys.stderr.isatty()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        if self._is_shown:
            sys.stderr.write(f"\r  {self._done}/{self._total} prompts")
            sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line."""
        if self._is_shown and self._done:
            sys.stderr.write("\n")


def _concurrency(text: str) -> int:
    """Number of prompts in flight; 0 means all."""
    if text == "all":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a positive number nor `all`")
    return int(text)
