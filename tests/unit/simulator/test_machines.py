"""Machines of a topology, and what the balancer is told of them."""

from __future__ import annotations

import pytest

from balancer.membership.members import Role
from simulator.machines import Machines
from simulator.topology import TopologyError, parse_topology

SMALL = parse_topology({"decode": {"ranks": 16}})


def test_groups_links_and_caches_follow_the_topology() -> None:
    machines = Machines(parse_topology({"prefill": {"groups": 2}, "decode": {"ranks": 16}}))
    assert len(machines.prefill_groups) == 2
    assert len(machines.prefill_ids) == len(machines.prefill_in) == 16
    assert machines.decode_groups[0].requests.shape == (16,)
    assert sorted(machines.prefill_ids) == machines.prefill_ids
    assert machines.prefill_of[machines.prefill_ids[9]] == 9


def test_engines_without_shared_experts_do_not_step_together() -> None:
    machines = Machines(
        parse_topology(
            {
                "hardware": "a800",
                "model": "llama3-70b",
                "prefill": {"groups": 1, "ranks": 4, "attn_tp": 8},
                "decode": {"groups": 1, "ranks": 2, "attn_tp": 8},
            }
        )
    )
    assert len(machines.prefill_groups) == 4
    assert machines.prefill_lockstep == 1


def test_a_member_says_what_a_heartbeat_would() -> None:
    machines = Machines(SMALL)
    prefill, decode = machines.prefill_member(3, 7), machines.decode_member(5, 7)
    assert (prefill.role, prefill.rank, prefill.group_size, prefill.sequence) == (
        Role.PREFILL,
        3,
        8,
        7,
    )
    assert decode.load.kv_capacity_tokens == machines.decode_cost.kv_capacity_tokens
    assert prefill.fingerprint == decode.fingerprint
    machines.decode_groups[0].join(1, 5, context=1000, tokens=5, now=0.0)
    assert machines.decode_member(5, 8).load.kv_tokens == 1000


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"hardware": "h900"}, "'h900' is unknown"),
        ({"model": "gpt"}, "'gpt' is unknown; known: llama3-70b"),
        ({"decode": {"ranks": 1}}, "do not fit"),
        ({"hardware_changes": {"nic": 1}}, "no field 'nic'"),
    ],
)
def test_what_cannot_be_built(raw: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Machines(parse_topology(raw))
