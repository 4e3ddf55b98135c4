"""Both services in one process: real paths, real engines with the toy model, a store in memory.

A `Stage` holds a store call at its door, so that a test can act while a request is exactly there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc.aio

from decode_service.credits import Credits
from decode_service.decode import DecodeEvent, DecodePath, Resumed, SequenceRequest, Tokens
from decode_service.fetcher import Fetcher
from decode_service.prefetch import Prefetches
from engine.async_engine import AsyncEngine
from engine.config import EngineRole, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.handoff import LayoutError, SequenceImage
from engine.plan import StepPlan, StepResult
from engine.request import SamplingParams
from kvstore import KvStore, KvStoreConfig, Ticket
from kvstore.backends.memory import MemoryBackend
from prefill_service.boundary import BoundaryPolicy
from prefill_service.prefill import (
    Committed,
    FirstToken,
    PrefillEvent,
    PrefillPath,
    PromptRequest,
)
from runtime.budget import Budget
from runtime.channel import open_channel
from runtime.clock import Clock, ManualClock, SystemClock
from runtime.errors import ErrorMap
from runtime.metrics import Metrics
from runtime.serve import DrainSettings, Host, ListenSettings
from tests.fakes.toy_runner import EOS, VOCAB, ToyRunner

BLOCK = 4
BOUND_S = 20.0


class ToyLayout:
    """Sizes of the toy model's state: four bytes a token, sixteen for the running hash."""

    block_tokens = BLOCK
    block_bytes = 4 * BLOCK
    fingerprint = bytes.fromhex("0123456789abcdef")

    def __init__(self, window_replay_tokens: int = 10**9) -> None:
        self.window_replay_tokens = window_replay_tokens

    def partial_bytes(self, num_tokens: int) -> int:
        return 4 * (num_tokens % BLOCK)

    def state_bytes(self, num_tokens: int) -> int:
        return 16

    def check(self, image: SequenceImage) -> None:
        if len(image.blocks) != image.num_tokens // BLOCK:
            raise LayoutError(f"{len(image.blocks)} blocks for {image.num_tokens} tokens")


class Stage:
    """A door in front of one kind of store call: open, or closed until a test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(BOUND_S), "the test never opened the stage"

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, BOUND_S), "nobody came to the stage"


class StagedBackend(MemoryBackend):
    """The store in memory, with a stage and a failure for each kind of call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.stages = {
            name: Stage() for name in ("lookup", "put", "get", "commit", "acquire", "fence")
        }
        self.failures: dict[str, Exception] = {}

    def _pass(self, name: str) -> None:
        self.stages[name].pass_through()
        if name in self.failures:
            raise self.failures[name]

    def lookup(self, keys, *, extend_ms=0):  # type: ignore[no-untyped-def]
        self._pass("lookup")
        return super().lookup(keys, extend_ms=extend_ms)

    def put(self, items):  # type: ignore[no-untyped-def]
        self._pass("put")
        return super().put(items)

    def get(self, keys, on_value, *rest):  # type: ignore[no-untyped-def]
        self._pass("get")
        return super().get(keys, on_value, *rest)

    def fence(self, key, attempt, ttl_ms):  # type: ignore[no-untyped-def]
        self._pass("fence")
        return super().fence(key, attempt, ttl_ms)

    def commit(self, keys, body, grant):  # type: ignore[no-untyped-def]
        self._pass("commit")
        return super().commit(keys, body, grant)

    def acquire(self, keys, grant, fencing_token):  # type: ignore[no-untyped-def]
        self._pass("acquire")
        return super().acquire(keys, grant, fencing_token)


def toy_engine(role: EngineRole, **settings: int) -> tuple[LLMEngine, ToyRunner]:
    """An engine of one rank with the toy model."""
    chosen = EngineSettings(
        role=role,
        block_tokens=BLOCK,
        **{
            "num_pages": 65,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "max_waiting": 8,
            **settings,
        },
    )
    cache = chosen.cache_size(1)
    runner = ToyRunner(cache.num_pages, cache.num_state_slots, BLOCK)
    limits = ModelLimits(vocab_size=VOCAB, max_model_len=200, eos_token_ids=(EOS,))
    engine = LLMEngine(settings=chosen, limits=limits, cache=cache, runner=runner)
    return engine, runner


