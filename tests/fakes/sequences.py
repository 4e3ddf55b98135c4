"""Sequences in any state, without a scheduler."""

from __future__ import annotations

from engine.request import EngineRequest, SamplingParams
from engine.sequence import Sequence


def sequence_of(
    name: str = "a",
    num_tokens: int = 1,
    *,
    arrival_idx: int = 1,
    num_computed: int = 0,
    num_generated: int = 0,
    max_pages: int = 25,
    max_kv_tokens: int = 1000,
    boundaries: tuple[int, ...] = (),
    is_paused: bool = False,
) -> Sequence:
    """A sequence that knows tokens, of which some have KV."""
    sequence = Sequence(
        EngineRequest(
            request_id=name,
            token_ids=tuple(range(num_tokens)),
            num_generated=num_generated,
            sampling=SamplingParams(max_tokens=100),
        ),
        arrival_idx=arrival_idx,
        max_kv_tokens=max_kv_tokens,
        max_pages=max_pages,
        boundaries=boundaries,
    )
    sequence.num_computed = num_computed
    sequence.is_paused = is_paused
    return sequence
