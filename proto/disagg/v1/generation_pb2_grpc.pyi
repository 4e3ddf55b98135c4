import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.v1 import generation_pb2

class GenerationServiceStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> GenerationServiceAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> GenerationServiceStub: ...
    Generate: grpc.UnaryStreamMultiCallable[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse]
    CancelRequest: grpc.UnaryUnaryMultiCallable[generation_pb2.CancelRequestRequest, generation_pb2.CancelRequestResponse]
    Tokenize: grpc.UnaryUnaryMultiCallable[generation_pb2.TokenizeRequest, generation_pb2.TokenizeResponse]
    Detokenize: grpc.UnaryUnaryMultiCallable[generation_pb2.DetokenizeRequest, generation_pb2.DetokenizeResponse]
    ListModels: grpc.UnaryUnaryMultiCallable[generation_pb2.ListModelsRequest, generation_pb2.ListModelsResponse]

class GenerationServiceAsyncStub(GenerationServiceStub):
    Generate: grpc.aio.UnaryStreamMultiCallable[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse]  # type: ignore[assignment]
    CancelRequest: grpc.aio.UnaryUnaryMultiCallable[generation_pb2.CancelRequestRequest, generation_pb2.CancelRequestResponse]  # type: ignore[assignment]
    Tokenize: grpc.aio.UnaryUnaryMultiCallable[generation_pb2.TokenizeRequest, generation_pb2.TokenizeResponse]  # type: ignore[assignment]
    Detokenize: grpc.aio.UnaryUnaryMultiCallable[generation_pb2.DetokenizeRequest, generation_pb2.DetokenizeResponse]  # type: ignore[assignment]
    ListModels: grpc.aio.UnaryUnaryMultiCallable[generation_pb2.ListModelsRequest, generation_pb2.ListModelsResponse]  # type: ignore[assignment]

class GenerationServiceServicer(metaclass=abc.ABCMeta):
    def Generate(
        self,
        request: generation_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse],
    ) -> AsyncIterator[generation_pb2.GenerateResponse]: ...
    async def CancelRequest(
        self,
        request: generation_pb2.CancelRequestRequest,
        context: grpc.aio.ServicerContext[generation_pb2.CancelRequestRequest, generation_pb2.CancelRequestResponse],
    ) -> generation_pb2.CancelRequestResponse: ...
    async def Tokenize(
        self,
        request: generation_pb2.TokenizeRequest,
        context: grpc.aio.ServicerContext[generation_pb2.TokenizeRequest, generation_pb2.TokenizeResponse],
    ) -> generation_pb2.TokenizeResponse: ...
    async def Detokenize(
        self,
        request: generation_pb2.DetokenizeRequest,
        context: grpc.aio.ServicerContext[generation_pb2.DetokenizeRequest, generation_pb2.DetokenizeResponse],
    ) -> generation_pb2.DetokenizeResponse: ...
    async def ListModels(
        self,
        request: generation_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext[generation_pb2.ListModelsRequest, generation_pb2.ListModelsResponse],
    ) -> generation_pb2.ListModelsResponse: ...

def add_GenerationServiceServicer_to_server(
    servicer: GenerationServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
