import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import events_pb2

class KvEventServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> KvEventServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> KvEventServiceStub: ...
    WatchEvents: grpc.UnaryStreamMultiCallable[events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse]

class KvEventServiceAsyncStub(KvEventServiceStub):
    WatchEvents: grpc.aio.UnaryStreamMultiCallable[events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse]  # type: ignore[assignment]

class KvEventServiceServicer(metaclass=abc.ABCMeta):
    def WatchEvents(
        self,
        request: events_pb2.WatchEventsRequest,
        context: grpc.aio.ServicerContext[events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse],
    ) -> AsyncIterator[events_pb2.WatchEventsResponse]: ...

def add_KvEventServiceServicer_to_server(
    servicer: KvEventServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
