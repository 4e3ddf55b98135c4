"""What a balancer says about a request on its span: the names of the GenAI conventions. Pure.

On the span of the front door and nowhere else, since dashboards add up every span that has them.
Of the prompt and the answer only sizes are told.
"""

from __future__ import annotations

from balancer.journey.request import Final, Request
from disagg.v1 import generation_pb2
from runtime.telemetry import Span
from runtime.tracing.table import Attribute, Value

PROVIDER = "disagg"


def describe_request(
    span: Span, message: generation_pb2.GenerateRequest, request: Request, *, model: str
) -> None:
    """What was asked for; absent fields are those the caller left to us."""
    if not span.is_recording:
        return
    sampling = request.sampling
    said: dict[Attribute, Value] = {
        "gen_ai.operation.name": "chat" if request.is_chat else "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": message.model or model,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        # 64 bits without a sign, which the wire of spans does not have.
        "gen_ai.request.seed": sampling.seed if sampling.seed < 1 << 63 else str(sampling.seed),
        "gen_ai.response.model": model,
        "gen_ai.response.id": request.request_id,
        "gen_ai.usage.input_tokens": len(request.token_ids),
        "disagg.request_id": request.request_id,
    }
    if request.endpoint == "generate":  # over gRPC every answer is a stream
        said["gen_ai.request.stream"] = True
    if sampling.top_k:
        said["gen_ai.request.top_k"] = sampling.top_k
    if sampling.stop:
        # Their number alone: the texts are content of the caller.
        said["disagg.stop_sequences"] = len(sampling.stop)
    if message.chat.reasoning_effort:
        said["gen_ai.request.reasoning.level"] = message.chat.reasoning_effort
    span.set(said)


def describe_end(span: Span, request: Request, final: Final, *, says_vllm: bool) -> None:
    """How it ended.

    Args:
        says_vllm: Also in the names that vLLM uses, in seconds.
    """
    if not span.is_recording:
        return
    timing = final.timing
    span.event("last_token")
    span.set(
        {
            "gen_ai.response.finish_reasons": [final.finish_reason.value],
            "gen_ai.response.time_to_first_chunk": timing.first_token_us / 1e6,
            "gen_ai.usage.output_tokens": final.usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": final.usage.cached_tokens,
            "disagg.attempt": final.attempt,
        }
    )
    if says_vllm:
        span.set(
            {
                "gen_ai.request.id": request.public_id,
                "gen_ai.latency.time_in_queue": (timing.admit_us + timing.prefill_queue_us) / 1e6,
                "gen_ai.latency.time_to_first_token": timing.first_token_us / 1e6,
                "gen_ai.latency.e2e": timing.total_us / 1e6,
                "gen_ai.latency.time_in_model_prefill": timing.prefill_us / 1e6,
                "gen_ai.latency.time_in_model_decode": timing.decode_us / 1e6,
            }
        )
