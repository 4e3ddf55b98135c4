"""How many machines a trace needs, and the cluster that is simulated when none is given.

Demand is the prefill time of all prompts with a cache that forgets nothing, on evenly busy engines;
the default cluster puts it at 90 % of what its engines can do. Groups come whole, so the smallest
fitting number of groups would mostly idle below that: the arrivals are then sped up until the share
is met exactly. That factor is reported with every result.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from simulator.engines.prefixes import PrefixCache
from simulator.machines import Machines
from simulator.topology import Topology, TopologyError
from simulator.traces.trace import BLOCK_TOKENS, Trace

FILL = 0.9  # share of the prefill capacity that the default cluster uses
_ROOM = 0.8  # share of decode slots and KV that is meant to be taken
_MAX_DECODE_GROUPS = 256
_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a trace asks of a cluster at its own rate.

    Args:
        engines: Prefill engines that are always busy, on average.
        hit_share: Prompt tokens that an unlimited shared cache holds.
        prefix_tokens: Tokens of that cache at the end.
    """

    engines: float
    hit_share: float
    prefix_tokens: int


def demand_of(trace: Trace, machines: Machines) -> Demand:
    """Adds up the prefill work of a trace."""
    state = machines.sizes.state_bytes_per_sequence
    cache = PrefixCache(
        capacity_bytes=math.inf,
        block_bytes=BLOCK_TOKENS * machines.sizes.kv_bytes_per_token,
        state_bytes=state,
        state_every=2 if state else 1,
    )
    seconds, cached_sum, prompt_sum = 0.0, 0, 0
    for request in trace.requests:
        cached = cache.matched_tokens(request.blocks, request.prompt_tokens)
        seconds += machines.capacity_s(request.prompt_tokens - cached, cached)
        cache.store(request.blocks, request.prompt_tokens)
        cached_sum += cached
        prompt_sum += request.prompt_tokens
    return Demand(
        engines=seconds / trace.span_s,
        hit_share=cached_sum / prompt_sum,
        prefix_tokens=len(cache) * BLOCK_TOKENS,
    )


def default_cluster(trace: Trace, topology: Topology) -> tuple[Topology, float]:
    """The cluster for a trace, and the factor on its arrivals that fills it.

    Args:
        topology: Hardware, model and everything that is not sized here; it has as many prefill
            groups as the result has at least.

    Raises:
        TopologyError: no number of decode groups would do.
    """
    demand = demand_of(trace, Machines(topology))
    per_group = topology.prefill.ranks
    groups = max(topology.prefill.groups, math.ceil(demand.engines / (FILL * per_group)))
    factor = FILL * groups * per_group / demand.engines
    sized = dataclasses.replace(
        topology, prefill=dataclasses.replace(topology.prefill, groups=groups)
    )
    decode = decode_groups(trace, Machines(sized), factor)
    return (
        dataclasses.replace(sized, decode=dataclasses.replace(sized.decode, groups=decode)),
        factor,
    )


def decode_groups(trace: Trace, machines: Machines, factor: float) -> int:
    """Decode groups that hold the requests of a trace sped up by `factor`.

    Raises:
        TopologyError: more than can be simulated.
    """
    plan, cost = machines.topology.decode, machines.decode_cost
    outputs = sum(request.output_tokens for request in trace.requests)
    tokens = sum(
        request.output_tokens * (request.prompt_tokens + request.output_tokens / 2)
        for request in trace.requests
    )
    context = tokens / outputs
    generated = outputs / trace.span_s * factor  # tokens a second
    for groups in range(1, _MAX_DECODE_GROUPS + 1):
        ranks = groups * plan.ranks
        room = _ROOM * min(machines.max_running, cost.kv_capacity_tokens / context)
        rows = 1.0
        for _ in range(_ROUNDS):  # rows = arrivals * step time, and the step time grows with rows
            step = cost.decode_step_s(
                rows, rows * cost.work.read_bytes(round(context)), round(rows * plan.ranks)
            )
            rows = generated / ranks * step
            if rows > room:
                break
        else:
            return groups
    raise TopologyError(
        f"decode.groups would be above {_MAX_DECODE_GROUPS}; raise decode.ranks, or lower --load"
    )
