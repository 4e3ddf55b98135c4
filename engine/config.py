"""Settings of one engine: cache, scheduler and role. Frozen, checked once, never changed.

Nothing here knows the model or reads files; what the model dictates (vocabulary, context, end
tokens) comes as `ModelLimits`, and what follows from both is its own type (`CacheSize`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SettingsError(ValueError):
    """Settings contradict each other or the model; the message names fields, values, way out."""


class EngineRole(enum.Enum):
    """What steps an engine runs: both kinds, prefill only, or decode only."""

    NORMAL = "normal"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the model dictates to scheduler and sampler.

    Args:
        vocab_size: token ids lie in [0, vocab_size).
        max_model_len: tokens of a sequence at most, prompt and generated together.
        eos_token_ids: tokens that end a generation unless the request ignores them.
    """

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise SettingsError(f"vocab_size is {self.vocab_size}: give at least 1")
        if self.max_model_len < 2:
            raise SettingsError(f"max_model_len is {self.max_model_len}: give at least 2")
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise SettingsError(
                    f"eos_token_ids has {token_id}, outside the vocabulary [0, {self.vocab_size}): "
                    "mend the model's config.json or generation_config.json"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Pages and slots of one rank, scratch page and scratch slot included."""

    num_pages: int
    num_state_slots: int
    block_tokens: int

    def pages_for(self, num_tokens: int) -> int:
        """Returns how many pages hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine (one rank).

    Args:
        role: which kinds of steps it runs.
        block_tokens: tokens of a KV block; None leaves it to whoever knows the model.
        num_pages: pages of the pool, the scratch page included; exclusive with kv_memory_bytes.
        kv_memory_bytes: bytes for pages; the number of pages follows from the model.
        num_state_slots: state slots, the scratch slot included; None derives them.
        max_num_seqs: sequences that hold memory at the same time.
        max_num_batched_tokens: rows of one step at most; a prefill chunk is no longer.
        max_waiting: requests in the queue at most; more are refused.
        max_model_len: lowers the context of the model; None keeps it.
        prefill_attempt_interval: decode steps between votes in which all ranks must want a
            prefill (A).
        prefill_any_attempt_interval: decode steps after which one rank that wants a prefill is
            enough (Y).
        batch_invariant: rows do not depend on their neighbours, bit by bit.
        late_scheduling: prepare a step while the decode step before it runs; see
            `engine.step_launcher`. Tokens do not depend on it.
        rank: this rank of the lockstep group.
        num_ranks: ranks of the lockstep group.
        cp: ranks that share the rows of this engine's prefill steps.

    Raises:
        SettingsError: a field, or two that do not go together.
    """

    role: EngineRole = EngineRole.NORMAL
    block_tokens: int | None = None
    num_pages: int | None = None
    kv_memory_bytes: int | None = None
    num_state_slots: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_waiting: int = 1024
    max_model_len: int | None = None
    prefill_attempt_interval: int = 4
    prefill_any_attempt_interval: int = 16
    batch_invariant: bool = True
    late_scheduling: bool = False
    rank: int = 0
    num_ranks: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise SettingsError(f"{name} is {value}: give at least {minimum}")
        if (self.num_pages is None) == (self.kv_memory_bytes is None):
            raise SettingsError(
                f"num_pages is {self.num_pages} and kv_memory_bytes is {self.kv_memory_bytes}: "
                "set exactly one of them"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, below max_num_seqs "
                f"{self.max_num_seqs}, but a decode step has a row per sequence: raise the former "
                "or lower the latter"
            )
        if self.num_state_slots is not None and self.num_state_slots <= self.max_num_seqs:
            raise SettingsError(
                f"num_state_slots is {self.num_state_slots}, but max_num_seqs "
                f"{self.max_num_seqs} needs one more than itself (slot 0 is scratch): raise the "
                "former or lower the latter"
            )
        if self.prefill_any_attempt_interval < self.prefill_attempt_interval:
            raise SettingsError(
                f"prefill_any_attempt_interval is {self.prefill_any_attempt_interval}, below "
                f"prefill_attempt_interval {self.prefill_attempt_interval}: raise the former or "
                "lower the latter"
            )
        self._check_context_ranks()
        if not self.rank < self.num_ranks:
            raise SettingsError(
                f"rank is {self.rank} but num_ranks is {self.num_ranks}: ranks count from 0"
            )

    def _check_context_ranks(self) -> None:
        if self.cp == 1:
            return
        if self.role is EngineRole.DECODE:
            raise SettingsError(
                f"cp is {self.cp} and role is decode, but decode steps do not share rows: use cp 1"
            )
        if self.max_num_batched_tokens < 2 * self.cp:
            raise SettingsError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, below {2 * self.cp}, "
                f"the shortest chunk of cp {self.cp}: raise the former or lower the latter"
            )

    def cache_size(self, page_bytes: int) -> CacheSize:
        """Returns pages and slots of this rank.

        Args:
            page_bytes: device bytes of one page over all layers.

        Raises:
            SettingsError: kv_memory_bytes is too small for a single usable page, or the block
                size is still open.
        """
        if self.block_tokens is None:
            raise SettingsError("block_tokens is not set: give the tokens of a KV block")
        num_pages = self.num_pages
        if num_pages is None:
            num_pages = (self.kv_memory_bytes or 0) // page_bytes
            if num_pages < _MINIMA["num_pages"]:
                raise SettingsError(
                    f"kv_memory_bytes is {self.kv_memory_bytes}, but two pages (one is scratch) "
                    f"take {2 * page_bytes} bytes: raise it or set num_pages"
                )
        slots = self.num_state_slots
        if slots is None:
            slots = self.max_num_seqs + 1
        return CacheSize(num_pages=num_pages, num_state_slots=slots, block_tokens=self.block_tokens)

    def context_tokens(self, limits: ModelLimits) -> int:
        """Returns the tokens a sequence may have, prompt and generated together.

        Raises:
            SettingsError: max_model_len asks for more than the model has.
        """
        if self.max_model_len is None:
            return limits.max_model_len
        if self.max_model_len > limits.max_model_len:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}, but the model's context is "
                f"{limits.max_model_len}: lower it or leave it out"
            )
        return self.max_model_len


_MINIMA: dict[str, int] = {
    "block_tokens": 1,
    "num_pages": 2,
    "kv_memory_bytes": 1,
    "num_state_slots": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_waiting": 1,
    "max_model_len": 2,
    # Two, so that at least one decode step lies between two prefill steps of a busy group.
    "prefill_attempt_interval": 2,
    "prefill_any_attempt_interval": 2,
    "rank": 0,
    "num_ranks": 1,
    "cp": 1,
}
