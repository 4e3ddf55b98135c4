import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import routing_pb2

class RoutingServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> RoutingServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> RoutingServiceStub: ...
    Route: grpc.UnaryUnaryMultiCallable[routing_pb2.RouteRequest, routing_pb2.RouteResponse]
    Explain: grpc.UnaryUnaryMultiCallable[routing_pb2.ExplainRequest, routing_pb2.ExplainResponse]

class RoutingServiceAsyncStub(RoutingServiceStub):
    Route: grpc.aio.UnaryUnaryMultiCallable[routing_pb2.RouteRequest, routing_pb2.RouteResponse]  # type: ignore[assignment]
    Explain: grpc.aio.UnaryUnaryMultiCallable[routing_pb2.ExplainRequest, routing_pb2.ExplainResponse]  # type: ignore[assignment]

class RoutingServiceServicer(metaclass=abc.ABCMeta):
    async def Route(
        self,
        request: routing_pb2.RouteRequest,
        context: grpc.aio.ServicerContext[routing_pb2.RouteRequest, routing_pb2.RouteResponse],
    ) -> routing_pb2.RouteResponse: ...
    async def Explain(
        self,
        request: routing_pb2.ExplainRequest,
        context: grpc.aio.ServicerContext[routing_pb2.ExplainRequest, routing_pb2.ExplainResponse],
    ) -> routing_pb2.ExplainResponse: ...

def add_RoutingServiceServicer_to_server(
    servicer: RoutingServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
