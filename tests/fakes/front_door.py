"""A whole balancer on loopback in front of scripted members, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from balancer.assembly import Balancer, assemble
from balancer.config import BalancerSettings
from balancer.faces import register, serving_http
from balancer.journey.cleanup import CleanUps
from balancer.remote.handoffs import StoredLayout
from balancer.remote.legs import Ticket
from balancer.remote.peers import GrpcPeers
from disagg.v1 import generation_pb2, generation_pb2_grpc
from kvstore.pressure import Pressure
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.security import open_security
from runtime.status import from_rpc_error
from runtime.tls import TlsSettings
from tests.fakes.members import Member, decode_member, prefill_member

MODEL = Path(__file__).parents[2] / "models" / "tiny-v4"
PROMPT = [0, 300, 301, 302]


@dataclass
class FakeStore:
    """The store as a balancer sees it."""

    reachable: bool = True
    aborted: list[str] = field(default_factory=list)
    searched: list[tuple[bytes, str, int]] = field(default_factory=list)
    refusal: str = ""
    pressure: Pressure | None = None
    looks: int = 0
    stored_tokens: int = 0
    lookups: list[tuple[StoredLayout, int, str]] = field(default_factory=list)

    def look_up(
        self, layout: StoredLayout, token_ids: Sequence[int], salt: str
    ) -> asyncio.Future[int]:
        self.lookups.append((layout, len(token_ids), salt))
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        found.set_result(self.stored_tokens)
        return found

    def look_at_pressure(self) -> None:
        self.looks += 1

    @property
    def is_down(self) -> bool:
        return not self.reachable

    async def is_reachable(self) -> bool:
        return self.reachable

    async def abort(self, ticket: Ticket) -> None:
        self.aborted.append(ticket.handoff_id)

    async def abort_request(self, fingerprint: bytes, request_id: str, attempt: int) -> None:
        self.searched.append((fingerprint, request_id, attempt))


@dataclass
class FrontDoor:
    """What a test can reach."""

    balancer: Balancer
    channel: grpc.aio.Channel
    stub: generation_pb2_grpc.GenerationServiceAsyncStub
    prefills: list[Member]
    decodes: list[Member]
    store: FakeStore
    cleanups: CleanUps
    http: str = ""

    def call(self, request_id: str = "r1", *, timeout: float = 20.0, **fields: Any) -> Any:
        """Begins a Generate; `sampling` may be a dictionary."""
        fields.setdefault("sampling", {"max_tokens": 6})
        if not {"text", "chat", "token_ids"} & fields.keys():
            fields["token_ids"] = generation_pb2.TokenIds(ids=PROMPT)
        request = generation_pb2.GenerateRequest(request_id=request_id, **fields)
        return self.stub.Generate(request, timeout=timeout)

    async def generate(self, request_id: str = "r1", **fields: Any) -> Any:
        """Runs a Generate to its end; returns its messages, or the error of the tree."""
        messages = []
        try:
            async for message in self.call(request_id, **fields):
                messages.append(message)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return messages

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the others run until the condition holds; gives up after seconds."""
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the condition never came true")

    async def settle(self) -> None:
        """Waits until nothing runs any more, on either side; then nothing may be held."""
        await self.until(
            lambda: (
                not (
                    len(self.balancer.running)
                    or self.cleanups.running
                    or any(member.active or member.prefetching for member in self.members)
                )
            )
        )
        assert not len(self.balancer.running)
        assert [member.active for member in self.members] == [0] * len(self.members)
        assert [member.credits for member in self.decodes] == [set()] * len(self.decodes)
        assert self.balancer.admission.statistics().running == 0
        for view in self.balancer.members.views(self.balancer.clock.now()):
            assert view.outstanding_requests == 0, view

    @property
    def members(self) -> list[Member]:
        return self.prefills + self.decodes

    def metric(self, name: str, **labels: str) -> float:
        return self.balancer.metrics.value(name, **labels)


@asynccontextmanager
async def front_door(
    *, prefills: int = 1, decodes: int = 1, announce: bool = True, **settings: Any
) -> AsyncIterator[FrontDoor]:
    """Starts members and a balancer; `settings` are sections of BalancerSettings."""
    tree = BalancerSettings.model_validate(
        {"model": {"path": str(MODEL)}, "store": {"url": "unix:///nowhere"}, **settings}
    )
    store = FakeStore()
    members = [prefill_member(f"p{i}") for i in range(prefills)]
    members += [decode_member(f"d{i}") for i in range(decodes)]
    metrics = Metrics()
    # Members and this door speak plaintext; keys are independent of that.
    security = open_security(TlsSettings(), tree.auth, role="balancer", metrics=metrics)
    peers = GrpcPeers(security)
    async with AsyncExitStack() as stack:
        for member in members:
            stack.push_async_callback(member.stop)
        stack.push_async_callback(peers.close)
        cleanups = await stack.enter_async_context(CleanUps(limit_s=1.0))
        balancer = assemble(
            tree,
            clock=SystemClock(),
            store=store,
            peers=peers,
            cleanups=cleanups,
            metrics=metrics,
            security=security,
        )
        stack.push_async_callback(balancer.host.stop, 0)
        register(balancer, "test")
        http = await stack.enter_async_context(serving_http(balancer, "test"))
        address = await balancer.host.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        for member in members:
            await member.start()
            if announce:
                await member.announce(channel)
        yield FrontDoor(
            balancer=balancer,
            channel=channel,
            stub=generation_pb2_grpc.GenerationServiceStub(channel),
            prefills=members[:prefills],
            decodes=members[prefills:],
            store=store,
            cleanups=cleanups,
            http=http,
        )


def tokens_of(messages: Any) -> list[int]:
    """All token ids of a stream; checks that their numbers have no gap and no repetition."""
    assert isinstance(messages, list), repr(messages)
    ids: list[int] = []
    last: int | None = None
    for message in messages:
        if message.token_ids:
            first = message.seq - len(message.token_ids) + 1
            assert last is None or first == last + 1, f"token {first} after {last}"
            last = message.seq
            ids += message.token_ids
    assert messages[-1].HasField("final")
    assert not any(message.HasField("final") for message in messages[:-1])
    return ids
