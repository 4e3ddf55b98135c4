"""Whatever arrives when, in however little memory: every stream equals the one computed alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineRole, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.kv_connector import InMemoryExport
from engine.plan import StepKind
from engine.request import (
    EngineEvent,
    EngineRequest,
    PoolFull,
    RequestFinished,
    SamplingParams,
    TokenOut,
    is_final,
)
from tests.fakes.toy_runner import EOS, VOCAB, ToyRunner, expected_tokens

CONTEXT = 96


@dataclass(frozen=True)
class Arrival:
    at_step: int
    length: int
    salt: int
    max_tokens: int
    min_tokens: int
    temperature: float
    seed: int
    abort_after: int | None
    pause_at: int
    pause_steps: int

    def prompt(self) -> tuple[int, ...]:
        return tuple((5 * i * i + self.salt * 31 + 2) % VOCAB for i in range(self.length))

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=min(self.min_tokens, self.max_tokens),
            temperature=self.temperature,
            seed=self.seed,
            top_p=0.9 if self.seed % 2 else 1.0,
            repetition_penalty=1.2 if self.seed % 3 == 0 else 1.0,
        )


arrivals = st.lists(
    st.builds(
        Arrival,
        at_step=st.integers(0, 30),
        length=st.integers(1, 40),
        salt=st.integers(0, 50),
        max_tokens=st.integers(0, 30),
        min_tokens=st.integers(0, 30),
        temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
        seed=st.integers(0, 2**64 - 1),
        abort_after=st.one_of(st.none(), st.none(), st.integers(0, 25)),
        pause_at=st.integers(0, 50),
        pause_steps=st.sampled_from([0, 0, 0, 3, 40]),
    ),
    min_size=1,
    max_size=7,
)
machines = st.fixed_dictionaries(
    {
        "block_tokens": st.sampled_from([1, 4, 8]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 40),
        "prefill_attempt_interval": st.integers(2, 4),
        "prefill_any_attempt_interval": st.integers(4, 9),
        "late_scheduling": st.booleans(),
    }
)


def make_engine(
    machine: dict[str, int], num_tokens: int, role: EngineRole
) -> tuple[LLMEngine, ToyRunner]:
    block_tokens = machine["block_tokens"]
    settings = EngineSettings(
        role=role, num_pages=max(2, num_tokens // block_tokens + 1), **machine
    )
    cache = settings.cache_size(1)
    runner = ToyRunner(cache.num_pages, cache.num_state_slots, block_tokens)
    limits = ModelLimits(vocab_size=VOCAB, max_model_len=CONTEXT, eos_token_ids=(EOS,))
    return LLMEngine(settings=settings, limits=limits, cache=cache, runner=runner), runner


class Run:
    """Feeds arrivals and aborts to an engine and checks it after every step."""

    def __init__(self, engine: LLMEngine, block_tokens: int) -> None:
        self.engine = engine
        self.block_tokens = block_tokens
        self.streams: dict[str, list[EngineEvent]] = {}

    def go(
        self,
        requests: list[tuple[int, int | None, EngineRequest]],
        pauses: dict[str, tuple[int, int]] | None = None,
    ) -> None:
        refused = set()
        for step in range(5000):
            for name, (start, end) in (pauses or {}).items():
                if step in (start, end):
                    self.engine.set_paused(name, step == start != end)
            for at_step, abort_after, request in requests:
                name = request.request_id
                if at_step == step:
                    self.streams[name] = []
                    try:
                        self.engine.add(request)
                    except PoolFull:
                        refused.add(name)
                if abort_after is not None and at_step + abort_after == step:
                    self.engine.abort(name)
            _, events = self.engine.step()
            self.engine.check_integrity()
            for event in events:
                assert not any(is_final(earlier) for earlier in self.streams[event.request_id])
                self.streams[event.request_id].append(event)
            if step > 95 and not self.engine.has_work():
                break
        assert not self.engine.has_work(), "the engine does not come to an end"
        statistics = self.engine.statistics()
        assert statistics.running == statistics.waiting == 0
        assert statistics.free_pages * self.block_tokens == statistics.kv_capacity_tokens
        for name in refused:
            del self.streams[name]

    def check(self, name: str, expected: list[int], skip: int = 0) -> None:
        stream = self.streams[name]
        assert is_final(stream[-1])
        tokens = [event for event in stream if isinstance(event, TokenOut)]
        assert [event.number for event in tokens] == [
            number + skip for number in range(1, len(tokens) + 1)
        ]
        ids = [event.token_id for event in tokens]
        last = stream[-1]
        if isinstance(last, RequestFinished) and last.finish_reason == "abort":
            assert ids == expected[: len(ids)]
        else:
            assert ids == expected


@given(arrivals=arrivals, machine=machines, num_tokens=st.integers(8, 160))
@pytest.mark.medium
def test_streams_do_not_depend_on_neighbours_chunks_or_memory(
    arrivals: list[Arrival], machine: dict[str, int], num_tokens: int
) -> None:
    engine, _ = make_engine(machine, num_tokens, EngineRole.NORMAL)
    run = Run(engine, machine["block_tokens"])
    run.go(
        [
            (
                arrival.at_step,
                arrival.abort_after,
                EngineRequest(
                    request_id=f"r{i}", token_ids=arrival.prompt(), sampling=arrival.sampling()
                ),
            )
            for i, arrival in enumerate(arrivals)
        ],
        {
            f"r{i}": (arrival.pause_at, arrival.pause_at + arrival.pause_steps)
            for i, arrival in enumerate(arrivals)
        },
    )
    for i, arrival in enumerate(arrivals):
        if f"r{i}" in run.streams:
            run.check(
                f"r{i}", expected_tokens(arrival.prompt(), arrival.sampling(), context=CONTEXT)
            )


@given(
    arrivals=arrivals,
    machine=machines,
    num_tokens=st.integers(48, 160),
    stride=st.integers(0, 3),
    keep=st.integers(0, 3),
    replay=st.sampled_from([0, 1, 5, 17]),
)
@pytest.mark.medium
def test_streams_survive_prefix_reuse_hand_over_and_memory_pressure(
    arrivals: list[Arrival],
    machine: dict[str, int],
    num_tokens: int,
    stride: int,
    keep: int,
    replay: int,
) -> None:
    """Prefill, prefill again from a stored prefix, then decode; some decode from that prefix.

    With `replay` the prefix comes without its state, and so many of its tokens run again.
    """
    block_tokens = machine["block_tokens"]
    exports = {
        f"r{i}": InMemoryExport(block_tokens, state_every_blocks=stride)
        for i in range(len(arrivals))
    }

    def prefill(images: bool) -> Run:
        engine, runner = make_engine(machine, num_tokens, EngineRole.PREFILL)
        run = Run(engine, block_tokens)
        requests = []
        for i, arrival in enumerate(arrivals):
            export = exports[f"r{i}"]
            ends = [end for end in sorted(export.states) if end < arrival.length]
            image = export.prefix_image(ends[keep % len(ends)]) if images and ends else None
            if image is not None and image.num_tokens > replay > 0:
                begin = image.num_tokens - replay
                image = dataclasses.replace(image, state=b"", replay_from=begin)
            request = EngineRequest(
                request_id=f"r{i}",
                token_ids=arrival.prompt(),
                sampling=arrival.sampling(),
                stop_after_first=True,
                image=image,
                export=InMemoryExport(block_tokens, given=export) if images else export,
            )
            requests.append((arrival.at_step, None, request))
        run.go(requests)
        for request in (request for _, _, request in requests):
            now, before = request.export, exports[request.request_id]
            assert isinstance(now, InMemoryExport)
            assert (now.blocks, now.states, now.tail) == (before.blocks, before.states, before.tail)
        assert all(plan.kind is StepKind.PREFILL for plan in runner.plans)
        return run

    first, second = prefill(False), prefill(True)
    decode, runner = make_engine(machine, num_tokens, EngineRole.DECODE)
    requests, expectations = [], {}
    for i, arrival in enumerate(arrivals):
        name = f"r{i}"
        expected = expected_tokens(arrival.prompt(), arrival.sampling(), context=CONTEXT)
        first.check(name, expected[:1])
        second.check(name, expected[:1])
        event = second.streams[name][-1]
        if not isinstance(event, TokenOut) or event.finish_reason is not None:
            continue
        export = exports[name]
        ends = [end for end in sorted(export.states) if end <= arrival.length]
        image = export.image()
        if ends and keep == 1:
            image = export.prefix_image(ends[0])
        expectations[name] = expected[1:]
        requests.append(
            (
                arrival.at_step,
                arrival.abort_after,
                EngineRequest(
                    request_id=name,
                    token_ids=(*arrival.prompt(), event.token_id),
                    num_generated=1,
                    sampling=arrival.sampling(),
                    image=image,
                ),
            )
        )
    run = Run(decode, block_tokens)
    run.go(requests)
    assert all(plan.kind is StepKind.DECODE for plan in runner.plans)
    for name, expected in expectations.items():
        if name in run.streams:
            run.check(name, expected, skip=1)


@given(arrivals=arrivals, machine=machines, num_tokens=st.integers(48, 160))
@pytest.mark.medium
def test_late_scheduling_changes_no_token_and_no_exported_byte(
    arrivals: list[Arrival], machine: dict[str, int], num_tokens: int
) -> None:
    """Resumed generations among them, whose last given tokens are computed in decode steps."""
    block_tokens = machine["block_tokens"]
    runs, exports = [], []
    for late in (False, True):
        engine, _ = make_engine({**machine, "late_scheduling": late}, num_tokens, EngineRole.NORMAL)
        run = Run(engine, block_tokens)
        requests = []
        for i, arrival in enumerate(arrivals):
            expected = expected_tokens(arrival.prompt(), arrival.sampling(), context=CONTEXT)
            num_generated = arrival.salt % (len(expected) + 1)
            export = InMemoryExport(block_tokens, state_every_blocks=1)
            exports.append(export)
            request = EngineRequest(
                request_id=f"r{i}",
                token_ids=(*arrival.prompt(), *expected[:num_generated]),
                num_generated=num_generated,
                sampling=arrival.sampling(),
                export=export,
            )
            requests.append((arrival.at_step, None, request))
        run.go(
            requests,
            {
                f"r{i}": (arrival.pause_at, arrival.pause_at + arrival.pause_steps)
                for i, arrival in enumerate(arrivals)
            },
        )
        runs.append(run)
    tokens = [
        {
            name: [event.token_id for event in stream if isinstance(event, TokenOut)]
            for name, stream in run.streams.items()
        }
        for run in runs
    ]
    assert tokens[0] == tokens[1]
    for one, other in zip(exports[: len(arrivals)], exports[len(arrivals) :], strict=True):
        assert (one.blocks, one.states, one.tail) == (other.blocks, other.states, other.tail)
