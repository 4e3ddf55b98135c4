import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import traces_pb2

class TraceServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> TraceServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> TraceServiceStub: ...
    FindTraces: grpc.UnaryUnaryMultiCallable[traces_pb2.FindTracesRequest, traces_pb2.FindTracesResponse]

class TraceServiceAsyncStub(TraceServiceStub):
    FindTraces: grpc.aio.UnaryUnaryMultiCallable[traces_pb2.FindTracesRequest, traces_pb2.FindTracesResponse]  # type: ignore[assignment]

class TraceServiceServicer(metaclass=abc.ABCMeta):
    async def FindTraces(
        self,
        request: traces_pb2.FindTracesRequest,
        context: grpc.aio.ServicerContext[traces_pb2.FindTracesRequest, traces_pb2.FindTracesResponse],
    ) -> traces_pb2.FindTracesResponse: ...

def add_TraceServiceServicer_to_server(
    servicer: TraceServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
