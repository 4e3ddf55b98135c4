import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import decode_pb2

class DecodeServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> DecodeServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> DecodeServiceStub: ...
    Decode: grpc.UnaryStreamMultiCallable[decode_pb2.DecodeRequest, decode_pb2.DecodeResponse]
    Prefetch: grpc.StreamUnaryMultiCallable[decode_pb2.PrefetchRequest, decode_pb2.PrefetchResponse]
    ReserveSlot: grpc.UnaryUnaryMultiCallable[decode_pb2.ReserveSlotRequest, decode_pb2.ReserveSlotResponse]
    ReleaseSlot: grpc.UnaryUnaryMultiCallable[decode_pb2.ReleaseSlotRequest, decode_pb2.ReleaseSlotResponse]

class DecodeServiceAsyncStub(DecodeServiceStub):
    Decode: grpc.aio.UnaryStreamMultiCallable[decode_pb2.DecodeRequest, decode_pb2.DecodeResponse]  # type: ignore[assignment]
    Prefetch: grpc.aio.StreamUnaryMultiCallable[decode_pb2.PrefetchRequest, decode_pb2.PrefetchResponse]  # type: ignore[assignment]
    ReserveSlot: grpc.aio.UnaryUnaryMultiCallable[decode_pb2.ReserveSlotRequest, decode_pb2.ReserveSlotResponse]  # type: ignore[assignment]
    ReleaseSlot: grpc.aio.UnaryUnaryMultiCallable[decode_pb2.ReleaseSlotRequest, decode_pb2.ReleaseSlotResponse]  # type: ignore[assignment]

class DecodeServiceServicer(metaclass=abc.ABCMeta):
    def Decode(
        self,
        request: decode_pb2.DecodeRequest,
        context: grpc.aio.ServicerContext[decode_pb2.DecodeRequest, decode_pb2.DecodeResponse],
    ) -> AsyncIterator[decode_pb2.DecodeResponse]: ...
    async def Prefetch(
        self,
        request: AsyncIterator[decode_pb2.PrefetchRequest],
        context: grpc.aio.ServicerContext[decode_pb2.PrefetchRequest, decode_pb2.PrefetchResponse],
    ) -> decode_pb2.PrefetchResponse: ...
    async def ReserveSlot(
        self,
        request: decode_pb2.ReserveSlotRequest,
        context: grpc.aio.ServicerContext[decode_pb2.ReserveSlotRequest, decode_pb2.ReserveSlotResponse],
    ) -> decode_pb2.ReserveSlotResponse: ...
    async def ReleaseSlot(
        self,
        request: decode_pb2.ReleaseSlotRequest,
        context: grpc.aio.ServicerContext[decode_pb2.ReleaseSlotRequest, decode_pb2.ReleaseSlotResponse],
    ) -> decode_pb2.ReleaseSlotResponse: ...

def add_DecodeServiceServicer_to_server(
    servicer: DecodeServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
