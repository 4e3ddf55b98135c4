"""Our own types as messages of `disagg.v1`, for every face that speaks it. Pure."""

from __future__ import annotations

from balancer.journey.request import FinishReason, Logprobs, Timing, Usage
from disagg.v1 import common_pb2

FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}


def fill_usage(message: common_pb2.Usage, usage: Usage) -> None:
    """Writes token counts into a message."""
    message.prompt_tokens = usage.prompt_tokens
    message.completion_tokens = usage.completion_tokens
    message.cached_tokens = usage.cached_tokens


def fill_timing(message: common_pb2.Timing, timing: Timing) -> None:
    """Writes times and bytes into a message; the fields have the same names."""
    for field in common_pb2.Timing.DESCRIPTOR.fields:
        setattr(message, field.name, getattr(timing, field.name))


def logprobs_message(logprobs: Logprobs) -> common_pb2.PositionLogprobs:
    """Log-probabilities at one position."""
    return common_pb2.PositionLogprobs(
        logprob=logprobs.logprob,
        top=[
            common_pb2.TokenLogprob(token_id=token_id, logprob=value)
            for token_id, value in logprobs.top
        ],
    )
