"""A balancer, a prefill and a decode rank on loopback that record every span in one place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from balancer.assembly import Balancer, assemble
from balancer.config import BalancerSettings
from balancer.faces import register, serving_http
from balancer.journey.cleanup import CleanUps
from balancer.remote.legs import Ticket
from balancer.remote.peers import GrpcPeers
from decode_service import server as decode_face
from disagg.v1 import (
    decode_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    membership_pb2,
    membership_pb2_grpc,
    prefill_pb2_grpc,
)
from prefill_service import server as prefill_face
from runtime.clock import SystemClock
from runtime.errors import ErrorMap
from runtime.metrics import Metrics
from runtime.serve import DrainSettings, Host, ListenSettings
from tests.fakes.front_door import MODEL, FakeStore
from tests.fakes.services import BLOCK, Rig, running_rig, until
from tests.fakes.spans import Recorded, recorded

ROLES = {
    "prefill": membership_pb2.MEMBER_ROLE_PREFILL,
    "decode": membership_pb2.MEMBER_ROLE_DECODE,
}


class SharedStore(FakeStore):
    """The store of the ranks, as far as a balancer cleans up in it."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig

    async def abort(self, ticket: Ticket) -> None:
        await asyncio.to_thread(self._rig.store.abort, ticket.handoff_id)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What a test can reach."""

    found: Recorded
    rig: Rig
    balancer: Balancer
    cleanups: CleanUps
    stub: generation_pb2_grpc.GenerationServiceAsyncStub
    http: str

    def call(self, request_id: str, token_ids: tuple[int, ...], **more: Any) -> Any:
        """Begins a Generate of eight tokens."""
        sampling = {"max_tokens": 8, "ignore_eos": True, **more.pop("sampling", {})}
        request = generation_pb2.GenerateRequest(
            request_id=request_id,
            token_ids=generation_pb2.TokenIds(ids=token_ids),
            sampling=sampling,
        )
        return self.stub.Generate(request, timeout=20, **more)

    async def generate(self, request_id: str, token_ids: tuple[int, ...], **more: Any) -> list[int]:
        """All tokens of a Generate, once every span of it has ended."""
        messages = [message async for message in self.call(request_id, token_ids, **more)]
        await self.settle()
        return [token for message in messages for token in message.token_ids]

    async def settle(self) -> None:
        """Waits until nothing runs any more and every span has ended."""
        await until(
            lambda: not (len(self.balancer.running) or self.cleanups.running),
            lambda: f"clean-ups run: {self.cleanups.running}",
        )
        await until(
            lambda: not self.found.open.names, lambda: f"never ended: {self.found.open.names}"
        )
        await self.rig.assert_at_rest()


@asynccontextmanager
async def traced_system(**settings: Any) -> AsyncIterator[Traced]:
    """Starts the system; `settings` are sections of BalancerSettings."""
    tree = BalancerSettings.model_validate(
        {"model": {"path": str(MODEL)}, "store": {"url": "unix:///nowhere"}, **settings}
    )
    found = recorded(role="balancer")
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(running_rig(credit_clock=SystemClock()))
        peers = GrpcPeers()
        stack.push_async_callback(peers.close)
        cleanups = await stack.enter_async_context(CleanUps(limit_s=1.0))
        balancer = assemble(
            tree,
            clock=SystemClock(),
            store=SharedStore(rig),
            peers=peers,
            cleanups=cleanups,
            tracer=found.tracer,
        )
        stack.push_async_callback(balancer.host.stop, 0)
        register(balancer, "test")
        http = await stack.enter_async_context(serving_http(balancer, "test"))
        address = await balancer.host.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        prefill = prefill_face.PrefillServicer(rig.prefill, default_timeout_s=20.0)
        await _member(
            stack,
            channel,
            "prefill",
            recorded(beside=found, role="prefill"),
            prefill_face.WORK,
            prefill_face.error_map(),
            lambda server: prefill_pb2_grpc.add_PrefillServiceServicer_to_server(prefill, server),
        )
        decode = decode_face.DecodeServicer(rig.decode, credit_ttl_s=5.0, default_timeout_s=20.0)
        await _member(
            stack,
            channel,
            "decode",
            recorded(beside=found, role="decode"),
            decode_face.WORK,
            decode_face.error_map(),
            lambda server: decode_pb2_grpc.add_DecodeServiceServicer_to_server(decode, server),
        )
        yield Traced(
            found=found,
            rig=rig,
            balancer=balancer,
            cleanups=cleanups,
            stub=generation_pb2_grpc.GenerationServiceStub(channel),
            http=http,
        )


async def _member(
    stack: AsyncExitStack,
    channel: grpc.aio.Channel,
    role: str,
    found: Recorded,
    work: frozenset[str],
    errors: ErrorMap,
    register_on: Callable[[grpc.aio.Server], None],
) -> None:
    """Serves a rank and announces it once."""
    host = Host(
        role=role,
        clock=SystemClock(),
        metrics=Metrics(),
        work=work,
        services=(),
        listen=ListenSettings(reflection=False),
        drain=DrainSettings(),
        errors=errors,
        tracer=found.tracer,
    )
    register_on(host.server)
    address = await host.start()
    stack.push_async_callback(host.stop, 0)
    stub = membership_pb2_grpc.MembershipServiceStub(channel)
    member = membership_pb2.Member(
        member_id=f"{role}-0-r0",
        role=ROLES[role],
        address=address,
        group_id=role,
        group_size=1,
        fingerprint=bytes.fromhex("0123456789abcdef"),
        model="tiny-v4",
        max_model_len=200,
        block_tokens=BLOCK,
        ready=True,
        sequence=1,
    )
    async with asyncio.timeout(5):
        await stub.Heartbeat(membership_pb2.HeartbeatRequest(member=member))
