"""The JSON of answers, whole and in chunks, in the form of OpenAI's two endpoints. Pure.

One `Answer` collects one prompt's tokens. `Form` knows the objects around them: the ids, the names,
the counts. A chunk of the stream and the whole answer are made of the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.encoding.dsml import ToolCallParser
from balancer.http.asked import Asked
from balancer.http.reasoning import ReasoningSplitter
from balancer.journey.request import Delta, Final, FinishReason, Logprobs
from balancer.text import TextCodec, ToolCall

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Token counts of one or several prompts."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Sums member by member."""
        return Counts(
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            cached=self.cached + other.cached,
            reasoning=self.reasoning + other.reasoning,
        )

    def json(self) -> Json:
        """OpenAI's usage object, with DeepSeek's names for the cache beside it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
            "prompt_cache_hit_tokens": self.cached,
            "prompt_cache_miss_tokens": self.prompt - self.cached,
        }


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one prompt has got so far.

    Attributes:
        index: Number of the choice.
        calls: Tells calls of tools from text, where the caller gave some.
        echo: Text that stands before the answer; handed out once.
        prompt_ids: Token ids of the prompt.
        num_chars: Length of the text so far, for `text_offset`.
    """

    index: int
    prompt_ids: tuple[int, ...]
    splitter: ReasoningSplitter
    calls: ToolCallParser | None = None
    echo: str = ""
    num_chars: int = 0
    num_tokens: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    finish_reason: str = ""
    counts: Counts = field(default_factory=Counts)
    has_begun: bool = False


