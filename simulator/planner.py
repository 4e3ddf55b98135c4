"""The smallest cluster that serves a trace within its targets, and what keeps it from less.

A cluster is good when the default policy reaches the wanted goodput on it, at the trace's own rate.
The search goes one dimension after the other, from what costs most to what costs least: size and
number of prefill groups, of decode groups, network bandwidth, store bytes. In each dimension more
is taken to be better, so halving finds the edge. At the end every dimension is made one step
smaller alone: those clusters would have violated the targets, and the one that falls deepest names
the constraint that binds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.machines import Machines
from simulator.results.samples import Samples
from simulator.results.slo import Slo
from simulator.sizing import demand_of
from simulator.study import Study, class_names, run_policy
from simulator.topology import Topology, TopologyError
from simulator.traces.trace import Trace

POLICY = "deepseek"
PREFILL_SIZES = (4, 8, 16, 32)
DECODE_SIZES = (8, 16, 32, 64, 128)
NIC_GBITS = (25.0, 50.0, 100.0, 200.0, 400.0, 800.0)
STORE_BYTES = (0.0, *(2.0**power for power in range(33, 46)))  # none, 8 GiB to 32 TiB
_MAX_GROUPS = 64
_MOST_ENGINES = 1024
_MIN_GAIN = 0.002  # of the share of good requests, for going on with more groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cluster that was tried.

    Args:
        change: How it differs from the plan; empty for the plan.
        goodput: Share of requests within the targets.
        late, slow, refused: Shares that missed TTFT or were refused since they would have, missed
            TPOT, or were refused for want of room; the first that fits.
    """

    topology: Topology
    change: str
    goodput: float
    late: float
    slow: float
    refused: float

    @property
    def accelerators(self) -> int:
        """How many the cluster has."""
        return accelerators(self.topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the search found.

    Args:
        best: The smallest good cluster, or the best one where none was good enough.
        is_good: Whether it reaches the wanted goodput.
        engines_by_class: Mean prefill engines of each length class.
        binding: What holds the cluster from being smaller, or from being good.
        violated: Clusters that would have missed the targets, each one step smaller.
        tried: How many clusters were simulated.
    """

    best: Trial
    is_good: bool
    engines_by_class: dict[str, float]
    binding: str
    violated: tuple[Trial, ...]
    tried: int


def accelerators(topology: Topology) -> int:
    """Accelerators of a cluster."""
    prefill, decode = topology.prefill, topology.decode
    return prefill.engines * prefill.attn_tp + decode.engines * decode.attn_tp


def busiest(trace: Trace, count: int) -> Trace:
    """The `count` consecutive requests that ask for most prompt tokens a second."""
    if len(trace.requests) <= count:
        return trace
    tokens = np.cumsum([0, *(request.prompt_tokens for request in trace.requests)])
    at = np.array([request.arrived_s for request in trace.requests])
    spans = np.maximum(at[count - 1 :] - at[: len(at) - count + 1], 1e-3)
    start = int(np.argmax((tokens[count:] - tokens[:-count]) / spans))
    begin = trace.requests[start].arrived_s
    return dataclasses.replace(
        trace,
        requests=tuple(
            dataclasses.replace(request, arrived_s=request.arrived_s - begin)
            for request in trace.requests[start : start + count]
        ),
    )


@dataclass(slots=True)
class Planner:
    """Searches; use once.

    Args:
        trace: At the rate that is to be served.
        base: Hardware, model and everything that is not searched.
        goodput: Wanted share of requests within the targets.
        told: Told every cluster that is tried.
    """

    trace: Trace
    base: Topology
    slo: Slo
    goodput: float
    seed: int = 0
    told: Callable[[str], None] | None = None
    _trials: dict[str, tuple[Trial, Samples]] = field(default_factory=dict)

    def search(self) -> Plan:
        """Finds the plan.

        Raises:
            TopologyError: the model fits no group of this hardware.
        """
        generous = self._generous()
        found = self._smallest_groups("prefill", generous)
        found = self._smallest_groups("decode", found)
        if self._is_good(found):
            found = self._smallest(found, [_with_nic(found, value) for value in NIC_GBITS])
            found = self._smallest(found, [_with_store(found, value) for value in STORE_BYTES])
        best, samples = self._try(found)
        smaller = [self._try(topology, name)[0] for name, topology in self._one_smaller(found)]
        violated = tuple(trial for trial in smaller if trial.goodput < self.goodput)
        return Plan(
            best=dataclasses.replace(best, change=""),
            is_good=best.goodput >= self.goodput,
            engines_by_class=self._engines(found, samples),
            binding=self._binding(best, violated, found),
            violated=violated,
            tried=len(self._trials),
        )

    def _generous(self) -> Topology:
        """More than enough of everything but what is searched first."""
        decode = _fitting(self.base, "decode")
        return dataclasses.replace(
            self.base,
            hardware_changes={**self.base.hardware_changes, "nic_gbits_per_s": NIC_GBITS[-1]},
            decode=dataclasses.replace(self.base.decode, ranks=decode[-1], groups=2),
            store=dataclasses.replace(self.base.store, capacity_bytes=STORE_BYTES[-1]),
        )

    def _smallest_groups(self, side: str, start: Topology) -> Topology:
        """The cluster with the fewest accelerators on one side that is still good."""
        best: Topology | None = None
        fallback = start
        for size in _fitting(self.base, side):
            topology = self._fewest(side, start, size, best)
            if topology is None:
                continue
            if self._share(side, topology) < self.goodput:
                if fallback is start or self._score(topology) > self._score(fallback):
                    fallback = topology
            elif best is None or accelerators(topology) < accelerators(best):
                best = topology
        return best or fallback

    def _fewest(
        self, side: str, start: Topology, size: int, best: Topology | None
    ) -> Topology | None:
        """The fewest groups of one size that are good; the most that were tried if none is."""

        def sized(groups: int) -> Topology:
            plan = dataclasses.replace(getattr(start, side), ranks=size, groups=groups)
            return dataclasses.replace(start, **{side: plan})

        low, high = 0, self._least_groups(side, sized(1))
        most = min(_MAX_GROUPS, _MOST_ENGINES // size)
        reached = -1.0
        while True:
            high = min(high, most)
            if best is not None and accelerators(sized(high)) >= accelerators(best):
                return None  # no smaller than what is known to do
            share = self._share(side, sized(high))
            if share >= self.goodput:
                break
            if high == most or share < reached + _MIN_GAIN:
                return sized(high)  # more of the same does not help
            reached = share
            low, high = high, math.ceil(high * 1.5) if high > 2 else high + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._share(side, sized(middle)) >= self.goodput:
                high = middle
            else:
                low = middle
        return sized(high)

    def _least_groups(self, side: str, one: Topology) -> int:
        """Groups below which no arithmetic would do; 1 on the decode side."""
        if side == "decode":
            return 1
        demand = demand_of(self.trace, Machines(one)).engines
        return max(1, math.ceil(demand / one.prefill.ranks))

    def _smallest(self, current: Topology, candidates: list[Topology]) -> Topology:
        """Of ascending candidates the first that is good; the current one if none is."""
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            if self._is_good(candidates[middle]):
                high = middle
            else:
                low = middle + 1
        return candidates[low] if low < len(candidates) else current

    def _one_smaller(self, found: Topology) -> Iterable[tuple[str, Topology]]:
        """The cluster with one dimension a step smaller, for each that can be."""
        for side in ("prefill", "decode"):
            plan = getattr(found, side)
            sizes = [size for size in _fitting(self.base, side) if size < plan.ranks]
            if plan.groups > 1:
                smaller = dataclasses.replace(plan, groups=plan.groups - 1)
                name = f"{side}.groups {plan.groups - 1} instead of {plan.groups}"
                yield name, dataclasses.replace(found, **{side: smaller})
            elif sizes:
                smaller = dataclasses.replace(plan, ranks=sizes[-1])
                name = f"{side}.ranks {sizes[-1]} instead of {plan.ranks}"
                yield name, dataclasses.replace(found, **{side: smaller})
        nic = float(str(found.hardware_changes.get("nic_gbits_per_s", NIC_GBITS[0])))
        below = [value for value in NIC_GBITS if value < nic]
        if below:
            yield f"nic_gbits_per_s {below[-1]:g} instead of {nic:g}", _with_nic(found, below[-1])
        stored = [value for value in STORE_BYTES if value < found.store.capacity_bytes]
        if stored:
            name = f"store.capacity_bytes {stored[-1]:.3g}"
            name += f" instead of {found.store.capacity_bytes:.3g}"
            yield name, _with_store(found, stored[-1])

    def _binding(self, best: Trial, violated: tuple[Trial, ...], found: Topology) -> str:
        if best.goodput < self.goodput:
            kind = max(("late", "slow", "refused"), key=lambda name: getattr(best, name))
            return _UNREACHED[kind]
        if not violated:
            return (
                f"the smallest group: no fewer than {found.prefill.ranks} prefill and "
                f"{found.decode.ranks} decode ranks hold the model"
            )
        worst = min(violated, key=lambda trial: trial.goodput)
        dimension = worst.change.split(" ")[0]
        kind = max(("late", "slow", "refused"), key=lambda name: getattr(worst, name))
        return f"{_BINDS[dimension]} ({dimension}): {_MISSES[kind]} otherwise"

    def _engines(self, found: Topology, samples: Samples) -> dict[str, float]:
        """Mean engines by class, after the policy has seen demand."""
        names = class_names(self._study(found))
        rows = [look.engines for look in samples.looks if look.engines]
        if not rows:
            return {"any": float(found.prefill.engines)}
        return dict(zip(names, np.mean(rows, axis=0).round(2).tolist(), strict=True))

    def _is_good(self, topology: Topology) -> bool:
        return self._score(topology) >= self.goodput

    def _share(self, side: str, topology: Topology) -> float:
        """Requests that meet what this side of the cluster decides about."""
        trial = self._try(topology)[0]
        return 1.0 - trial.late - trial.refused if side == "prefill" else trial.goodput

    def _score(self, topology: Topology) -> float:
        return self._try(topology)[0].goodput

    def _study(self, topology: Topology) -> Study:
        return Study(trace=self.trace, topology=topology, slo=self.slo, seed=self.seed)

    def _try(self, topology: Topology, change: str = "") -> tuple[Trial, Samples]:
        key = repr(topology)
        if key not in self._trials:
            if self.told is not None:
                self.told(describe(topology))
            samples = run_policy(self._study(topology), POLICY)
            self._trials[key] = (_judged(topology, samples, self.slo), samples)
        trial, samples = self._trials[key]
        return dataclasses.replace(trial, change=change or describe(topology)), samples


def describe(topology: Topology) -> str:
    """A cluster in one phrase."""
    prefill, decode = topology.prefill, topology.decode
    nic = topology.hardware_changes.get("nic_gbits_per_s")
    return (
        f"prefill {prefill.groups} x {prefill.ranks}, decode {decode.groups} x {decode.ranks}, "
        f"store {topology.store.capacity_bytes / 1e12:.3g} TB"
        + (f", {nic:g} Gbit/s a rank" if isinstance(nic, float | int) else "")
    )


_BINDS = {
    "prefill.groups": "prefill compute",
    "prefill.ranks": "prefill compute",
    "decode.groups": "decode steps and slots",
    "decode.ranks": "decode steps and slots",
    "nic_gbits_per_s": "network bandwidth of a rank",
    "store.capacity_bytes": "bytes of the store",
}
_MISSES = {
    "late": "first tokens come late",
    "slow": "tokens come slowly",
    "refused": "requests are refused",
}
_UNREACHED = {
    "late": "first tokens: even without waiting, or with all engines, prefill takes too long",
    "slow": "decode: a step is longer than the target however many ranks share the work",
    "refused": "capacity: requests find no engine that could take them",
}


def _judged(topology: Topology, samples: Samples, slo: Slo) -> Trial:
    late = slow = refused = good = 0
    for row in samples.rows:
        if row.refused == "late":
            late += 1
        elif row.refused:
            refused += 1
        elif slo.is_met(row.prompt_tokens, row.ttft_s, row.tpot_s):
            good += 1
        elif row.ttft_s > slo.ttft_target_s(row.prompt_tokens):
            late += 1
        else:
            slow += 1
    total = len(samples.rows)
    return Trial(
        topology=topology,
        change="",
        goodput=good / total,
        late=late / total,
        slow=slow / total,
        refused=refused / total,
    )


def _fitting(base: Topology, side: str) -> tuple[int, ...]:
    """Group sizes that hold the model, ascending; that of the topology when nothing is shared."""
    plan: Any = getattr(base, side)
    machines: Machines | None = None
    found, reason = [], ""
    for size in PREFILL_SIZES if side == "prefill" else DECODE_SIZES:
        other = "decode" if side == "prefill" else "prefill"
        safe = dataclasses.replace(getattr(base, other), ranks=64 if other == "decode" else 32)
        sized = dataclasses.replace(plan, ranks=size, groups=1)
        try:
            machines = Machines(dataclasses.replace(base, **{side: sized, other: safe}))
        except TopologyError as error:
            reason = str(error)
            continue
        if not machines.sizes.num_experts:
            return (1,)
        found.append(size)
    if machines is None:
        raise TopologyError(f"no {side} group can be built: {reason}")
    return tuple(found)


def _with_nic(topology: Topology, gbits: float) -> Topology:
    changes = {**topology.hardware_changes, "nic_gbits_per_s": gbits}
    return dataclasses.replace(topology, hardware_changes=changes)


def _with_store(topology: Topology, capacity_bytes: float) -> Topology:
    store = dataclasses.replace(topology.store, capacity_bytes=capacity_bytes)
    return dataclasses.replace(topology, store=store)
