"""Gauges of an engine, read when metrics are shown."""

from __future__ import annotations

import dataclasses
from contextvars import copy_context
from typing import Any, cast

import pytest

from engine.config import EngineRole
from engine.statistics import EngineStatistics
from runtime.metrics import Metrics
from serving.gauges import step_observer, watch_engine

NUMBERS = {field.name: 0 for field in dataclasses.fields(EngineStatistics)}


class Engine:
    """An engine at one moment."""

    def __init__(self, **numbers: int) -> None:
        self.numbers = numbers

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(**{**NUMBERS, **self.numbers})

    def progress_age_s(self) -> float:
        return 1.5


def watched(kind: EngineRole, **numbers: int) -> tuple[Metrics, Engine]:
    metrics, engine = Metrics(role=kind.value, model="m", rank=1), Engine(**numbers)
    watch_engine(metrics, cast(Any, engine), kind, block_tokens=8)
    return metrics, engine


def test_a_decode_rank_shows_its_pool_and_its_steps() -> None:
    metrics, engine = watched(
        EngineRole.DECODE,
        running=2,
        waiting=1,
        kv_tokens=40,
        kv_capacity_tokens=80,
        steps=7,
        placeholder_steps=3,
    )
    text = metrics.exposition()[0].decode()
    assert 'disagg_requests_running{model_name="m",role="decode",tier="all"} 2.0' in text
    assert 'disagg_decode_kv_tokens{dp_rank="1"} 40.0' in text
    assert "disagg_decode_placeholder_steps_total 3.0" in text
    assert 'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5' in text
    assert 'vllm:num_requests_running{engine="1",model_name="m"} 2.0' in text
    assert (
        'vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 1.0'
        in text
    )
    assert 'block_size="8",engine="1",model_name="m",num_gpu_blocks="10"} 1.0' in text
    engine.numbers |= {"steps": 9}
    assert metrics.snapshot()["disagg_decode_steps_total"] == 9


def test_a_prefill_rank_has_no_decode_gauges() -> None:
    metrics, _ = watched(EngineRole.PREFILL, waiting=4)
    text = metrics.exposition()[0].decode()
    assert "disagg_decode_" not in text
    assert 'disagg_progress_age_seconds{role="prefill"} 1.5' in text


@pytest.mark.parametrize("kind", [EngineRole.DECODE, EngineRole.PREFILL])
def test_steps_are_observed_on_decode_ranks(kind: EngineRole) -> None:
    metrics = Metrics()
    observe = step_observer(metrics, kind)
    assert (observe is None) == (kind is EngineRole.PREFILL)
    if observe is not None:
        observe(0.01, [copy_context()] * 3)
        assert metrics.value("disagg_decode_step_seconds") == 1
        assert metrics.value("disagg_decode_batch_size") == 1
