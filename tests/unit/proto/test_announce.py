"""One announcement over a real server."""

from __future__ import annotations

from types import SimpleNamespace

import grpc.aio

from disagg import wire
from disagg.announce import Announcement, MemberCard, beat_over
from disagg.v1 import membership_pb2, membership_pb2_grpc
from runtime.heartbeat import HeartbeatLimits


class _Balancer(membership_pb2_grpc.MembershipServiceServicer):
    """Remembers members; orders a drain when told to."""

    def __init__(self) -> None:
        self.seen: list[membership_pb2.Member] = []
        self.orders_drain = False
        self.remaining_s: float | None = None

    async def Heartbeat(  # type: ignore[override]
        self,
        request: membership_pb2.HeartbeatRequest,
        context: grpc.aio.ServicerContext,
    ) -> membership_pb2.HeartbeatResponse:
        self.seen.append(request.member)
        self.remaining_s = context.time_remaining()
        return membership_pb2.HeartbeatResponse(
            interval=wire.duration(0.75), drain=self.orders_drain
        )


async def test_a_beat_carries_the_member_and_brings_the_interval_and_the_order() -> None:
    balancer = _Balancer()
    server = grpc.aio.server()
    membership_pb2_grpc.add_MembershipServiceServicer_to_server(balancer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    drained: list[bool] = []

    async def on_drain() -> None:
        drained.append(True)

    sequence = iter(range(10))

    def member() -> membership_pb2.Member:
        return membership_pb2.Member(member_id="decode-0-r1-4f2a", sequence=next(sequence))

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        beat = beat_over(channel, member, on_drain=on_drain)
        assert await beat() == 0.75
        # A balancer with much to do comes to it after a second, and still hears it.
        assert balancer.remaining_s is not None
        assert 1.0 < balancer.remaining_s < HeartbeatLimits().timeout_s
        assert drained == []
        balancer.orders_drain = True
        await beat()
    await server.stop(0)
    assert drained == [True]
    assert [(seen.member_id, seen.sequence) for seen in balancer.seen] == [
        ("decode-0-r1-4f2a", 0),
        ("decode-0-r1-4f2a", 1),
    ]


def test_an_announcement_shows_the_present_and_counts_itself() -> None:
    state = {"ready": False, "draining": False, "age_s": 0.25}
    announcement = Announcement(
        MemberCard(
            member_id="decode-0-r1-4f2a",
            role=membership_pb2.MEMBER_ROLE_DECODE,
            address="127.0.0.1:4711",
            group_id="decode-0",
            rank=1,
            group_size=4,
            fingerprint=b"12345678",
            model="tiny-v4",
            max_model_len=4096,
            block_tokens=32,
            window_replay_tokens=378,
            metrics_address="127.0.0.1:9091",
        ),
        load=lambda: SimpleNamespace(
            running=1,
            waiting=2,
            kv_tokens=3,
            kv_capacity_tokens=4,
            max_running=5,
            queued_tokens=6,
            steps=7,
            placeholder_steps=8,
        ),
        progress_age_s=lambda: state["age_s"],
        is_ready=lambda: bool(state["ready"]),
        is_draining=lambda: bool(state["draining"]),
    )
    first = announcement()
    unset = {
        field.name
        for field in first.DESCRIPTOR.fields
        if not (first.HasField(field.name) if field.has_presence else getattr(first, field.name))
    }
    assert unset == {"ready", "draining", "age", "exclusion"}, "the last two are the balancer's"
    assert (first.load.placeholder_steps, first.load.last_progress_ms) == (8, 250)
    state |= {"ready": True, "draining": True}
    second = announcement()
    assert (second.ready, second.draining) == (True, True)
    assert second.sequence > first.sequence
