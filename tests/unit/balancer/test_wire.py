"""Our own types as messages: every field arrives."""

from __future__ import annotations

import dataclasses

from balancer.journey.request import FinishReason, Logprobs, Timing, Usage
from balancer.wire import FINISH_REASONS, fill_timing, fill_usage, logprobs_message
from disagg.v1 import common_pb2

# Parts of the placement that the status page tells apart.
STAYS_AT_HOME = {"lookup_us", "admit_us"}


def test_every_finish_reason_has_a_value() -> None:
    assert set(FINISH_REASONS) == set(FinishReason)
    assert len(set(FINISH_REASONS.values())) == len(FinishReason)


def test_counts_and_times_arrive() -> None:
    usage, timing = common_pb2.Usage(), common_pb2.Timing()
    fill_usage(usage, Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (1, 2, 3)
    names = [field.name for field in dataclasses.fields(Timing) if field.name not in STAYS_AT_HOME]
    values = {name: name if name.endswith("member") else i for i, name in enumerate(names, 1)}
    fill_timing(timing, Timing(**values))  # type: ignore[arg-type]  # by name
    assert {name: getattr(timing, name) for name in names} == values
    assert {field.name for field in common_pb2.Timing.DESCRIPTOR.fields} == set(names)


def test_logprobs_arrive_in_order() -> None:
    message = logprobs_message(Logprobs(logprob=-1.0, top=((5, -0.5), (6, -2.0))))
    assert message.logprob == -1.0
    assert [(top.token_id, top.logprob) for top in message.top] == [(5, -0.5), (6, -2.0)]
