"""What an engine holds and has done, as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMoves:
    """What moving experts by their load has come to; equal on all ranks that share experts.

    Args:
        steps_since: agreed steps since the last move, or since the start.
        moves: times experts were placed anew.
        changed_slots: slots that got another expert, over all layers and moves.
    """

    steps_since: int = 0
    moves: int = 0
    changed_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot; the counters run from the start of the engine.

    Args:
        running: sequences with device memory.
        waiting: sequences without, the preempted included.
        max_running: bound of `running`.
        kv_tokens: tokens in KV on the device.
        kv_capacity_tokens: tokens the pool holds.
        free_pages: pages nobody refers to.
        free_slots: state slots nobody owns.
        queued_tokens: known tokens that still need computing.
        steps: forward steps, placeholder steps not counted.
        prefill_steps: those of the prefill kind.
        placeholder_steps: steps in which this rank only served its peers.
        computed_tokens: tokens whose KV was computed here.
        generated_tokens: tokens sampled here.
        preemptions: times a sequence lost its memory.
        swapped_bytes: bytes copied out for that.
        failed_requests: requests that ended by an error of their own.
        stalled_rounds: agreements in a row that found work nobody could run.
        steps_since_move: agreed steps since experts last moved; None when they never do.
        expert_moves: times experts were placed anew by their load; None likewise.
        changed_slots: slots that got another expert by that; None likewise.
    """

    running: int
    waiting: int
    max_running: int
    kv_tokens: int
    kv_capacity_tokens: int
    free_pages: int
    free_slots: int
    queued_tokens: int
    steps: int
    prefill_steps: int
    placeholder_steps: int
    computed_tokens: int
    generated_tokens: int
    preemptions: int
    swapped_bytes: int
    failed_requests: int
    stalled_rounds: int
    steps_since_move: int | None = None
    expert_moves: int | None = None
    changed_slots: int | None = None
