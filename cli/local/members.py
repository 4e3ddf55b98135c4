"""What a balancer knows, asked over gRPC for the launcher and its tables."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from disagg.v1 import membership_pb2, membership_pb2_grpc

_TIMEOUT_S = 5.0
_ROLES = {
    membership_pb2.MEMBER_ROLE_PREFILL: "prefill",
    membership_pb2.MEMBER_ROLE_DECODE: "decode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member as the balancer sees it."""

    role: str
    name: str
    address: str
    state: str
    metrics: str = ""


def _channel(address: str) -> grpc.Channel:
    """By the TLS settings that the processes have as well."""
    from cli.access import access_of
    from client.transport import open_channel

    return open_channel(address, access_of())


def list_members(address: str) -> list[MemberRow]:
    """Members of the balancer at `address`, prefill first; empty while nothing answers."""
    try:
        with _channel(address) as channel:
            answer = membership_pb2_grpc.MembershipServiceStub(channel).ListMembers(
                membership_pb2.ListMembersRequest(), timeout=_TIMEOUT_S
            )
    except grpc.RpcError:
        return []
    members = sorted(answer.members, key=lambda m: (m.role, m.group_id, m.rank))
    return [
        MemberRow(
            role=_ROLES.get(member.role, "unknown"),
            name=member.member_id,
            address=member.address,
            metrics=member.metrics_address,
            state="draining" if member.draining else "ready" if member.ready else "starting",
        )
        for member in members
    ]


def is_ready(address: str) -> bool:
    """Whether the process at `address` says that it takes new work."""
    try:
        with _channel(address) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=_TIMEOUT_S
            )
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
