"""The machines of a topology: groups, links and caches, built from profiles; and their members.

What the balancer is told of a machine goes through `Member`, as a heartbeat would carry it.
"""

from __future__ import annotations

import math
from pathlib import Path

from balancer.membership.members import Load, Member, Role
from engine.model.config import ModelConfigError
from engine.model.sizing.catalog import model_names, read_config
from engine.model.sizing.sizes import ModelSizes
from simulator.engines.decode import DecodeGroup
from simulator.engines.links import Link
from simulator.engines.prefill import PrefillGroup
from simulator.engines.prefixes import PrefixCache
from simulator.hardware.cost import CostModel
from simulator.hardware.profiles import ProfileError, read_hardware
from simulator.topology import Topology, TopologyError
from simulator.traces.trace import BLOCK_TOKENS
from simulator.work.families import read_work
from simulator.work.flops import ModelWork

_FINGERPRINT = b"simulate"
_STATE_BLOCKS = 2  # of 512 tokens: the store keeps a state every 1024


class Machines:
    """All of a topology.

    Args:
        topology: What to build.

    Raises:
        TopologyError: an unknown profile or model, or a group that does not fit.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        try:
            self.hardware = read_hardware(topology.hardware, dict(topology.hardware_changes))
            self.sizes, self.work = _model(topology.model)
            self.prefill_cost = self._cost(topology.prefill.ranks, topology.prefill.attn_tp)
            self.decode_cost = self._cost(topology.decode.ranks, topology.decode.attn_tp)
        except (ProfileError, ModelConfigError) as error:
            raise TopologyError(str(error)) from error
        prefill, decode, store = topology.prefill, topology.decode, topology.store
        is_sharing = bool(self.sizes.num_experts)
        # Without experts to share nothing ties engines together: each is a group of its own.
        self.prefill_lockstep = prefill.ranks if is_sharing else 1
        self.decode_lockstep = decode.ranks if is_sharing else 1
        self.prefill_groups = [
            PrefillGroup(
                self.prefill_cost,
                num_ranks=self.prefill_lockstep,
                chunk_tokens=prefill.chunk_tokens,
            )
            for _ in range(prefill.engines // self.prefill_lockstep)
        ]
        self.decode_groups = [
            DecodeGroup(self.decode_cost, num_ranks=self.decode_lockstep)
            for _ in range(decode.engines // self.decode_lockstep)
        ]
        self.prefill_in = self._links(prefill.engines, self.prefill_cost)
        self.prefill_out = self._links(prefill.engines, self.prefill_cost)
        self.decode_in = self._links(decode.engines, self.decode_cost)
        store_rate = store.gbits_per_s * 1e9 / 8 * self.hardware.link_efficiency
        self.store_in, self.store_out = Link(store_rate), Link(store_rate)
        self.store = self._cache(store.capacity_bytes)
        self.local = [
            self._cache(prefill.cache_bytes) if store.cache != "shared" else self._cache(0.0)
            for _ in range(prefill.engines)
        ]
        self.prefill_ids = _ids("prefill", prefill.engines)
        self.decode_ids = _ids("decode", decode.engines)
        self.prefill_of = {name: number for number, name in enumerate(self.prefill_ids)}
        self.decode_of = {name: number for number, name in enumerate(self.decode_ids)}
        self.max_model_len = topology.front.max_model_len or self.sizes.max_context
        self.max_running = min(decode.max_running, self.decode_cost.max_running(1))

    def prefill_member(self, engine: int, sequence: int) -> Member:
        """An engine as its heartbeat describes it."""
        group, rank = divmod(engine, self.prefill_lockstep)
        running, waiting, tokens = self.prefill_groups[group].load(rank)
        load = Load(running=running, waiting=waiting, queued_tokens=tokens)
        return self._member(self.prefill_ids[engine], Role.PREFILL, group, rank, sequence, load)

    def decode_member(self, engine: int, sequence: int) -> Member:
        """An engine as its heartbeat describes it."""
        group, rank = divmod(engine, self.decode_lockstep)
        found = self.decode_groups[group]
        load = Load(
            running=int(found.requests[rank]),
            kv_tokens=round(float(found.kv_of(rank))),
            kv_capacity_tokens=self.decode_cost.kv_capacity_tokens,
            max_running=self.max_running,
        )
        return self._member(self.decode_ids[engine], Role.DECODE, group, rank, sequence, load)

    def capacity_s(self, n_new: int, n_cached: int) -> float:
        """Seconds of a prompt on an engine whose group is evenly busy."""
        return self.prefill_cost.full_prefill_s(n_new, n_cached, self.topology.prefill.chunk_tokens)

    def _member(
        self, name: str, role: Role, group: int, rank: int, sequence: int, load: Load
    ) -> Member:
        return Member(
            member_id=name,
            role=role,
            address=f"{name}:0",
            group_id=f"{role.value}-{group}",
            fingerprint=_FINGERPRINT,
            model=self.topology.model,
            max_model_len=self.max_model_len,
            block_tokens=128,
            ready=True,
            sequence=sequence,
            rank=rank,
            group_size=self.prefill_lockstep if role is Role.PREFILL else self.decode_lockstep,
            load=load,
        )

    def _cost(self, ranks: int, attn_tp: int) -> CostModel:
        front = self.topology.front
        return CostModel(
            hardware=self.hardware,
            sizes=self.sizes,
            work=self.work,
            ep=ranks if self.sizes.num_experts else 1,
            attn_tp=attn_tp,
            expert_skew=front.expert_skew,
            replay_tokens=front.replay_tokens or None,
        )

    def _links(self, count: int, cost: CostModel) -> list[Link]:
        return [Link(cost.nic_bytes_per_s) for _ in range(count)]

    def _cache(self, capacity_bytes: float) -> PrefixCache:
        state = self.sizes.state_bytes_per_sequence
        return PrefixCache(
            capacity_bytes=capacity_bytes,
            block_bytes=BLOCK_TOKENS * self.sizes.kv_bytes_per_token,
            state_bytes=state,
            state_every=_STATE_BLOCKS if state else 1,
        )


def _model(name: str) -> tuple[ModelSizes, ModelWork]:
    if name not in model_names() and not Path(name).is_dir():
        raise ModelConfigError(f"model {name!r} is unknown; known: {', '.join(model_names())}")
    raw = read_config(name)
    return ModelSizes.from_config(raw), read_work(raw)


def _ids(role: str, count: int) -> list[str]:
    """Names whose order is that of the numbers."""
    width = max(2, math.ceil(math.log10(count))) if count > 1 else 2
    return [f"{role}-{number:0{width}d}" for number in range(count)]
