"""What callers of the client give and get; plain frozen values, no wire messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn of a conversation; role is system, user or assistant."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[ChatMessage]
"""Plain text, token ids that are taken as they are, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens; None leaves the choice to the server (see SamplingParams)."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Seconds that placement aims at; a request that would miss its own is refused at once.

    Attributes:
        ttft_s: To the first token.
        tpot_s: Per token after it.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the chosen token, and (token id, value), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where time (microseconds) and bytes went; names as in the wire message `Timing`."""

    placement_us: int = 0
    prefill_queue_us: int = 0
    prefix_load_us: int = 0
    prefill_us: int = 0
    commit_us: int = 0
    fetch_us: int = 0
    decode_us: int = 0
    first_token_us: int = 0
    total_us: int = 0
    published_bytes: int = 0
    prefix_bytes: int = 0
    fetched_bytes: int = 0
    prefetched_bytes: int = 0
    prefill_member: str = ""
    decode_member: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of an answer.

    Attributes:
        seq: Number of the last token so far; resume with `last_seq=seq`.
        finish_reason: `stop`, `length` or `abort` in the last piece, else empty.
        usage, timing: In the last piece only.
    """

    request_id: str
    attempt: int
    seq: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    seed: int | None = None
    finish_reason: str = ""
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer."""

    request_id: str
    seed: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str
    attempts: int
    usage: Usage
    timing: Timing
