"""Engines on the toy runner, and how tests drive them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineRole, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.request import EngineEvent, EngineRequest, SamplingParams, TokenOut
from engine.statistics import EngineStatistics
from tests.fakes.toy_runner import EOS, VOCAB, ToyRunner

BLOCK = 4


def make_engine(
    *,
    role: EngineRole = EngineRole.NORMAL,
    num_pages: int = 64,
    context: int = 200,
    **settings: int,
) -> tuple[LLMEngine, ToyRunner]:
    chosen = EngineSettings(
        role=role,
        block_tokens=BLOCK,
        num_pages=num_pages,
        **{"max_num_seqs": 4, "max_num_batched_tokens": 16, **settings},
    )
    cache = chosen.cache_size(1)
    runner = ToyRunner(cache.num_pages, cache.num_state_slots, BLOCK)
    limits = ModelLimits(vocab_size=VOCAB, max_model_len=context, eos_token_ids=(EOS,))
    engine = LLMEngine(settings=chosen, limits=limits, cache=cache, runner=runner)
    return engine, runner


def drain(engine: LLMEngine, max_steps: int = 2000) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    for _ in range(max_steps):
        if not engine.has_work():
            break
        events += engine.step()[1]
        engine.check_integrity()
    assert not engine.has_work()
    assert_empty(engine.statistics())
    return events


def assert_empty(statistics: EngineStatistics) -> None:
    assert statistics.running == statistics.waiting == statistics.kv_tokens == 0
    assert statistics.free_pages * BLOCK == statistics.kv_capacity_tokens
    assert statistics.queued_tokens == 0


def tokens_of(events: Iterable[EngineEvent], request_id: str) -> list[int]:
    tokens = [e for e in events if isinstance(e, TokenOut) and e.request_id == request_id]
    assert [e.number for e in tokens] == list(range(tokens[0].number, tokens[-1].number + 1))
    return [e.token_id for e in tokens]


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + salt * 13 + 2) % VOCAB for i in range(length))


def request(name: str, length: int = 5, salt: int = 0, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        token_ids=prompt_of(length, salt),
        sampling=SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling}),  # type: ignore[arg-type]
    )
