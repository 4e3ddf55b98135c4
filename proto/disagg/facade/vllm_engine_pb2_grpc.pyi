import abc
from collections.abc import AsyncIterator
from typing import overload

import grpc
import grpc.aio

from disagg.facade import smg_common_pb2
from disagg.facade import vllm_engine_pb2

class VllmEngineStub:
    @overload
    def __new__(cls, channel: grpc.aio.Channel) -> VllmEngineAsyncStub: ...
    @overload
    def __new__(cls, channel: grpc.Channel) -> VllmEngineStub: ...
    Generate: grpc.UnaryStreamMultiCallable[vllm_engine_pb2.GenerateRequest, vllm_engine_pb2.GenerateResponse]
    HealthCheck: grpc.UnaryUnaryMultiCallable[vllm_engine_pb2.HealthCheckRequest, vllm_engine_pb2.HealthCheckResponse]
    Abort: grpc.UnaryUnaryMultiCallable[vllm_engine_pb2.AbortRequest, vllm_engine_pb2.AbortResponse]
    GetModelInfo: grpc.UnaryUnaryMultiCallable[vllm_engine_pb2.GetModelInfoRequest, vllm_engine_pb2.GetModelInfoResponse]
    GetServerInfo: grpc.UnaryUnaryMultiCallable[vllm_engine_pb2.GetServerInfoRequest, vllm_engine_pb2.GetServerInfoResponse]
    GetLoads: grpc.UnaryUnaryMultiCallable[vllm_engine_pb2.GetLoadsRequest, vllm_engine_pb2.GetLoadsResponse]
    GetTokenizer: grpc.UnaryStreamMultiCallable[smg_common_pb2.GetTokenizerRequest, smg_common_pb2.GetTokenizerChunk]

class VllmEngineAsyncStub(VllmEngineStub):
    Generate: grpc.aio.UnaryStreamMultiCallable[vllm_engine_pb2.GenerateRequest, vllm_engine_pb2.GenerateResponse]  # type: ignore[assignment]
    HealthCheck: grpc.aio.UnaryUnaryMultiCallable[vllm_engine_pb2.HealthCheckRequest, vllm_engine_pb2.HealthCheckResponse]  # type: ignore[assignment]
    Abort: grpc.aio.UnaryUnaryMultiCallable[vllm_engine_pb2.AbortRequest, vllm_engine_pb2.AbortResponse]  # type: ignore[assignment]
    GetModelInfo: grpc.aio.UnaryUnaryMultiCallable[vllm_engine_pb2.GetModelInfoRequest, vllm_engine_pb2.GetModelInfoResponse]  # type: ignore[assignment]
    GetServerInfo: grpc.aio.UnaryUnaryMultiCallable[vllm_engine_pb2.GetServerInfoRequest, vllm_engine_pb2.GetServerInfoResponse]  # type: ignore[assignment]
    GetLoads: grpc.aio.UnaryUnaryMultiCallable[vllm_engine_pb2.GetLoadsRequest, vllm_engine_pb2.GetLoadsResponse]  # type: ignore[assignment]
    GetTokenizer: grpc.aio.UnaryStreamMultiCallable[smg_common_pb2.GetTokenizerRequest, smg_common_pb2.GetTokenizerChunk]  # type: ignore[assignment]

class VllmEngineServicer(metaclass=abc.ABCMeta):
    def Generate(
        self,
        request: vllm_engine_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.GenerateRequest, vllm_engine_pb2.GenerateResponse],
    ) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]: ...
    async def HealthCheck(
        self,
        request: vllm_engine_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.HealthCheckRequest, vllm_engine_pb2.HealthCheckResponse],
    ) -> vllm_engine_pb2.HealthCheckResponse: ...
    async def Abort(
        self,
        request: vllm_engine_pb2.AbortRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.AbortRequest, vllm_engine_pb2.AbortResponse],
    ) -> vllm_engine_pb2.AbortResponse: ...
    async def GetModelInfo(
        self,
        request: vllm_engine_pb2.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.GetModelInfoRequest, vllm_engine_pb2.GetModelInfoResponse],
    ) -> vllm_engine_pb2.GetModelInfoResponse: ...
    async def GetServerInfo(
        self,
        request: vllm_engine_pb2.GetServerInfoRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.GetServerInfoRequest, vllm_engine_pb2.GetServerInfoResponse],
    ) -> vllm_engine_pb2.GetServerInfoResponse: ...
    async def GetLoads(
        self,
        request: vllm_engine_pb2.GetLoadsRequest,
        context: grpc.aio.ServicerContext[vllm_engine_pb2.GetLoadsRequest, vllm_engine_pb2.GetLoadsResponse],
    ) -> vllm_engine_pb2.GetLoadsResponse: ...
    def GetTokenizer(
        self,
        request: smg_common_pb2.GetTokenizerRequest,
        context: grpc.aio.ServicerContext[smg_common_pb2.GetTokenizerRequest, smg_common_pb2.GetTokenizerChunk],
    ) -> AsyncIterator[smg_common_pb2.GetTokenizerChunk]: ...

def add_VllmEngineServicer_to_server(
    servicer: VllmEngineServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
