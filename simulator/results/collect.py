"""What is read off the machines when a run is over."""

from __future__ import annotations

from simulator.machines import Machines
from simulator.results.samples import Samples


def collect(samples: Samples, machines: Machines, capacity_s: float) -> None:
    """Completes samples by what the machines counted.

    Args:
        capacity_s: Engine seconds of all prompts, had every group been evenly busy.
    """
    rows, last_arrival = samples.rows, samples.rows[-1].arrived_at
    ended = [row.finished_at for row in rows if row.finished_at > 0]
    prefilled = [row.first_at for row in rows if row.first_at > 0]
    samples.ended_at = max(1e-9, last_arrival, *ended)
    span_s = max(1e-9, *prefilled) if prefilled else max(1e-9, last_arrival)
    samples.prefill_fill = capacity_s / (len(machines.prefill_ids) * span_s)
    busy = [group.busy_share(span_s) for group in machines.prefill_groups]
    samples.prefill_busy = sum(busy) / len(busy)
    decode = [group.busy_s for group in machines.decode_groups]
    samples.decode_busy = sum(decode) / (len(decode) * samples.ended_at)
    samples.store_busy = machines.store_out.busy_s / samples.ended_at
    samples.traffic.evicted_blocks = machines.store.evicted_blocks + sum(
        cache.evicted_blocks for cache in machines.local
    )
    for group in machines.decode_groups:
        samples.gaps += [(spell.step_s, spell.tokens) for spell in group.spells]
