"""The balancer's own types of one request: what is asked, what is handed out, what it cost.

Wire messages are translated at the rim (`server.py`, `peers.py`); between them these types travel.
Token numbers start at 1 and count generated tokens over all attempts.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field

DEFAULT_MAX_TOKENS = 64


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens; everything is decided here, so all attempts draw alike.

    Attributes:
        stop: Texts that end the generation; matched by the balancer alone.
        logprobs: Log-probabilities of this many best tokens; None gives none.
    """

    seed: int
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked request for a continuation.

    Attributes:
        last_seq: Tokens up to this number were received before and are not handed out again.
        arrived_at: Monotonic seconds of the balancer's clock.
        deadline: The same clock; nothing goes on after it.
        ttft_slo_s, tpot_slo_s: Targets of the caller; None: those of the settings.
        endpoint: What was called: generate, chat, completions, route or engine.
        is_chat: The prompt came as turns of a conversation.
        owner: Tenant of the caller's API key; None where there are no keys.
        named: Id that the caller chose, where `request_id` has the tenant in front of it.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    arrived_at: float
    deadline: float
    last_seq: int = 0
    cache_salt: str = ""
    priority: int = 0
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    endpoint: str = "generate"
    is_chat: bool = False
    owner: str | None = None
    named: str = ""

    @property
    def public_id(self) -> str:
        """The id that the caller knows."""
        return self.named or self.request_id

    @property
    def tenant(self) -> str:
        """Whose share of the queue it counts to; without keys, whoever isolates a cache."""
        return self.cache_salt if self.owner is None else self.owner

    @property
    def max_tokens(self) -> int:
        """Generated tokens at most, over all attempts."""
        return self.sampling.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities at one position: of the chosen token, and (token id, value), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens; the last of them is numbered `seq`, and `text` became certain with them.

    Attributes:
        pieces: `text` token by token, one entry for each of `token_ids`.
    """

    attempt: int
    seq: int
    token_ids: tuple[int, ...]
    text: str
    pieces: tuple[str, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts; `cached_tokens` had KV in the store before this request came."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True, kw_only=True)
class Timing:
    """Where time and bytes went; filled in by the pipeline as the request moves on.

    Times are of the last attempt, bytes are sums over all attempts. Placement is from the arrival
    to a pair with a slot; the look-up in the store and the wait for admission are parts of it.
    """

    placement_us: int = 0
    lookup_us: int = 0
    admit_us: int = 0
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
class Final:
    """End of a stream. `text` was held back until it was certain that nothing follows."""

    attempt: int
    seq: int
    text: str
    finish_reason: FinishReason
    usage: Usage
    timing: Timing = field(default_factory=Timing)


def seed_of(request_id: str) -> int:
    """The seed of a request that gives none: the first 8 bytes of SHA-256 of its id, big-endian."""
    return int.from_bytes(hashlib.sha256(request_id.encode("utf-8")).digest()[:8], "big")
