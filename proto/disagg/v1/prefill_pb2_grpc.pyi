import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import prefill_pb2

class PrefillServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> PrefillServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> PrefillServiceStub: ...
    Prefill: grpc.UnaryStreamMultiCallable[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]

class PrefillServiceAsyncStub(PrefillServiceStub):
    Prefill: grpc.aio.UnaryStreamMultiCallable[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]  # type: ignore[assignment]

class PrefillServiceServicer(metaclass=abc.ABCMeta):
    def Prefill(
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse],
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]: ...

def add_PrefillServiceServicer_to_server(
    servicer: PrefillServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