class Form:
    """How the answers to one HTTP request look.

    Args:
        created: Seconds since 1970.
        reasoning_fields: Names under which thoughts are handed out.
    """

    def __init__(
        self,
        asked: Asked,
        codec: TextCodec,
        *,
        request_id: str,
        model: str,
        created: int,
        system_fingerprint: str,
        reasoning_fields: Sequence[str],
    ) -> None:
        self._asked = asked
        self._codec = codec
        self._reasoning_fields = tuple(reasoning_fields)
        kind = "chat.completion" if asked.is_chat else "text_completion"
        chunk_kind = "chat.completion.chunk" if asked.is_chat else kind
        common: Json = {
            "created": created,
            "model": model,
            "system_fingerprint": system_fingerprint,
        }
        answer_id = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{request_id}"
        self._whole: Json = {"id": answer_id, "object": kind, **common}
        self._chunk: Json = {"id": answer_id, "object": chunk_kind, **common}

    def chunk(self, answer: Answer, delta: Delta) -> Json:
        """Takes tokens in; returns the chunk that hands them out."""
        thought, answered = answer.splitter.push(delta.token_ids, delta.pieces)
        calls: Sequence[ToolCall] = ()
        if answer.calls is not None:
            answered, calls = answer.calls.push(answered)
        logprobs = self._logprobs(answer, delta)
        answer.num_tokens += len(delta.token_ids)
        answer.token_ids += delta.token_ids
        return self._piece(answer, thought, answered, logprobs, delta.token_ids, calls=calls)

    def end(self, answer: Answer, final: Final) -> Json:
        """Takes the end in; returns the chunk with the finish reason."""
        thought, answered = answer.splitter.finish(final.text)
        answer.finish_reason = final.finish_reason.value
        calls: Sequence[ToolCall] = ()
        if answer.calls is not None:
            answered, calls = answer.calls.push(answered)
            answered += answer.calls.finish()
            if answer.calls.calls and final.finish_reason is FinishReason.STOP:
                answer.finish_reason = "tool_calls"
        answer.counts = Counts(
            prompt=final.usage.prompt_tokens,
            completion=final.usage.completion_tokens,
            cached=final.usage.cached_tokens,
            reasoning=answer.splitter.num_tokens,
        )
        return self._piece(answer, thought, answered, None, (), answer.finish_reason, calls=calls)

    def usage_chunk(self, answers: Sequence[Answer]) -> Json:
        """The chunk of counts behind all others."""
        return {**self._chunk, "choices": [], "usage": _total(answers).json()}

    def whole(self, answers: Sequence[Answer]) -> Json:
        """The answer of a request that is not streamed."""
        choices = []
        for answer in answers:
            choice: Json = {"index": answer.index, "finish_reason": answer.finish_reason}
            if self._asked.is_chat:
                message: Json = {"role": "assistant", "content": answer.text}
                if answer.calls is not None and answer.calls.calls:
                    message["content"] = answer.text or None
                    message["tool_calls"] = list(map(_call, answer.calls.calls))
                if answer.reasoning:
                    message |= dict.fromkeys(self._reasoning_fields, answer.reasoning)
                choice["message"] = message
            else:
                choice["text"] = answer.text
            choice["logprobs"] = self._merged(answer)
            if self._asked.token_ids:
                choice["token_ids"] = answer.token_ids
                choice["prompt_token_ids"] = answer.prompt_ids
            choices.append(choice)
        return {**self._whole, "choices": choices, "usage": _total(answers).json()}

    def _piece(
        self,
        answer: Answer,
        thought: str,
        answered: str,
        logprobs: Json | None,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        *,
        calls: Sequence[ToolCall] = (),
    ) -> Json:
        if not answer.has_begun:
            answered = answer.echo + answered
        answer.text += answered
        answer.reasoning += thought
        if logprobs is not None:
            answer.logprobs.append(logprobs)
        choice: Json = {"index": answer.index, "finish_reason": finish_reason}
        if self._asked.is_chat:
            delta: Json = {} if answer.has_begun else {"role": "assistant"}
            if answered or not (thought or calls):
                delta["content"] = answered
            if calls and answer.calls is not None:
                first = len(answer.calls.calls) - len(calls)
                delta["tool_calls"] = [
                    {"index": first + number, **_call(call)} for number, call in enumerate(calls)
                ]
            if thought:
                delta |= dict.fromkeys(self._reasoning_fields, thought)
            choice["delta"] = delta
        else:
            choice["text"] = answered
        choice["logprobs"] = logprobs
        if self._asked.token_ids:
            choice["token_ids"] = token_ids
            if not answer.has_begun:
                choice["prompt_token_ids"] = answer.prompt_ids
        answer.has_begun = True
        return self._with_usage({**self._chunk, "choices": [choice]}, answer)

    def _with_usage(self, chunk: Json, answer: Answer) -> Json:
        if self._asked.has_running_usage:
            counts = Counts(
                prompt=len(answer.prompt_ids),
                completion=answer.num_tokens,
                cached=answer.counts.cached,
                reasoning=answer.splitter.num_tokens,
            )
            chunk["usage"] = counts.json()
        elif self._asked.has_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, answer: Answer, delta: Delta) -> Json | None:
        if self._asked.logprobs is None:
            return None
        entries = list(zip(delta.token_ids, delta.pieces, delta.logprobs, strict=True))
        if self._asked.is_chat:
            return {"content": [self._chat_entry(token, entry) for token, _, entry in entries]}
        offsets = []
        for _, piece, _ in entries:
            offsets.append(answer.num_chars)
            answer.num_chars += len(piece)
        return {
            "tokens": [self._token_text(token) for token, _, _ in entries],
            "token_logprobs": [_finite(entry.logprob) for _, _, entry in entries],
            "top_logprobs": [
                {self._token_text(other): _finite(value) for other, value in _best(token, entry)}
                for token, _, entry in entries
            ],
            "text_offset": offsets,
        }

    def _chat_entry(self, token_id: int, entry: Logprobs) -> Json:
        return {
            **self._chat_token(token_id, entry.logprob),
            "top_logprobs": [self._chat_token(other, value) for other, value in entry.top],
        }

    def _chat_token(self, token_id: int, logprob: float) -> Json:
        data = self._codec.token_bytes(token_id)
        return {
            "token": data.decode("utf-8", errors="replace"),
            "logprob": _finite(logprob),
            "bytes": list(data),
        }

    def _token_text(self, token_id: int) -> str:
        return self._codec.token_bytes(token_id).decode("utf-8", errors="replace")

    def _merged(self, answer: Answer) -> Json | None:
        """The log-probabilities of all chunks as one object."""
        if self._asked.logprobs is None:
            return None
        names = ("content",) if self._asked.is_chat else _COLUMNS
        merged: dict[str, list[object]] = {name: [] for name in names}
        for piece in answer.logprobs:
            for name in names:
                column = piece[name]
                assert isinstance(column, list)
                merged[name] += column
        return dict(merged)


_IMPOSSIBLE = -9999.0
_COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _finite(logprob: float) -> float:
    """JSON has no infinity; clients read this value as impossible."""
    return max(logprob, _IMPOSSIBLE)


def _best(token_id: int, entry: Logprobs) -> list[tuple[int, float]]:
    """The best tokens, and the chosen one if it is not among them."""
    best = list(entry.top)
    if all(other != token_id for other, _ in best):
        best.append((token_id, entry.logprob))
    return best


def _call(call: ToolCall) -> Json:
    """OpenAI's object of a call."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _total(answers: Sequence[Answer]) -> Counts:
    total = Counts()
    for answer in answers:
        total += answer.counts
    return total
