"""How a member announces itself: one heartbeat call, shaped for `runtime.heartbeat.Heartbeat`."""

from collections.abc import Awaitable, Callable

import grpc.aio

from disagg import wire
from disagg.v1 import membership_pb2, membership_pb2_grpc

TIMEOUT_S = 0.3
"""Deadline of one heartbeat; the loop around it tries again."""


def beat_over(
    channel: grpc.aio.Channel,
    member: Callable[[], membership_pb2.Member],
    *,
    on_drain: Callable[[], None],
    timeout_s: float = TIMEOUT_S,
) -> Callable[[], Awaitable[float]]:
    """Returns a callable that sends one announcement and returns how soon the next is wanted.

    Args:
        channel: To one balancer.
        member: The member as it is now, with a sequence number that grows by every call.
        on_drain: Called when the balancer asks this member to drain; twice is harmless.
        timeout_s: Deadline of the call.
    """
    stub = membership_pb2_grpc.MembershipServiceStub(channel)

    async def beat() -> float:
        response = await stub.Heartbeat(
            membership_pb2.HeartbeatRequest(member=member()), timeout=timeout_s
        )
        if response.drain:
            on_drain()
        return wire.seconds(response.interval)

    return beat
