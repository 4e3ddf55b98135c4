import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import membership_pb2

class MembershipServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> MembershipServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> MembershipServiceStub: ...
    Heartbeat: grpc.UnaryUnaryMultiCallable[membership_pb2.HeartbeatRequest, membership_pb2.HeartbeatResponse]
    ListMembers: grpc.UnaryUnaryMultiCallable[membership_pb2.ListMembersRequest, membership_pb2.ListMembersResponse]

class MembershipServiceAsyncStub(MembershipServiceStub):
    Heartbeat: grpc.aio.UnaryUnaryMultiCallable[membership_pb2.HeartbeatRequest, membership_pb2.HeartbeatResponse]  # type: ignore[assignment]
    ListMembers: grpc.aio.UnaryUnaryMultiCallable[membership_pb2.ListMembersRequest, membership_pb2.ListMembersResponse]  # type: ignore[assignment]

class MembershipServiceServicer(metaclass=abc.ABCMeta):
    async def Heartbeat(
        self,
        request: membership_pb2.HeartbeatRequest,
        context: grpc.aio.ServicerContext[membership_pb2.HeartbeatRequest, membership_pb2.HeartbeatResponse],
    ) -> membership_pb2.HeartbeatResponse: ...
    async def ListMembers(
        self,
        request: membership_pb2.ListMembersRequest,
        context: grpc.aio.ServicerContext[membership_pb2.ListMembersRequest, membership_pb2.ListMembersResponse],
    ) -> membership_pb2.ListMembersResponse: ...

def add_MembershipServiceServicer_to_server(
    servicer: MembershipServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
