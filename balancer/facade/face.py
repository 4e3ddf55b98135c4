"""The gRPC face `vllm.grpc.engine.VllmEngine`: one engine to gateways, a whole system behind it.

Gateways make text themselves, so answers are token ids. Prefill and decode are ours to place; a
transfer that a gateway asks for has no effect, both sides meet in the store anyway.
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from balancer.facade.model import model_info, pieces_of, tokenizer_archive
from balancer.facade.translate import chunk_of, complete_of, native_request
from balancer.intake import Intake
from balancer.journey.request import Delta
from balancer.journey.running import RunningRequests
from balancer.membership import Membership, MemberView, Role
from balancer.pipeline import Pipeline
from balancer.validation import check_request_id
from disagg.facade import smg_common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
from runtime.access import current_tenant, scoped_id
from runtime.clock import Clock
from runtime.logging import request_scope
from runtime.metrics import Metrics
from runtime.serve import Host

if TYPE_CHECKING:  # generic in the type stubs only
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

SERVICE = "vllm.grpc.engine.VllmEngine"
ENGINE_GENERATE = f"/{SERVICE}/Generate"
SERVER_TYPE, KV_ROLE = "vllm-grpc", "kv_both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the facade is made of.

    Attributes:
        directory: Of the model.
        kv_connector: Name that gateways know for engines that meet in a store.
        max_running: Requests in flight at once.
        fingerprint: KV layout of the ready members, hexadecimal.
    """

    pipeline: Pipeline
    running: RunningRequests
    intake: Intake
    members: Membership
    host: Host
    clock: Clock
    metrics: Metrics
    directory: Path
    kv_connector: str
    max_running: int
    fingerprint: Callable[[], str]
    version: str


class VllmEngineFace(vllm_engine_pb2_grpc.VllmEngineServicer):
    """See the module."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine_id = str(uuid.uuid4())
        self._started = parts.clock.now()
        self._last_arrival = 0.0

    # A coroutine that writes, like the native face: see `runtime.interceptors`.
    async def Generate(  # type: ignore[override]
        self, request: vllm_engine_pb2.GenerateRequest, context: Context
    ) -> None:
        """Generates; chunks first if the request is a stream, then the complete answer."""
        intake = self._parts.intake
        arrived_at, self._last_arrival = intake.now(), self._parts.clock.wall()
        request_id = check_request_id(request.request_id)
        with request_scope(request_id=request_id):
            native = native_request(request)
            token_ids = await intake.encode(native)
            if not native.sampling.HasField("max_tokens"):
                native.sampling.max_tokens = max(0, intake.card.max_model_len - len(token_ids))
            checked = intake.check(
                native,
                request_id=request_id,
                token_ids=token_ids,
                arrived_at=arrived_at,
                timeout_s=context.time_remaining(),
                endpoint="engine",
            )
            deltas: list[Delta] = []

            async def emit(delta: Delta) -> None:
                deltas.append(delta)
                if request.stream:
                    await context.write(chunk_of(checked, delta))

            final = await self._parts.pipeline.run(checked, emit)
            await context.write(complete_of(checked, deltas, final, intake.codec))

    async def HealthCheck(
        self, _request: vllm_engine_pb2.HealthCheckRequest, _context: Context
    ) -> vllm_engine_pb2.HealthCheckResponse:
        """Whether new work can be taken; answers at once."""
        host = self._parts.host
        if host.health.is_ready:
            return vllm_engine_pb2.HealthCheckResponse(healthy=True, message="ready")
        why = "draining" if host.is_draining else "no members, or no store"
        return vllm_engine_pb2.HealthCheckResponse(healthy=False, message=why)

    async def Abort(
        self, request: vllm_engine_pb2.AbortRequest, _context: Context
    ) -> vllm_engine_pb2.AbortResponse:
        """Ends requests; what they hold is given back. Unknown ids are no error."""
        tenant = current_tenant()
        for request_id in request.request_ids:
            self._parts.running.cancel(scoped_id(tenant, request_id), owner=tenant)
        return vllm_engine_pb2.AbortResponse()

    async def GetModelInfo(
        self, _request: vllm_engine_pb2.GetModelInfoRequest, _context: Context
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        """Facts about the model."""
        return await asyncio.to_thread(model_info, self._parts.directory, self._parts.intake.card)

    async def GetServerInfo(
        self, _request: vllm_engine_pb2.GetServerInfoRequest, _context: Context
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        """Facts about the server; gateways pair servers by `pairing_protocol`."""
        parts, ranks = self._parts, self._ranks()
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=len(parts.running),
            is_paused=parts.host.is_draining,
            last_receive_timestamp=self._last_arrival,
            uptime_seconds=parts.clock.now() - self._started,
            server_type=SERVER_TYPE,
            kv_connector=parts.kv_connector,
            kv_role=KV_ROLE,
            kv_engine_id=self._engine_id,
            data_parallel_size=max(1, len(ranks)),
            block_size=ranks[0].member.block_tokens if ranks else 0,
            pairing_protocol=parts.fingerprint(),
            max_num_seqs=parts.max_running,
        )

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, _context: Context
    ) -> vllm_engine_pb2.GetLoadsResponse:
        """One load per decode rank."""
        ranks = self._ranks()
        hit_rate = self._hit_rate()
        loads = [_load(number, view, hit_rate) for number, view in enumerate(ranks)]
        if request.HasField("dp_rank"):
            loads = [load for load in loads if load.dp_rank == request.dp_rank]
        wall = datetime.datetime.fromtimestamp(self._parts.clock.wall(), tz=datetime.UTC)
        return vllm_engine_pb2.GetLoadsResponse(
            timestamp=wall.isoformat(),
            version=self._parts.version,
            dp_rank_count=len(ranks),
            loads=loads,
        )

    async def GetTokenizer(
        self, _request: smg_common_pb2.GetTokenizerRequest, _context: Context
    ) -> AsyncIterator[smg_common_pb2.GetTokenizerChunk]:
        """The tokenizer files as a zip, piece by piece."""
        archive = await asyncio.to_thread(tokenizer_archive, self._parts.directory)
        for piece in pieces_of(archive):
            yield piece

    def _ranks(self) -> list[MemberView]:
        """The decode ranks that serve, always in the same order."""
        views = self._parts.members.views(self._parts.clock.now(), Role.DECODE)
        serving = [view for view in views if view.exclusion is None]
        return sorted(serving, key=lambda view: (view.member.group_id, view.member.rank))

    def _hit_rate(self) -> float:
        """Share of all prompt tokens so far whose KV was there before."""
        name = "disagg_request_prompt_tokens_total"
        hit = self._parts.metrics.value(name, source="store_hit")
        total = hit + self._parts.metrics.value(name, source="computed")
        return hit / total if total else 0.0


def _load(number: int, view: MemberView, hit_rate: float) -> vllm_engine_pb2.SchedulerLoad:
    load = view.member.load
    usage = load.kv_tokens / load.kv_capacity_tokens if load.kv_capacity_tokens else 0.0
    return vllm_engine_pb2.SchedulerLoad(
        dp_rank=number,
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=load.kv_tokens,
        max_total_num_tokens=load.kv_capacity_tokens,
        token_usage=usage,
        utilization=usage,
        cache_hit_rate=hit_rate,
        max_running_requests=load.max_running,
    )
