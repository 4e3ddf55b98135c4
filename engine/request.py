"""What a caller asks of the engine, what the engine answers, and the life of a sequence in between.

This module deals in token ids; it knows no text, no wire and no tensor. Requests and events are
immutable. Bad values are refused here, before anything is queued, with the field, the value and the
way out in the message.

Life of a sequence (`SequenceStatus`, `TRANSITIONS`):

    add --> WAITING --admit--> PREFILLING --all but the newest token in KV--> DECODING
              |  ^               |  ^                                           |  ^
              |  |               |  |   (WAITING and SWAPPED are admitted to    |  |
              |  |               |  |    either, by what they lack)             |  |
              |  |         preempt  admit                                 preempt  admit
              |  |               v  |                                           v  |
              |  +-- preempt ----+  +------------------ SWAPPED ----------------+--+
              |      (nothing computed)
              +--> FINISHED (stop, length, end of a prefill), ABORTED, FAILED: from any of the four

WAITING holds no memory; SWAPPED holds host memory only; PREFILLING and DECODING hold pages and a
state slot. FINISHED, ABORTED and FAILED are final and hold nothing.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from engine.handoff import SequenceImage
    from engine.kv_connector import KvExport

MAX_LOGPROBS = 20
MAX_PENALTY = 2.0
MAX_SEED = 2**64 - 1

FinishReason = Literal["stop", "length", "abort"]


class EngineError(Exception):
    """Root of what the engine raises on purpose; `cause` is a stable label for counters."""

    cause = "engine"


class InvalidRequest(EngineError, ValueError):
    """The request can never be served as it stands."""

    cause = "invalid_request"


class SamplingError(InvalidRequest):
    """A sampling parameter is out of range.

    Args:
        field_name: the parameter.
        value: what was given.
        way_out: what would be accepted.
    """

    cause = "bad_sampling"

    def __init__(self, field_name: str, value: object, way_out: str) -> None:
        super().__init__(f"{field_name} is {value!r}: {way_out}")
        self.field_name = field_name
        self.value = value


class PromptTooLong(InvalidRequest):
    """The tokens leave no room in the context of the model."""

    cause = "prompt_too_long"


class DuplicateRequest(InvalidRequest):
    """A live request has the same id."""

    cause = "duplicate_request"


class PoolFull(EngineError):
    """The request needs more KV memory than this engine has in all; waiting would not help."""

    cause = "pool_full"


class QueueFull(EngineError):
    """The waiting queue is at its bound; trying later or elsewhere helps."""

    cause = "queue_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. The draw for absolute position p depends on (seed, p) only.

    Args:
        temperature: 0 is greedy; ties go to the lowest id.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set with at least this probability, in (0, 1].
        min_p: drop tokens below this share of the most likely one, in [0, 1].
        seed: key of the counter-based draws, in [0, 2**64).
        max_tokens: generated tokens at most, counted over all attempts; 0 generates nothing.
        min_tokens: no end-of-sequence or stop token before this many generated tokens.
        stop_token_ids: tokens that end the generation, beside those of the model.
        ignore_eos: go on past the model's end-of-sequence tokens.
        logprobs: log-probabilities of this many best tokens; None gives none at all.
        presence_penalty: subtracted once from tokens already generated, in [-2, 2].
        frequency_penalty: subtracted per earlier generation, in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in the
            prompt or generated; above 0.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 64
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def has_penalties(self) -> bool:
        """True when logits depend on the tokens seen so far."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def validate(self, vocab_size: int) -> None:
        """Checks every field.

        Args:
            vocab_size: token ids lie in [0, vocab_size).

        Raises:
            SamplingError: naming the first bad field, its value and what would be accepted.
        """
        _check_real("temperature", self.temperature, 0.0, None, "give 0 (greedy) or a value above")
        _check_count("top_k", self.top_k, "give 0 (all tokens) or a positive count")
        _check_real("top_p", self.top_p, 0.0, 1.0, "give a value in (0, 1]; 1 keeps all tokens")
        if self.top_p == 0.0:
            raise SamplingError(
                "top_p", self.top_p, "give a value in (0, 1]; temperature 0 is greedy"
            )
        _check_real("min_p", self.min_p, 0.0, 1.0, "give a value in [0, 1]; 0 drops nothing")
        _check_count("seed", self.seed, f"give an integer in [0, {MAX_SEED}]", MAX_SEED)
        _check_count("max_tokens", self.max_tokens, "give 0 or a positive count")
        _check_count("min_tokens", self.min_tokens, "give 0 or a positive count")
        if self.min_tokens > self.max_tokens:
            raise SamplingError(
                "min_tokens",
                self.min_tokens,
                f"it exceeds max_tokens {self.max_tokens}; lower it or raise max_tokens",
            )
        for token_id in self.stop_token_ids:
            _check_count(
                "stop_token_ids",
                token_id,
                f"give ids in [0, {vocab_size}), the vocabulary of the model",
                vocab_size - 1,
            )
        if self.logprobs is not None:
            _check_count(
                "logprobs", self.logprobs, f"give a count in [0, {MAX_LOGPROBS}]", MAX_LOGPROBS
            )
        way_out = f"give a value in [-{MAX_PENALTY:g}, {MAX_PENALTY:g}]; 0 is off"
        for name in ("presence_penalty", "frequency_penalty"):
            _check_real(name, getattr(self, name), -MAX_PENALTY, MAX_PENALTY, way_out)
        way_out = "give a value above 0; 1 is off"
        _check_real("repetition_penalty", self.repetition_penalty, 0.0, None, way_out)
        if self.repetition_penalty == 0.0:
            raise SamplingError("repetition_penalty", self.repetition_penalty, way_out)


