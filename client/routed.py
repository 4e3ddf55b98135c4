"""The state of one answer that the caller streams from decode itself. Pure.

Every token has a number. What came from prefill and what comes from decode is joined by it: a token
that came before is dropped, an older attempt's is dropped, a gap breaks the stream. What is known
goes with the next request for a route, so that a broken stream goes on behind its last token.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.errors import ClientError, StreamBroken
from client.types import Chunk, Timing, TokenLogprobs, Usage
from client.wire import finish_reason_of, logprobs_of, timing_of, usage_of
from disagg.v1 import common_pb2, decode_pb2, generation_pb2, routing_pb2

_MAX_ATTEMPT = 2**32 - 2  # one more follows it
_REPEATABLE = ("BLOCK_EVICTED", "LEASE_LOST", "CHECKSUM_DIFFERS", "STALE_ATTEMPT")


class RoutedAnswer:
    """See the module.

    Args:
        request: As for Generate; its `last_seq` is kept here, the balancer never learns it.
    """

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        self.request_id = request.request_id
        self.last_seq = request.last_seq
        self.finish_reason = ""
        self._request = request
        self._request.last_seq = 0
        self._base_seq = self.last_seq
        self._ids: list[int] = []
        self._attempt = 0
        self._newest = 0  # attempt of the request that is known to be taken
        self._seed: int | None = None
        self._usage = Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=0)
        self._timing = Timing()

    @property
    def new_ids(self) -> tuple[int, ...]:
        """Tokens that were handed out."""
        return tuple(self._ids[self._base_seq :])

    def route_request(self) -> routing_pb2.RouteRequest:
        """What to ask the balancer, at first and after every break."""
        last_attempt = max(self._attempt, self._newest)
        return routing_pb2.RouteRequest(
            generate=self._request, generated=self._ids, last_attempt=last_attempt
        )

    def take_route(self, response: routing_pb2.RouteResponse) -> Chunk | None:
        """Takes the balancer's answer; returns the tokens of prefill.

        Raises:
            StreamBroken: A token is missing.
        """
        if not self._attempt:  # the first attempt knows what of the prompt was cached
            self._usage = usage_of(response.usage)
            self._timing = timing_of(response.timing)
        self._attempt, self._seed = response.attempt, response.seed
        return self._take(
            response.seq, response.token_ids, response.logprobs, response.finish_reason
        )

    def take_decode(self, message: decode_pb2.DecodeResponse) -> Chunk | None:
        """Takes a message of decode; returns its new tokens.

        Raises:
            StreamBroken: A token is missing, or a known one came again and differs.
        """
        tokens = message.tokens
        if not message.HasField("tokens") or tokens.attempt != self._attempt:
            return None
        return self._take(tokens.seq, tokens.token_ids, tokens.logprobs, tokens.finish_reason)

    def check_end(self) -> None:
        """Raises StreamBroken if decode ended its stream before the answer ended."""
        if not self.finish_reason:
            raise StreamBroken(
                f"decode ended after token {self.last_seq} without a finish reason",
                last_seq=self.last_seq,
            )

    def final(self, text: str) -> Chunk:
        """The last piece: the text of `new_ids`, and the counts."""
        return Chunk(
            request_id=self.request_id,
            attempt=self._attempt,
            seq=self.last_seq,
            token_ids=(),
            text=text,
            seed=self._seed,
            finish_reason=self.finish_reason,
            usage=Usage(
                prompt_tokens=self._usage.prompt_tokens,
                completion_tokens=len(self._ids),
                cached_tokens=self._usage.cached_tokens,
            ),
            timing=self._timing,
        )

    def may_go_on(self, error: ClientError, resumes: int, max_resumes: int) -> bool:
        """Whether to ask for another route after this error, above the newest attempt it names."""
        newest = error.metadata.get("newest_attempt", "")
        if error.reason == "STALE_ATTEMPT" and newest.isdecimal():
            self._newest = max(self._newest, min(int(newest), _MAX_ATTEMPT))
        if self.finish_reason or resumes >= max_resumes:
            return False
        if error.reason == "DUPLICATE_REQUEST":
            return resumes > 0  # our own call before, whose end was not seen yet
        return error.is_resumable or error.reason in _REPEATABLE

    def _take(
        self,
        seq: int,
        token_ids: Sequence[int],
        logprobs: Sequence[common_pb2.PositionLogprobs],
        finish_reason: common_pb2.FinishReason,
    ) -> Chunk | None:
        first = seq - len(token_ids) + 1
        known = len(self._ids) - first + 1
        if token_ids and known < 0:
            raise StreamBroken(
                f"token {first} came after token {len(self._ids)}", last_seq=self.last_seq
            )
        known = min(known, len(token_ids))
        if list(token_ids[:known]) != self._ids[first - 1 : first - 1 + known]:
            raise StreamBroken(
                f"tokens from {first} on came again, and differ", last_seq=self.last_seq
            )
        self._ids += token_ids[known:]
        self.finish_reason = finish_reason_of(finish_reason)
        # Of the new ones, those behind what an earlier call of the caller got.
        skipped = max(known, self._base_seq - first + 1)
        fresh = tuple(token_ids[skipped:])
        self.last_seq = max(self.last_seq, len(self._ids))
        if not fresh:
            return None
        return Chunk(
            request_id=self.request_id,
            attempt=self._attempt,
            seq=self.last_seq,
            token_ids=fresh,
            text="",
            logprobs=tuple(map(logprobs_of, logprobs[skipped:])) if logprobs else _NO_LOGPROBS,
            seed=self._seed,
        )


_NO_LOGPROBS: tuple[TokenLogprobs, ...] = ()
