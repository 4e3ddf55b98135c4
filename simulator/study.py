"""Several policies on one trace and one cluster, in one run: the library side of `simulate`.

Every policy gets fresh machines and the same requests. What the policies are told (targets, compute
estimate, price of a transfer) is derived from the profiles here, as a deployment's settings would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from balancer.routing.options import RoutingOptions, class_limits
from balancer.routing.policies import POLICIES
from balancer.routing.quota import FlopCount
from simulator.machines import Machines
from simulator.results.report import report
from simulator.results.samples import Samples
from simulator.results.slo import Slo
from simulator.run import Simulation
from simulator.sizing import default_cluster
from simulator.topology import Topology
from simulator.traces.trace import Trace

_PROBE_TOKENS = 8192
_WORDS = {"true": True, "false": False}
Progress = Callable[[str, int, int], None]
"""Told the policy, and how many requests of how many are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to simulate.

    Args:
        trace: At the rate it is simulated with.
        topology: The cluster.
        arrival_factor: By how much the trace was sped up.
        slo: Targets for goodput, also told to the policies.
        seed: Of draws that policies make.
        options: Settings of the policies with other values.
    """

    trace: Trace
    topology: Topology
    arrival_factor: float = 1.0
    slo: Slo = field(default_factory=Slo)
    seed: int = 0
    options: Mapping[str, Any] | None = None


def make_study(
    trace: Trace,
    topology: Topology | None,
    *,
    base: Topology | None = None,
    load: float = 1.0,
    slo: Slo | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Study:
    """Puts a trace on a cluster.

    Args:
        topology: The cluster; None for the default one, sized for the trace.
        base: Hardware, model and all that is not sized, for the default cluster.
        load: Factor on arrivals; on the default cluster 1 means 90 % of its prefill capacity.

    Raises:
        ValueError: a load that cannot be.
        TopologyError: no default cluster would do.
    """
    factor = load
    if topology is None:
        topology, fill = default_cluster(trace, base or Topology())
        factor = load * fill
    return Study(
        trace=trace.faster(factor),
        topology=topology,
        arrival_factor=factor,
        slo=slo or Slo(),
        seed=seed,
        options=options,
    )


def run_policy(
    study: Study,
    name: str,
    progress: Progress | None = None,
    *,
    journal: Callable[[str], None] | None = None,
) -> Samples:
    """Simulates one policy.

    Args:
        name: Of the policy; options of its own may follow, as in `deepseek:refuse_late=never`.
        journal: Takes every input of placement, line by line; see `simulator.replay`.

    Raises:
        ValueError: no such policy.
    """
    machines = Machines(study.topology)
    policy, changes = parse_policy(name)
    options = policy_options(study, machines, changes)
    return Simulation(
        trace=study.trace,
        machines=machines,
        policy=policy,
        options=options,
        report=None if progress is None else lambda done, total: progress(name, done, total),
        journal=journal,
    ).run()


def compare(
    study: Study, names: Sequence[str], progress: Progress | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, Samples]]:
    """Simulates policies one after the other; figures and samples by name."""
    figures, samples = {}, {}
    for name in names:
        samples[name] = run_policy(study, name, progress)
        figures[name] = report(samples[name], study.slo, class_names(study))
    return figures, samples


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """A policy and the options that were given with it: `NAME` or `NAME:option=value:...`.

    Raises:
        ValueError: no such policy or option, or a value that cannot be.
    """
    name, *given = text.split(":")
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are: {', '.join(sorted(POLICIES))}")
    plain = {
        option.name: getattr(RoutingOptions(), option.name)
        for option in fields(RoutingOptions)
        if isinstance(getattr(RoutingOptions(), option.name), bool | int | float | str)
    }
    changes: dict[str, Any] = {}
    for part in given:
        option, _, value = part.partition("=")
        if option not in plain:
            raise ValueError(
                f"{text!r}: no option {option!r}; there are: {', '.join(sorted(plain))}"
            )
        kind = type(plain[option])
        try:
            changes[option] = _WORDS[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise ValueError(
                f"{text!r}: {option} is {value!r}; wanted like {option}="
                f"{str(plain[option]).lower()}"
            ) from None
    RoutingOptions(**changes)
    return name, changes


def policy_options(
    study: Study, machines: Machines, changes: Mapping[str, Any] | None = None
) -> RoutingOptions:
    """What a deployment on these machines would tell its policies."""
    cost = machines.prefill_cost
    keep = study.topology.front.replay_tokens or None
    whole = machines.work.prefill(_PROBE_TOKENS, _PROBE_TOKENS, prompt=_PROBE_TOKENS, keep=keep)
    later = machines.work.prefill(
        _PROBE_TOKENS, 9 * _PROBE_TOKENS, prompt=9 * _PROBE_TOKENS, keep=keep
    )
    pairs = _PROBE_TOKENS * 8 * _PROBE_TOKENS
    per_pair = max(1.0, (later.total - whole.total) / pairs)
    per_token = whole.total / _PROBE_TOKENS - per_pair * _PROBE_TOKENS / 2
    transfer_s = machines.sizes.kv_bytes_per_token / cost.nic_bytes_per_s
    known: dict[str, Any] = {
        "flops": FlopCount(
            per_token=per_token,
            per_pair=per_pair,
            flops_per_s=machines.hardware.flops_per_s * cost.attn_tp,
            fixed_s=cost.sizes.num_layers * machines.hardware.layer_overhead_us * 1e-6,
        ),
        "salt": str(study.seed),
        "ttft_slo_s": study.slo.ttft_s,
        "ttft_slo_per_token_s": study.slo.ttft_per_token_s,
        "tpot_slo_s": study.slo.tpot_s,
        **_step_prices(machines),
        "transfer_s_per_token": transfer_s,
    }
    return RoutingOptions(**(known | dict(study.options or {}) | dict(changes or {})))


def _step_prices(machines: Machines) -> dict[str, float]:
    """A decode step by running requests and KV tokens of a rank, for policies that predict it."""
    cost, ranks = machines.decode_cost, machines.decode_lockstep
    rows, context = 64, 16_384
    read = cost.work.read_bytes(context)
    empty = cost.decode_step_s(1, read, ranks)
    full = cost.decode_step_s(rows, rows * read, rows * ranks)
    longer = cost.decode_step_s(rows, rows * cost.work.read_bytes(2 * context), rows * ranks)
    per_token = max(0.0, longer - full) / (rows * context)
    per_request = max(0.0, (full - empty) / (rows - 1) - context * per_token)
    return {
        "step_s": empty,
        "step_s_per_request": per_request,
        "step_s_per_token": per_token,
    }


def class_names(study: Study) -> tuple[str, ...]:
    """Names of the length classes, such as `<16K` and `16K-64K`."""
    options = RoutingOptions(**dict(study.options or {}))
    return class_limits(options.boundaries)