def _check_real(
    name: str, value: float, minimum: float, maximum: float | None, way_out: str
) -> None:
    if isinstance(value, bool) or not math.isfinite(value):
        raise SamplingError(name, value, f"not a finite number; {way_out}")
    if value < minimum or (maximum is not None and value > maximum):
        raise SamplingError(name, value, way_out)


def _check_count(name: str, value: int, way_out: str, maximum: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SamplingError(name, value, f"not an integer; {way_out}")
    if value < 0 or (maximum is not None and value > maximum):
        raise SamplingError(name, value, way_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A sequence to continue.

    Args:
        request_id: unique among live requests of the engine.
        token_ids: all known tokens: the prompt, then what was already generated.
        num_generated: how many at the end of `token_ids` were generated.
        sampling: how to choose tokens.
        image: KV of the first `image.num_tokens` tokens, fewer than `len(token_ids)`; the rest is
            computed before sampling goes on. An image without its state has the end of its tokens
            replayed first (see `engine.handoff`).
        export: where KV of `token_ids` goes as it is computed; None keeps it here.
        stop_after_first: finish after the first sampled token (the prefill role).
        reservation_id: room taken before with `reserve`, used up by this request.
        arrival: when the request came, on the caller's clock; for statistics only.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_generated: int = 0
    image: SequenceImage | None = None
    export: KvExport | None = None
    stop_after_first: bool = False
    reservation_id: str | None = None
    arrival: float = 0.0

    def validate(self, vocab_size: int, context_tokens: int) -> None:
        """Checks all of it that does not depend on an engine's memory.

        Args:
            vocab_size: token ids lie in [0, vocab_size).
            context_tokens: tokens of a sequence at most.

        Raises:
            InvalidRequest: a field is wrong (`SamplingError` and `PromptTooLong` are its kinds).
        """
        num_tokens = len(self.token_ids)
        if num_tokens == 0:
            raise InvalidRequest("token_ids is empty: give at least one token")
        if not 0 <= self.num_generated < num_tokens:
            raise InvalidRequest(
                f"num_generated is {self.num_generated}, but {num_tokens} tokens came: give a "
                "count in [0, number of tokens), the prompt has at least one"
            )
        if min(self.token_ids) < 0 or max(self.token_ids) >= vocab_size:
            idx, token_id = next(
                (idx, token_id)
                for idx, token_id in enumerate(self.token_ids)
                if not 0 <= token_id < vocab_size
            )
            raise InvalidRequest(
                f"token_ids[{idx}] is {token_id}: give ids in [0, {vocab_size}), the vocabulary "
                "of the model"
            )
        self.sampling.validate(vocab_size)
        # A generation that fills the context was ended there, so only a resumed request may come
        # with exactly that many tokens.
        most = context_tokens if self.num_generated else context_tokens - 1
        if num_tokens > most:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, but the context is {context_tokens} "
                f"with the answer: give at most {most}"
            )
        if self.image is not None and not 0 < self.image.num_tokens < num_tokens:
            raise InvalidRequest(
                f"the image covers {self.image.num_tokens} of {num_tokens} tokens: the last "
                "token must be left to compute, and an empty image left out"
            )
        if self.image is not None and self.image.replay_from is not None:
            begin, end = self.image.replay_from, self.image.num_tokens
            if not 0 < begin < end:
                raise InvalidRequest(
                    f"the image of {end} tokens is replayed from token {begin}: begin inside it"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDone:
    """KV of the first `computed_tokens` tokens exists; more chunks or the first token follow."""

    request_id: str
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOut:
    """A generated token.

    Args:
        token_id: the token.
        number: 1-based over all generated tokens, those of earlier attempts included.
        logprob: natural logarithm of its raw probability, when asked for.
        top_logprobs: (token id, log-probability), best first, ties by lower id.
        finish_reason: set when this token ends the generation.
        is_last: True when no further event follows; also set, without a finish reason, on the one
            token of a `stop_after_first` request whose generation goes on elsewhere.
    """

    request_id: str
    token_id: int
    number: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished:
    """The request ended without a token in this event: nothing to generate, or aborted."""

    request_id: str
    finish_reason: FinishReason
    num_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The request ended by an error of its own; its peers go on."""

    request_id: str
    error: Exception


EngineEvent = ChunkDone | TokenOut | RequestFinished | RequestFailed


def is_final(event: EngineEvent) -> bool:
    """Says whether no further event of the request follows."""
    if isinstance(event, TokenOut):
        return event.is_last
    return not isinstance(event, ChunkDone)


class SequenceStatus(enum.Enum):
    """Where a sequence stands; the diagram is in the docstring of the module."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    SWAPPED = "swapped"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


_ENDS = frozenset({SequenceStatus.FINISHED, SequenceStatus.ABORTED, SequenceStatus.FAILED})

TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    # WAITING to FINISHED: max_tokens is already reached, so nothing is computed.
    SequenceStatus.WAITING: frozenset({SequenceStatus.PREFILLING, SequenceStatus.DECODING}) | _ENDS,
    SequenceStatus.PREFILLING: frozenset(
        {SequenceStatus.DECODING, SequenceStatus.WAITING, SequenceStatus.SWAPPED}
    )
    | _ENDS,
    SequenceStatus.DECODING: frozenset({SequenceStatus.WAITING, SequenceStatus.SWAPPED}) | _ENDS,
    SequenceStatus.SWAPPED: frozenset({SequenceStatus.PREFILLING, SequenceStatus.DECODING}) | _ENDS,
    SequenceStatus.FINISHED: frozenset(),
    SequenceStatus.ABORTED: frozenset(),
    SequenceStatus.FAILED: frozenset(),
}
