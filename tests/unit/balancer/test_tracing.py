"""What the span of the front door says about a request."""

from dataclasses import replace

from balancer.journey.request import Final, FinishReason, Request, Sampling, Timing, Usage
from balancer.tracing import describe_end, describe_request
from disagg.v1 import generation_pb2
from runtime.telemetry import NO_SPAN
from tests.fakes.spans import facts, recorded, served

REQUEST = Request(
    request_id="r-1",
    token_ids=(1, 2, 3),
    sampling=Sampling(seed=7, max_tokens=9, temperature=0.5, top_p=0.9),
    arrived_at=0.0,
    deadline=1.0,
)
FINAL = Final(
    attempt=2,
    seq=9,
    text="secret",
    finish_reason=FinishReason.LENGTH,
    usage=Usage(prompt_tokens=3, completion_tokens=9, cached_tokens=2),
    timing=Timing(first_token_us=1_500_000, prefill_us=250_000, total_us=2_000_000),
)


def test_a_request_in_the_names_of_the_conventions() -> None:
    found = recorded()
    message = generation_pb2.GenerateRequest(text="secret words", model="tiny")
    with served(found) as span:
        describe_request(span, message, REQUEST, model="tiny-v4")
    said = facts(found.one("a.B/C"))
    assert said == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "disagg",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "tiny-v4",
        "gen_ai.response.id": "r-1",
        "gen_ai.usage.input_tokens": 3,
        "disagg.request_id": "r-1",
    }
    assert "secret" not in str(said)


def test_what_was_given_is_told_and_a_seed_of_64_bits_is_kept_whole() -> None:
    found = recorded()
    message = generation_pb2.GenerateRequest()
    message.chat.reasoning_effort = "high"
    sampling = replace(REQUEST.sampling, seed=2**64 - 1, top_k=5, stop=("a" * 40, "b"))
    request = replace(REQUEST, sampling=sampling, is_chat=True, endpoint="chat")
    with served(found) as span:
        describe_request(span, message, request, model="m")
    said = facts(found.one("a.B/C"))
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.reasoning.level"] == "high"
    assert said["gen_ai.request.seed"] == str(2**64 - 1)
    assert said["gen_ai.request.top_k"] == 5
    assert said["disagg.stop_sequences"] == 2  # never the texts
    assert "gen_ai.request.stop_sequences" not in said
    assert "aaaa" not in str(said)
    assert "gen_ai.request.stream" not in said  # the face knows


def test_the_end_and_its_event() -> None:
    found = recorded()
    with served(found) as span:
        describe_end(span, REQUEST, FINAL, says_vllm=False)
    span = found.one("a.B/C")
    assert facts(span) == {
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": 1.5,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "disagg.attempt": 2,
    }
    assert [event.name for event in span.events] == ["last_token"]


def test_times_in_the_names_of_vllm_where_they_are_asked_for() -> None:
    found = recorded()
    with served(found) as span:
        describe_end(span, REQUEST, FINAL, says_vllm=True)
    said = facts(found.one("a.B/C"))
    assert said["gen_ai.request.id"] == "r-1"
    assert said["gen_ai.latency.time_to_first_token"] == 1.5
    assert said["gen_ai.latency.e2e"] == 2.0
    assert said["gen_ai.latency.time_in_model_prefill"] == 0.25


def test_nothing_is_computed_for_a_span_that_is_not_recorded() -> None:
    describe_request(NO_SPAN, generation_pb2.GenerateRequest(), None, model="m")  # type: ignore[arg-type]
    describe_end(NO_SPAN, None, None, says_vllm=True)  # type: ignore[arg-type]
