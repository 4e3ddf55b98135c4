"""Between the client's own types and wire messages, and the state of one answer. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from client.checks import (
    MAX_UINT64,
    check_integer,
    check_priority,
    check_prompt,
    check_sampling,
    check_targets,
    check_text,
)
from client.errors import StreamBroken
from client.types import (
    ChatMessage,
    Chunk,
    Completion,
    Prompt,
    Sampling,
    Targets,
    Timing,
    TokenLogprobs,
    Usage,
)
from disagg.v1 import common_pb2, generation_pb2

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
    common_pb2.FINISH_REASON_CONTENT_FILTER: "content_filter",
}


def make_request(
    prompt: Prompt,
    *,
    request_id: str,
    model: str,
    sampling: Sampling | None,
    last_seq: int,
    cache_salt: str,
    priority: int | None,
    targets: Targets | None = None,
) -> generation_pb2.GenerateRequest:
    """The wire request.

    Raises:
        InvalidArgument: A value does not fit on the wire.
        TypeError: The prompt is neither text nor token ids nor messages.
    """
    for name, text in (("request_id", request_id), ("model", model), ("cache_salt", cache_salt)):
        check_text(name, text)
    check_integer("last_seq", last_seq, MAX_UINT64)
    check_priority(priority)
    check_targets(targets)
    check_prompt(prompt)
    if sampling is not None:
        check_sampling(sampling)
    request = generation_pb2.GenerateRequest(
        request_id=request_id, model=model, last_seq=last_seq, cache_salt=cache_salt
    )
    if priority is not None:
        request.priority = priority
    if targets is not None and targets.ttft_s is not None:
        request.ttft_slo_s = targets.ttft_s
    if targets is not None and targets.tpot_s is not None:
        request.tpot_slo_s = targets.tpot_s
    for field in dataclasses.fields(Sampling):
        value = getattr(sampling, field.name) if sampling is not None else None
        if isinstance(value, tuple | list):
            getattr(request.sampling, field.name).extend(value)
        elif value is not None:
            setattr(request.sampling, field.name, value)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        ids = [item for item in prompt if isinstance(item, int)]
        turns = [item for item in prompt if isinstance(item, ChatMessage)]
        if turns:
            request.chat.messages.extend(
                generation_pb2.ChatMessage(role=turn.role, content=turn.content) for turn in turns
            )
        else:
            request.token_ids.ids.extend(ids)
    return request


class Answer:
    """How far one answer has come, over one call or several; checks the numbers of its tokens."""

    def __init__(self, request_id: str, last_seq: int = 0) -> None:
        self.request_id = request_id
        self.last_seq = last_seq
        self.is_complete = False

    def take(self, message: generation_pb2.GenerateResponse) -> Chunk:
        """The next piece.

        Raises:
            StreamBroken: A token is missing or came twice.
        """
        first = message.seq - len(message.token_ids) + 1
        if message.token_ids and first != self.last_seq + 1:
            raise StreamBroken(
                f"token {first} came after token {self.last_seq}", last_seq=self.last_seq
            )
        self.last_seq = max(self.last_seq, message.seq)
        self.is_complete = message.HasField("final")
        return _chunk(message)

    def check_end(self) -> None:
        """Raises StreamBroken if the stream ended before the answer did."""
        if not self.is_complete:
            raise StreamBroken(
                f"the stream ended after token {self.last_seq} without a last message",
                last_seq=self.last_seq,
            )


def completion_of(chunks: Sequence[Chunk]) -> Completion:
    """The whole answer of a stream that ended well."""
    last = chunks[-1]
    assert last.usage is not None
    assert last.timing is not None
    return Completion(
        request_id=last.request_id,
        seed=next((chunk.seed for chunk in chunks if chunk.seed is not None), 0),
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
        finish_reason=last.finish_reason,
        attempts=last.attempt,
        usage=last.usage,
        timing=last.timing,
    )


def usage_of(message: common_pb2.Usage) -> Usage:
    """Token counts of a message."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
    )


def timing_of(message: common_pb2.Timing) -> Timing:
    """Times and bytes of a message; the fields have the same names."""
    return Timing(
        **{field.name: getattr(message, field.name) for field in dataclasses.fields(Timing)}
    )


def logprobs_of(message: common_pb2.PositionLogprobs) -> TokenLogprobs:
    """Log-probabilities at one position."""
    return TokenLogprobs(
        logprob=message.logprob, top=tuple((top.token_id, top.logprob) for top in message.top)
    )


def finish_reason_of(value: common_pb2.FinishReason) -> str:
    """Name of a finish reason; empty if there is none yet."""
    return _FINISH_REASONS.get(value, "")


def _chunk(message: generation_pb2.GenerateResponse) -> Chunk:
    usage = timing = None
    if message.HasField("final"):
        usage, timing = usage_of(message.final.usage), timing_of(message.final.timing)
    return Chunk(
        request_id=message.request_id,
        attempt=message.attempt,
        seq=message.seq,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=tuple(map(logprobs_of, message.logprobs)),
        seed=message.seed if message.HasField("seed") else None,
        finish_reason=finish_reason_of(message.final.finish_reason),
        usage=usage,
        timing=timing,
    )
