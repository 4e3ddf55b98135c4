import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import admin_pb2

class AdminServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> AdminServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> AdminServiceStub: ...
    Drain: grpc.UnaryUnaryMultiCallable[admin_pb2.DrainRequest, admin_pb2.DrainResponse]
    Undrain: grpc.UnaryUnaryMultiCallable[admin_pb2.UndrainRequest, admin_pb2.UndrainResponse]
    GetServerInfo: grpc.UnaryUnaryMultiCallable[admin_pb2.GetServerInfoRequest, admin_pb2.GetServerInfoResponse]

class AdminServiceAsyncStub(AdminServiceStub):
    Drain: grpc.aio.UnaryUnaryMultiCallable[admin_pb2.DrainRequest, admin_pb2.DrainResponse]  # type: ignore[assignment]
    Undrain: grpc.aio.UnaryUnaryMultiCallable[admin_pb2.UndrainRequest, admin_pb2.UndrainResponse]  # type: ignore[assignment]
    GetServerInfo: grpc.aio.UnaryUnaryMultiCallable[admin_pb2.GetServerInfoRequest, admin_pb2.GetServerInfoResponse]  # type: ignore[assignment]

class AdminServiceServicer(metaclass=abc.ABCMeta):
    async def Drain(
        self,
        request: admin_pb2.DrainRequest,
        context: grpc.aio.ServicerContext[admin_pb2.DrainRequest, admin_pb2.DrainResponse],
    ) -> admin_pb2.DrainResponse: ...
    async def Undrain(
        self,
        request: admin_pb2.UndrainRequest,
        context: grpc.aio.ServicerContext[admin_pb2.UndrainRequest, admin_pb2.UndrainResponse],
    ) -> admin_pb2.UndrainResponse: ...
    async def GetServerInfo(
        self,
        request: admin_pb2.GetServerInfoRequest,
        context: grpc.aio.ServicerContext[admin_pb2.GetServerInfoRequest, admin_pb2.GetServerInfoResponse],
    ) -> admin_pb2.GetServerInfoResponse: ...

def add_AdminServiceServicer_to_server(
    servicer: AdminServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
