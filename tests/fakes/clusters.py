"""A large cluster as a balancer hears of it: heartbeats of members that are not there.

They come over the wire as those of real members do, with a load that is drawn from a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import grpc.aio

from disagg.v1 import membership_pb2, membership_pb2_grpc

SLOTS = 64
KV_TOKENS = 600_000


@dataclass
class Cluster:
    """Prefill engines and decode ranks that only announce themselves.

    Attributes:
        fullness: Mean share of the decode slots that are taken.
        num_requests: What the decode ranks said to run, in all.
    """

    prefill_engines: int
    decode_ranks: int
    seed: int = 1
    fullness: float = 0.55
    num_requests: int = 0
    decode_ids: list[str] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self.decode_ids = [f"decode-0/{rank:04}" for rank in range(self.decode_ranks)]

    async def announce(self, channel: grpc.aio.Channel) -> None:
        """One heartbeat of each; draws their load anew."""
        self.sequence += 1
        self.num_requests = 0
        stub = membership_pb2_grpc.MembershipServiceStub(channel)
        for rank in range(self.prefill_engines):
            load = membership_pb2.LoadSnapshot(
                running=self._draw.randint(0, 1),
                queued_tokens=self._draw.choice([0, 4000, 9000, 60_000]),
            )
            await self._beat(stub, membership_pb2.MEMBER_ROLE_PREFILL, "prefill-0", rank, load)
        for rank in range(self.decode_ranks):
            running = min(SLOTS, max(0, round(self._draw.gauss(self.fullness, 0.16) * SLOTS)))
            self.num_requests += running
            load = membership_pb2.LoadSnapshot(
                running=running,
                max_running=SLOTS,
                kv_tokens=min(KV_TOKENS, running * self._draw.randint(3000, 9000)),
                kv_capacity_tokens=KV_TOKENS,
            )
            await self._beat(stub, membership_pb2.MEMBER_ROLE_DECODE, "decode-0", rank, load)

    async def _beat(
        self,
        stub: membership_pb2_grpc.MembershipServiceAsyncStub,
        role: membership_pb2.MemberRole,
        group: str,
        rank: int,
        load: membership_pb2.LoadSnapshot,
    ) -> None:
        size = self.decode_ranks if group == "decode-0" else self.prefill_engines
        member = membership_pb2.Member(
            member_id=f"{group}/{rank:04}",
            role=role,
            address=f"{group}.test:{20_000 + rank}",
            group_id=group,
            group_size=size,
            rank=rank,
            fingerprint=b"layout-1",
            model="tiny-v4",
            max_model_len=1 << 20,
            block_tokens=32,
            ready=True,
            sequence=self.sequence,
            load=load,
        )
        await stub.Heartbeat(membership_pb2.HeartbeatRequest(member=member), timeout=5)
