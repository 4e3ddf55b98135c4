"""Decode reads hand-offs ahead, over real processes: same tokens, nothing left, nothing trusted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest
import redis

from cli.local.launcher import System
from cli.local.members import list_members
from client import AsyncClient, Sampling
from disagg import block_hash
from disagg.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from kvstore import KvStoreConfig, open_store
from runtime import status
from runtime.errors import Reason
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

GOLDEN = json.loads((ROOT / "models" / "tiny-v4" / "golden.json").read_text())["cases"]
LONG = [case for case in GOLDEN if len(case["input_ids"]) >= 350]
BOUND_S = 60.0
CHUNK = 64
BLOCK = 32
PARAMS = common_pb2.SamplingParams(seed=1, max_tokens=12, ignore_eos=True)


@contextlib.contextmanager
def running(*, overlap: bool) -> Iterator[System]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISAGG_HANDOFF__OVERLAP", str(overlap).lower())
        # Many chunks in a prompt, so that there is something to overlap with.
        patch.setenv("DISAGG_ENGINE__MAX_NUM_BATCHED_TOKENS", str(CHUNK))
        with launched(decode_ranks=1) as system:
            yield system


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running(overlap=True) as started:
        yield started


@asynccontextmanager
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as opened, asyncio.timeout(BOUND_S):
        yield opened


def address_of(system: System, role: str) -> str:
    [address] = [m.address for m in list_members(system.address) if m.role == role]
    return address


async def statistics_of(address: str) -> dict[str, float]:
    async with channel(address) as opened:
        info = await admin_pb2_grpc.AdminServiceStub(opened).GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=BOUND_S
        )
        return dict(info.statistics)


async def counted(system: System, role: str, name: str) -> float:
    found = await statistics_of(address_of(system, role))
    return sum(value for key, value in found.items() if key.startswith(name))


HELD = (
    *("path.running", "path.bytes_in_flight", "path.prefetching", "path.prefetched_bytes"),
    *("path.leases", "path.open_credits", "engine.running", "engine.waiting"),
)


async def wait_at_rest(system: System, *addresses: str) -> None:
    """Until no process holds anything, and the store no lease."""
    members = addresses or tuple(address_of(system, role) for role in ("prefill", "decode"))

    async def held() -> dict[str, object]:
        found: dict[str, object] = {}
        for member in members:
            statistics = await statistics_of(member)
            found |= {f"{member} {name}": statistics[name] for name in HELD if statistics.get(name)}
        config = KvStoreConfig(block_tokens=BLOCK, owner="test")
        with contextlib.closing(
            open_store(system.store_url, config, fingerprint=bytes(8), clock=lambda: 0.0)
        ) as store:
            leases = store.audit()
        return found | ({"leases": leases} if leases else {})

    try:
        async with asyncio.timeout(BOUND_S):
            while await held():  # noqa: ASYNC110  # other processes have no event for us
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"still held: {await held()}") from None


@pytest.mark.parametrize("overlap", [True, False])
async def test_token_streams_are_the_same_with_and_without(
    request: pytest.FixtureRequest, overlap: bool
) -> None:
    with contextlib.ExitStack() as stack:
        system = (
            request.getfixturevalue("system")
            if overlap
            else stack.enter_context(running(overlap=False))
        )
        async with AsyncClient(system.address, timeout_s=120.0) as client:
            answers = await asyncio.gather(
                *(
                    client.generate(
                        case["input_ids"], sampling=Sampling(max_tokens=64, ignore_eos=True)
                    )
                    for case in LONG
                )
            )
        for case, answer in zip(LONG, answers, strict=True):
            assert list(answer.token_ids) == case["greedy_ids"], case["name"]
            assert answer.attempts == 1
        early = sum(answer.timing.prefetched_bytes for answer in answers)
        blocks = sum(answer.timing.fetched_bytes for answer in answers)
        assert (early > blocks / 2) if overlap else (early == 0), (early, blocks)
        await wait_at_rest(system)


# As a balancer of our own: each step under control.


@dataclass
class Journey:
    """The legs of one request, driven by the test."""

    prefill: prefill_pb2_grpc.PrefillServiceAsyncStub
    decode: decode_pb2_grpc.DecodeServiceAsyncStub
    request_id: str
    token_ids: list[int]
    fingerprint: bytes
    salt: str = ""
    credit_id: str = ""
    first: int = 0
    ticket: common_pb2.KvTicket | None = None
    reports: list[int] = field(default_factory=list)

    async def reserve(self) -> None:
        ask = decode_pb2.ReserveSlotRequest(
            request_id=self.request_id,
            num_tokens=len(self.token_ids) + PARAMS.max_tokens,
            fingerprint=self.fingerprint,
        )
        self.credit_id = (await self.decode.ReserveSlot(ask, timeout=BOUND_S)).credit_id

    async def events(self) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        request = prefill_pb2.PrefillRequest(
            request_id=self.request_id,
            attempt=1,
            token_ids=self.token_ids,
            sampling=PARAMS,
            cache_salt=self.salt,
            report_stored=True,
        )
        async for event in self.prefill.Prefill(request, timeout=BOUND_S):
            if event.HasField("blocks_stored"):
                self.reports.append(event.blocks_stored.num_blocks)
            elif event.HasField("first_token"):
                self.first = event.first_token.token_id
            elif event.HasField("committed"):
                self.ticket = event.committed.ticket
            yield event

    def prefetch(self) -> grpc.aio.StreamUnaryCall:
        return self.decode.Prefetch(timeout=BOUND_S)

    def begin(self) -> decode_pb2.PrefetchRequest:
        return decode_pb2.PrefetchRequest(
            begin=decode_pb2.PrefetchBegin(
                request_id=self.request_id,
                attempt=1,
                token_ids=self.token_ids,
                cache_salt=self.salt,
                credit_id=self.credit_id,
            )
        )

    async def tokens(self) -> tuple[list[int], decode_pb2.DecodeResumed]:
        request = decode_pb2.DecodeRequest(
            request_id=self.request_id,
            attempt=1,
            ticket=self.ticket,
            token_ids=self.token_ids,
            sampling=PARAMS,
            cache_salt=self.salt,
            credit_id=self.credit_id,
        )
        found, resumed = [self.first], decode_pb2.DecodeResumed()
        async for event in self.decode.Decode(request, timeout=BOUND_S):
            if event.HasField("resumed"):
                resumed = event.resumed
            found += event.tokens.token_ids
        return found, resumed


def stored(num_blocks: int) -> decode_pb2.PrefetchRequest:
    return decode_pb2.PrefetchRequest(stored=decode_pb2.PrefetchStored(num_blocks=num_blocks))


@asynccontextmanager
async def journey(
    system: System, name: str, case: dict[str, object], *addresses: str
) -> AsyncIterator[Journey]:
    """A request under a tenant of its own, so that nothing is stored before."""
    at = addresses or (address_of(system, "prefill"), address_of(system, "decode"))
    async with channel(at[0]) as prefill, channel(at[1]) as decode:
        info = await admin_pb2_grpc.AdminServiceStub(decode).GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=BOUND_S
        )
        made = Journey(
            prefill=prefill_pb2_grpc.PrefillServiceStub(prefill),
            decode=decode_pb2_grpc.DecodeServiceStub(decode),
            request_id=name,
            token_ids=list(case["input_ids"]),  # type: ignore[call-overload]
            fingerprint=bytes.fromhex(info.fingerprint),
            salt=name,
        )
        await made.reserve()
        yield made


def damage(system: System, made: Journey, block_idx: int) -> None:
    """Flips the last byte of a stored block."""
    name = block_hash.chain(made.token_ids, BLOCK, salt=made.salt)[block_idx].hex()
    with redis.Redis(unix_socket_path=system.store_url.removeprefix("unix://")) as server:
        [key] = list(server.scan_iter(f"dkv1:*:b:{{{name}}}:1:*", count=1000))
        end = server.strlen(key) - 1
        [last] = server.getrange(key, end, end)
        server.setrange(key, end, bytes([last ^ 1]))


async def until_read(system: System, num_blocks: int, before: float) -> None:
    """Until decode has read so many more blocks."""
    async with asyncio.timeout(BOUND_S):
        while (  # noqa: ASYNC110  # another process
            await counted(system, "decode", "store.blocks_read") < before + num_blocks
        ):
            await asyncio.sleep(0.01)


async def test_a_block_damaged_after_it_was_read_ahead_does_no_harm(system: System) -> None:
    case = LONG[0]
    num_blocks = len(case["input_ids"]) // BLOCK
    before = await counted(system, "decode", "store.blocks_read")
    async with journey(system, "damaged-after", case) as made:
        call = made.prefetch()
        await call.write(made.begin())
        async for event in made.events():
            if event.HasField("blocks_stored"):
                await call.write(stored(event.blocks_stored.num_blocks))
        await call.done_writing()
        assert made.reports[-1] >= num_blocks - 2 * CHUNK // BLOCK
        await until_read(system, made.reports[-1], before)
        for block_idx in range(made.reports[-1]):
            damage(system, made, block_idx)
        found, resumed = await made.tokens()
        assert found == case["greedy_ids"][:12]
        handed = await call
        assert handed.num_blocks == made.reports[-1]
        assert handed.bytes == resumed.prefetched_bytes > 0
    await wait_at_rest(system)


async def test_a_block_damaged_before_is_never_used(system: System) -> None:
    case = LONG[0]
    counts = "disagg_prefetch_total{outcome=corrupt"
    before = await counted(system, "decode", counts)
    async with journey(system, "damaged-before", case) as made:
        call = made.prefetch()
        await call.write(made.begin())
        async for event in made.events():
            if event.HasField("committed"):
                damage(system, made, 3)
                await call.write(stored(made.reports[-1]))
                await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await call
        assert status.from_rpc_error(found.value).reason is Reason.CHECKSUM_DIFFERS
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.tokens()
        error = status.from_rpc_error(caught.value)
        assert error.reason is Reason.BLOCK_EVICTED, "it was taken away"
    await wait_at_rest(system)
    assert await counted(system, "decode", counts) == before + 1


@pytest.mark.parametrize("leaves", ["prefetch", "prefill", "decode"])
async def test_whoever_leaves_takes_everything_along(system: System, leaves: str) -> None:
    case = LONG[-1]
    async with journey(system, f"leaves-{leaves}", case) as made:
        call = made.prefetch()
        await call.write(made.begin())
        async with aclosing(made.events()) as events:
            async for event in events:
                if event.HasField("blocks_stored") and not call.done():
                    await call.write(stored(event.blocks_stored.num_blocks))
                    if leaves == "prefetch":
                        call.cancel()
                    if leaves == "prefill":
                        break
        if leaves == "prefetch":
            found, resumed = await made.tokens()
            assert found == case["greedy_ids"][:12]
            assert resumed.prefetched_bytes == 0
        elif leaves == "decode":
            asked = asyncio.ensure_future(made.tokens())
            await asyncio.wait([asked], timeout=0.005)
            asked.cancel()
            await asyncio.wait([asked])
            # As the balancer does: the ticket may not have been opened yet.
            await asyncio.to_thread(abort, system, made)
        call.cancel()
        release = decode_pb2.ReleaseSlotRequest(credit_id=made.credit_id)
        await made.decode.ReleaseSlot(release, timeout=BOUND_S)
    await wait_at_rest(system)


def abort(system: System, made: Journey) -> None:
    config = KvStoreConfig(block_tokens=BLOCK, owner="test")
    with contextlib.closing(
        open_store(system.store_url, config, fingerprint=made.fingerprint, clock=lambda: 0.0)
    ) as store:
        assert made.ticket is not None
        store.abort(made.ticket.handoff_id)


async def test_callers_who_leave_the_front_door_leave_nothing(system: System) -> None:
    """Each at another moment of an overlapped hand-off."""
    case = max(LONG, key=lambda case: len(case["input_ids"]))

    async def leave(number: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.03 * number):
                async for _ in client.stream(
                    [7 + number, *case["input_ids"]],
                    sampling=Sampling(max_tokens=64, ignore_eos=True),
                ):
                    pass

    async with AsyncClient(system.address, timeout_s=90.0) as client:
        await asyncio.gather(*(leave(number) for number in range(1, 25)))
        await wait_at_rest(system)
        answer = await client.generate(
            case["input_ids"], sampling=Sampling(max_tokens=64, ignore_eos=True)
        )
    assert list(answer.token_ids) == case["greedy_ids"]


async def test_a_part_that_is_killed_leaves_nothing_with_the_others() -> None:
    """First the balancer, in the middle of many requests; then prefill, in the middle of one."""
    case = max(LONG, key=lambda case: len(case["input_ids"]))
    with running(overlap=True) as system:
        prefill, decode = address_of(system, "prefill"), address_of(system, "decode")
        children = {child.name: child for child in system.children}
        async with AsyncClient(system.address, timeout_s=30.0) as client:
            requests = [
                asyncio.create_task(
                    client.generate([7 + number, *case["input_ids"]], sampling=Sampling())
                )
                for number in range(6)
            ]
            async with asyncio.timeout(BOUND_S):
                while not (await statistics_of(decode))["path.prefetching"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            children["balancer"].kill()
            await asyncio.wait(requests)
            assert all(task.exception() for task in requests)
        await wait_at_rest(system, prefill, decode)
        async with journey(system, "prefill-dies", case, prefill, decode) as made:
            call = made.prefetch()
            await call.write(made.begin())

            async def die_while_it_computes() -> None:
                async for event in made.events():
                    if event.HasField("blocks_stored"):
                        await call.write(stored(event.blocks_stored.num_blocks))
                        children["prefill"].kill()

            with pytest.raises(grpc.aio.AioRpcError):
                await die_while_it_computes()
            call.cancel()
            release = decode_pb2.ReleaseSlotRequest(credit_id=made.credit_id)
            await made.decode.ReleaseSlot(release, timeout=BOUND_S)
        await wait_at_rest(system, decode)
        for name in ("balancer", "prefill"):
            system.children.remove(children[name])  # or its end would be reported
