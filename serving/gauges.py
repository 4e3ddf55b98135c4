"""What an engine holds, as gauges that are read when somebody looks: nothing here costs a step."""

from collections.abc import Sequence
from contextvars import Context

from engine.async_engine import AsyncEngine
from engine.config import EngineRole
from runtime.metrics import Metrics
from serving.steps import OnStep

TIER = "all"
"""Members do not know length classes; they are the balancer's."""


def watch_engine(
    metrics: Metrics, engine: AsyncEngine, kind: EngineRole, *, block_tokens: int
) -> None:
    """Has the gauges of an engine brought up to date whenever metrics are shown.

    Args:
        kind: Role of the rank.
        block_tokens: Tokens of a block.
    """

    def update() -> None:
        now, role = engine.statistics(), kind.value
        metrics.set("disagg_requests_running", now.running, role=role, tier=TIER)
        metrics.set("disagg_requests_waiting", now.waiting, role=role, tier=TIER)
        metrics.set("disagg_progress_age_seconds", engine.progress_age_s(), role=role)
        if kind is EngineRole.DECODE:
            metrics.set("disagg_decode_kv_tokens", now.kv_tokens)
            metrics.set("disagg_decode_kv_capacity_tokens", now.kv_capacity_tokens)
            metrics.follow("disagg_decode_steps_total", now.steps)
            metrics.follow("disagg_decode_placeholder_steps_total", now.placeholder_steps)
        usage = now.kv_tokens / now.kv_capacity_tokens if now.kv_capacity_tokens else 0.0
        metrics.set("vllm:kv_cache_usage_perc", usage)
        # What waits here waits for a slot or for pages; nothing is put off for another cause.
        metrics.set("vllm:num_requests_waiting_by_reason", now.waiting, reason="capacity")
        metrics.follow("vllm:num_preemptions_total", now.preemptions)
        metrics.set(
            "vllm:cache_config_info",
            1,
            block_size=str(block_tokens),
            num_gpu_blocks=str(now.kv_capacity_tokens // block_tokens),
        )

    metrics.before_exposition(update)


def step_observer(metrics: Metrics, kind: EngineRole) -> OnStep | None:
    """What a decode engine tells each step that has sequences; None for other engines."""
    if kind is not EngineRole.DECODE:
        return None

    step_took = metrics.recorder("disagg_decode_step_seconds")
    step_had = metrics.recorder("disagg_decode_batch_size")

    def observe(seconds: float, contexts: Sequence[Context]) -> None:
        step_took(seconds)
        step_had(len(contexts))

    return observe