@dataclass(kw_only=True)
class Rig:
    """Everything of a prefill and a decode rank but the wire."""

    backend: StagedBackend
    store: KvStore
    prefill: PrefillPath
    decode: DecodePath
    prefill_engine: AsyncEngine
    decode_engine: AsyncEngine
    prefill_core: LLMEngine
    decode_core: LLMEngine
    prefill_runner: ToyRunner
    decode_runner: ToyRunner
    prefill_budget: Budget
    decode_budget: Budget
    prefetch_budget: Budget
    prefetches: Prefetches
    metrics: Metrics
    credit_clock: ManualClock
    layout: ToyLayout
    fetcher: Fetcher

    async def assert_at_rest(self) -> None:
        """No lease, no page, no slot, no queue entry, no byte in flight is held by anybody."""
        await until(lambda: not self.held(), lambda: f"still held: {self.held()}")
        for core in (self.prefill_core, self.decode_core):
            core.check_integrity()
        assert self.store.audit() == []

    def held(self) -> dict[str, object]:
        """What anybody holds now, by name; empty at rest."""
        found: dict[str, object] = {}
        engines = {"prefill": self.prefill_engine, "decode": self.decode_engine}
        for name, engine in engines.items():
            now = engine.statistics()
            found |= {
                f"{name} running": now.running,
                f"{name} waiting": now.waiting,
                f"{name} pages": now.kv_capacity_tokens - now.free_pages * BLOCK,
                f"{name} slots": now.max_running - now.free_slots,
            }
        found |= {f"prefill {key}": value for key, value in _facts(self.prefill.statistics())}
        found |= {f"decode {key}": value for key, value in _facts(self.decode.statistics())}
        found["leases"] = self.store.audit()
        return {name: value for name, value in found.items() if value}


def _facts(statistics: object) -> list[tuple[str, object]]:
    return list(dataclasses.asdict(statistics).items())  # type: ignore[call-overload]


async def until(
    condition: Callable[[], bool], message: Callable[[], str] = lambda: "it never happened"
) -> None:
    """Waits for something that a thread or another task is about to bring about."""
    try:
        async with asyncio.timeout(BOUND_S):
            while not condition():  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(message()) from None


@contextlib.asynccontextmanager
async def running_rig(
    *,
    prefill_bytes: int = 1 << 20,
    decode_bytes: int = 1 << 20,
    prefetched_bytes: int = 1 << 20,
    state_every_blocks: int = 2,
    window_replay_tokens: int = 10**9,
    prefill: dict[str, int] | None = None,
    decode: dict[str, int] | None = None,
    credit_clock: Clock | None = None,
) -> AsyncIterator[Rig]:
    """Starts both ranks; stops them and checks the engines at the end."""
    clock, metrics = SystemClock(), Metrics()
    manual_clock = ManualClock()
    backend = StagedBackend(time.monotonic)
    layout = ToyLayout(window_replay_tokens)
    store = KvStore(
        backend,
        KvStoreConfig(block_tokens=BLOCK, owner="rig"),
        fingerprint=layout.fingerprint,
        clock=time.monotonic,
    )
    prefill_core, prefill_runner = toy_engine(EngineRole.PREFILL, **(prefill or {}))
    decode_core, decode_runner = toy_engine(EngineRole.DECODE, **(decode or {}))
    prefill_engine = AsyncEngine(prefill_core, clock=time.monotonic)
    decode_engine = AsyncEngine(decode_core, clock=time.monotonic)
    prefill_budget = Budget("bytes in flight", prefill_bytes, max_waiting=2)
    decode_budget = Budget("fetched bytes", decode_bytes, max_waiting=2)
    prefetch_budget = Budget("prefetched bytes", prefetched_bytes, max_waiting=0)
    with ThreadPoolExecutor(4) as executor:
        prefetches = Prefetches(
            store=store,
            layout=layout,  # type: ignore[arg-type]
            executor=executor,
            budget=prefetch_budget,
            metrics=metrics,
        )
        fetcher = Fetcher(
            store=store,
            layout=layout,  # type: ignore[arg-type]
            executor=executor,
            clock=clock,
            metrics=metrics,
        )
        rig = Rig(
            backend=backend,
            store=store,
            prefill=PrefillPath(
                engine=prefill_engine,
                store=store,
                layout=layout,  # type: ignore[arg-type]
                policy=BoundaryPolicy(every_blocks=state_every_blocks),
                budget=prefill_budget,
                executor=executor,
                writers=executor,
                clock=clock,
                metrics=metrics,
            ),
            decode=DecodePath(
                engine=decode_engine,
                fetcher=fetcher,
                prefetches=prefetches,
                fingerprint=layout.fingerprint,
                credits=Credits(ttl_s=5.0),
                budget=decode_budget,
                clock=credit_clock or manual_clock,
                metrics=metrics,
            ),
            prefill_engine=prefill_engine,
            decode_engine=decode_engine,
            prefill_core=prefill_core,
            decode_core=decode_core,
            prefill_runner=prefill_runner,
            decode_runner=decode_runner,
            prefill_budget=prefill_budget,
            decode_budget=decode_budget,
            prefetch_budget=prefetch_budget,
            prefetches=prefetches,
            metrics=metrics,
            credit_clock=manual_clock,
            layout=layout,
            fetcher=fetcher,
        )
        prefill_engine.start()
        decode_engine.start()
        try:
            async with asyncio.timeout(3 * BOUND_S):
                yield rig
        finally:
            for stage in backend.stages.values():
                stage.open()
            await prefill_engine.stop()
            await decode_engine.stop()


