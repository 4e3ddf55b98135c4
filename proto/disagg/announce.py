"""How a member announces itself: one heartbeat call, shaped for `runtime.heartbeat.Heartbeat`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc.aio

from disagg import wire
from disagg.v1 import membership_pb2, membership_pb2_grpc

TIMEOUT_S = 2.0
"""Deadline of one heartbeat; the loop around it tries again.

Long beside an answer and short beside the silence after which a balancer gives a member up (5 s): a
call that ends before a busy balancer has come to it is never heard at all.
"""


def beat_over(
    channel: grpc.aio.Channel,
    member: Callable[[], membership_pb2.Member],
    *,
    on_drain: Callable[[], Awaitable[None]],
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
            await on_drain()
        return wire.seconds(response.interval)

    return beat


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCard:
    """What does not change about a member while it runs; see `disagg.v1.Member`."""

    member_id: str
    role: membership_pb2.MemberRole
    address: str
    group_id: str
    rank: int
    group_size: int
    fingerprint: bytes
    model: str
    max_model_len: int
    block_tokens: int
    window_replay_tokens: int
    metrics_address: str = ""


class Announcement:
    """The member as it is now, under a sequence number that grows with every reading.

    Args:
        card: What does not change.
        load: Its load.
        progress_age_s: Seconds since its loop last turned.
        is_ready: Whether it can take new work.
        is_draining: Whether it is about to leave.
    """

    def __init__(
        self,
        card: MemberCard,
        *,
        load: Callable[[], wire.LoadLike],
        progress_age_s: Callable[[], float],
        is_ready: Callable[[], bool],
        is_draining: Callable[[], bool],
    ) -> None:
        self._card = card
        self._load = load
        self._progress_age_s = progress_age_s
        self._is_ready = is_ready
        self._is_draining = is_draining
        self._sequence = 0

    def __call__(self) -> membership_pb2.Member:
        """Returns the message; called on the event loop for each heartbeat."""
        self._sequence += 1
        card = self._card
        return membership_pb2.Member(
            member_id=card.member_id,
            role=card.role,
            address=card.address,
            group_id=card.group_id,
            rank=card.rank,
            group_size=card.group_size,
            fingerprint=card.fingerprint,
            model=card.model,
            max_model_len=card.max_model_len,
            block_tokens=card.block_tokens,
            window_replay_tokens=card.window_replay_tokens,
            metrics_address=card.metrics_address,
            ready=self._is_ready(),
            draining=self._is_draining(),
            load=wire.load_snapshot(
                self._load(), last_progress_ms=int(self._progress_age_s() * 1000)
            ),
            sequence=self._sequence,
        )