def tokens(length: int, salt: int = 0) -> tuple[int, ...]:
    """A prompt of the toy model; prompts of one salt are prefixes of each other."""
    return tuple((7 * i + salt * 13 + 2) % VOCAB for i in range(length))


def prompt(
    token_ids: Sequence[int], *, request_id: str = "r-1", attempt: int = 1, **changes: object
) -> PromptRequest:
    """A prompt to prefill; `changes` are its other fields, or fields of its sampling."""
    own = {name: changes.pop(name) for name in list(changes) if name in _PROMPT_FIELDS}
    return PromptRequest(
        request_id=request_id,
        attempt=attempt,
        token_ids=tuple(token_ids),
        sampling=_sampling(changes),
        **{"num_generated": 0, **own},  # type: ignore[arg-type]
    )


def sequence(
    ticket: Ticket, token_ids: Sequence[int], *, attempt: int | None = None, **changes: object
) -> SequenceRequest:
    """A sequence to decode, made from its ticket."""
    own = {name: changes.pop(name) for name in list(changes) if name in _SEQUENCE_FIELDS}
    return SequenceRequest(
        **{
            "request_id": ticket.request_id,
            "attempt": ticket.attempt if attempt is None else attempt,
            "ticket": ticket,
            "token_ids": tuple(token_ids),
            "num_generated": 0,
            "sampling": _sampling(changes),
            **own,
        }  # type: ignore[arg-type]
    )


_PROMPT_FIELDS = {"num_generated", "cache_salt", "bypass_prefix", "traceparent"}
_SEQUENCE_FIELDS = {"num_generated", "cache_salt", "credit_id", "request_id"}


def _sampling(changes: dict[str, object]) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **changes})  # type: ignore[arg-type]


def hold_steps(rig: Rig) -> threading.Event:
    """Lets no step of prefill run until the event is set."""
    gate, run = threading.Event(), rig.prefill_runner.run

    def held(plan: StepPlan) -> StepResult:
        assert gate.wait(BOUND_S), "the test never opened the gate"
        return run(plan)

    rig.prefill_runner.run = held  # type: ignore[method-assign]
    return gate


async def run_prefill(rig: Rig, request: PromptRequest) -> list[PrefillEvent]:
    """All events of a prompt."""
    events: list[PrefillEvent] = []

    async def emit(event: PrefillEvent) -> None:
        events.append(event)

    await rig.prefill.run(request, emit)
    return events


def outcome(events: Sequence[PrefillEvent]) -> tuple[int, Ticket | None]:
    """First token and ticket of a prompt's events."""
    (first,) = [event for event in events if isinstance(event, FirstToken)]
    (committed,) = [event for event in events if isinstance(event, Committed)]
    return first.token.token_id, committed.ticket


async def run_decode(rig: Rig, request: SequenceRequest) -> list[int]:
    """All tokens of a sequence, their numbers checked."""
    found: list[int] = []
    number = request.num_generated + 1

    async def emit(event: DecodeEvent) -> None:
        nonlocal number
        if isinstance(event, Resumed):
            assert found == []
            return
        assert isinstance(event, Tokens)
        for token in event.tokens:
            number += 1
            assert token.number == number
            found.append(token.token_id)

    await rig.decode.run(request, emit)
    return found


async def journey(rig: Rig, token_ids: Sequence[int], **changes: object) -> list[int]:
    """All generated tokens of a prompt that travels through both ranks."""
    request = prompt(token_ids, **changes)
    first, ticket = outcome(await run_prefill(rig, request))
    if ticket is None:
        return [first]
    asked = SequenceRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        ticket=ticket,
        token_ids=request.token_ids,
        num_generated=request.num_generated,
        sampling=request.sampling,
        cache_salt=request.cache_salt,
    )
    return [first, *await run_decode(rig, asked)]


async def cancel_when(
    work: Callable[[Callable[[object], Awaitable[None]]], Awaitable[None]],
    when: Callable[[object], bool],
) -> None:
    """Runs `work(emit)` and cancels it while `emit` holds the first event that `when` picks."""
    held = asyncio.Event()

    async def emit(event: object) -> None:
        if when(event):
            held.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(_as_coroutine(work(emit)))
    async with asyncio.timeout(BOUND_S):
        reached = asyncio.ensure_future(held.wait())
        await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if task.done():
            await task
            raise AssertionError("the work ended before it came to that event")
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


@contextlib.asynccontextmanager
async def serving(
    role: str,
    services: Sequence[str],
    work: frozenset[str],
    errors: ErrorMap,
    register: Callable[[grpc.aio.Server], None],
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a host that serves what `register` adds, with all interceptors in force."""
    host = Host(
        role=role,
        clock=SystemClock(),
        metrics=Metrics(),
        work=work,
        services=services,
        listen=ListenSettings(),
        drain=DrainSettings(),
        errors=errors,
    )
    register(host.server)
    address = await host.start()
    try:
        async with open_channel(address) as channel:
            yield channel
    finally:
        await host.stop(0)
