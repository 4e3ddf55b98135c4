"""A prefill and a decode group as processes, over gRPC and a store, with the bundled model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from safetensors.torch import load_file, save_file

from disagg import wire
from disagg.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    membership_pb2,
    membership_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from kvstore import KvStore, KvStoreConfig, embedded, open_store
from runtime import status
from runtime.errors import Reason
from tests.fakes.processes import ROOT, service

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
BOUND_S = 60.0
PREFILL_RANKS, DECODE_RANKS = 1, 2


@dataclass(frozen=True)
class System:
    """Addresses of two groups and the store between them."""

    store_url: str
    prefill: list[str]
    decode: list[str]

    def store(self) -> KvStore:
        """A client that only looks after leases; the layout does not matter for that."""
        config = KvStoreConfig(block_tokens=32, owner="test")
        return open_store(self.store_url, config, fingerprint=bytes(8), clock=lambda: 0.0)


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(embedded.start())
        common = ("--store", store.url, "--model", str(MODEL), "--drain-max-s", "20")
        prefill = stack.enter_context(
            # No boundary states: a stored prefix is resumed by replay, or not at all.
            service(
                "prefill_service",
                *(*common, "--ranks", str(PREFILL_RANKS), "--publish-boundary-states", "none"),
            )
        )
        decode = stack.enter_context(
            service("decode_service", *common, "--ranks", str(DECODE_RANKS))
        )
        yield System(
            store.url, prefill.wait_serving(PREFILL_RANKS), decode.wait_serving(DECODE_RANKS)
        )


@asynccontextmanager
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as opened, asyncio.timeout(BOUND_S):
        yield opened


def sampling(max_tokens: int, **fields: object) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        **{"seed": 1, "max_tokens": max_tokens, "ignore_eos": True, **fields}
    )


async def prefill_of(
    address: str,
    request_id: str,
    token_ids: list[int],
    params: common_pb2.SamplingParams,
    *,
    salt: str = "",
    hits: list[prefill_pb2.PrefillPrefixHit] | None = None,
) -> tuple[int, common_pb2.KvTicket]:
    """First token and ticket; `hits` takes what was found of the prompt in the store."""
    request = prefill_pb2.PrefillRequest(
        request_id=request_id, attempt=1, token_ids=token_ids, sampling=params, cache_salt=salt
    )
    first: int | None = None
    ticket: common_pb2.KvTicket | None = None
    async with channel(address) as opened:
        stub = prefill_pb2_grpc.PrefillServiceStub(opened)
        async for event in stub.Prefill(request, timeout=BOUND_S):
            if event.HasField("prefix_hit") and hits is not None:
                hits.append(event.prefix_hit)
            if event.HasField("first_token"):
                first = event.first_token.token_id
            if event.HasField("committed"):
                # Read on to the end: a call that is left before takes its hand-off back.
                ticket = event.committed.ticket
    assert first is not None
    assert ticket is not None
    return first, ticket


def decode_request(
    ticket: common_pb2.KvTicket,
    token_ids: list[int],
    params: common_pb2.SamplingParams,
    *,
    salt: str = "",
) -> decode_pb2.DecodeRequest:
    return decode_pb2.DecodeRequest(
        request_id=ticket.request_id,
        attempt=ticket.attempt,
        ticket=ticket,
        token_ids=token_ids,
        sampling=params,
        cache_salt=salt,
    )


async def decode_of(address: str, request: decode_pb2.DecodeRequest) -> list[int]:
    found: list[int] = []
    async with channel(address) as opened:
        stub = decode_pb2_grpc.DecodeServiceStub(opened)
        async for event in stub.Decode(request, timeout=BOUND_S):
            found += event.tokens.token_ids
    return found


async def statistics_of(address: str) -> dict[str, float]:
    async with channel(address) as opened:
        info = await admin_pb2_grpc.AdminServiceStub(opened).GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=BOUND_S
        )
        return dict(info.statistics)


HELD = ("path.running", "path.bytes_in_flight", "engine.running", "engine.waiting")


async def wait_at_rest(system: System) -> None:
    """Until no process holds a request, a page or a byte, and the store no lease."""

    async def held() -> dict[str, object]:
        found: dict[str, object] = {}
        for address in (*system.prefill, *system.decode):
            statistics = await statistics_of(address)
            found |= {
                f"{address} {name}": statistics[name] for name in HELD if statistics.get(name)
            }
        with contextlib.closing(system.store()) as store:
            leases = store.audit()
        return found | ({"leases": leases} if leases else {})

    try:
        async with asyncio.timeout(BOUND_S):
            while await held():  # noqa: ASYNC110  # other processes have no event for us
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"still held: {await held()}") from None


async def test_golden_prompts_travel_and_come_back_token_by_token(system: System) -> None:
    async def journey(idx: int) -> bool:
        case = GOLDEN[idx]
        ids, want = case["input_ids"], case["greedy_ids"][:12]
        params = sampling(len(want), temperature=0.0)
        first, ticket = await prefill_of(system.prefill[0], f"golden-{idx}", ids, params)
        address = system.decode[idx % DECODE_RANKS]
        return [first, *await decode_of(address, decode_request(ticket, ids, params))] == want

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(journey(idx)) for idx in range(len(GOLDEN))]
    assert [idx for idx, task in enumerate(tasks) if not task.result()] == []
    await wait_at_rest(system)


async def test_a_shared_prefix_without_states_is_replayed_and_changes_no_token(
    system: System,
) -> None:
    """The tiny model replays 6 * 63 tokens: of 640 shared ones 262 need no computing."""
    shared = [3 + (i * i + 7 * i) % 2000 for i in range(650)]
    prompts = {"first": [*shared, 9, 8, 7], "second": [*shared, *range(40, 90)]}
    params = sampling(12)
    prefill, decode = system.prefill[0], system.decode[0]
    found: dict[str, list[int]] = {}
    hits: dict[str, list[prefill_pb2.PrefillPrefixHit]] = {}
    # The last one has nothing stored under its salt, so it computes the second prompt whole.
    for name, prompt, salt in (
        ("first", "first", "shares"),
        ("second", "second", "shares"),
        ("whole", "second", "alone"),
    ):
        ids = prompts[prompt]
        first, ticket = await prefill_of(
            prefill, f"replay-{name}", ids, params, salt=salt, hits=hits.setdefault(name, [])
        )
        rest = await decode_of(decode, decode_request(ticket, ids, params, salt=salt))
        found[name] = [first, *rest]
    assert hits["first"] == hits["whole"] == []
    [hit] = hits["second"]
    assert (hit.cached_tokens, hit.replayed_tokens) == (640 - 378, 378)
    assert found["second"] == found["whole"]
    assert len(found["second"]) == 12
    statistics = await statistics_of(prefill)
    replayed = [value for name, value in statistics.items() if "source=replayed" in name]
    assert replayed == [378]
    await wait_at_rest(system)


@pytest.mark.parametrize("stage", ["admitted", "chunk_done", "first_token", "committed"])
async def test_a_caller_who_leaves_prefill_at_any_event_leaves_nothing(
    system: System, stage: str
) -> None:
    # Long enough for several chunks; a salt of its own, so that nothing is stored before.
    request = prefill_pb2.PrefillRequest(
        request_id=f"leaves-{stage}",
        attempt=1,
        token_ids=[3 + i % 200 for i in range(1400)],
        sampling=sampling(8),
        cache_salt=stage,
    )
    async with channel(system.prefill[0]) as opened:
        call = prefill_pb2_grpc.PrefillServiceStub(opened).Prefill(request, timeout=BOUND_S)
        async for event in call:
            if event.HasField(stage):
                ticket = event.committed.ticket
                break
        else:
            raise AssertionError(f"no event {stage}")
        call.cancel()
    if stage == "committed" and ticket.handoff_id:
        # The ticket arrived: from here on it is the caller's to give back.
        with contextlib.closing(system.store()) as store:
            store.abort(ticket.handoff_id)
    await wait_at_rest(system)


async def test_a_caller_who_leaves_decode_leaves_nothing(system: System) -> None:
    ids, params = GOLDEN[0]["input_ids"], sampling(2000)
    _, ticket = await prefill_of(system.prefill[0], "leaves-decode", ids, params)
    async with channel(system.decode[1]) as opened:
        stub = decode_pb2_grpc.DecodeServiceStub(opened)
        call = stub.Decode(decode_request(ticket, ids, params), timeout=BOUND_S)
        async for event in call:
            if event.tokens.seq >= 3:
                break
        call.cancel()
    await wait_at_rest(system)


async def test_a_deadline_frees_everything(system: System) -> None:
    ids, params = GOLDEN[0]["input_ids"], sampling(2000)
    _, ticket = await prefill_of(system.prefill[0], "too-late", ids, params)
    async with channel(system.decode[0]) as opened:
        stub = decode_pb2_grpc.DecodeServiceStub(opened)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Decode(decode_request(ticket, ids, params), timeout=0.3):
                pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await wait_at_rest(system)


async def test_health_and_reflection_know_the_services(system: System) -> None:
    for address, name in (
        (system.prefill[0], "disagg.v1.PrefillService"),
        (system.decode[1], "disagg.v1.DecodeService"),
    ):
        async with channel(address) as opened:
            health = health_pb2_grpc.HealthStub(opened)
            for service_name in ("", "liveness", "startup", "readiness", name):
                response = await health.Check(
                    health_pb2.HealthCheckRequest(service=service_name), timeout=BOUND_S
                )
                assert response.status == health_pb2.HealthCheckResponse.SERVING, service_name
            reflection = reflection_pb2_grpc.ServerReflectionStub(opened)
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection.ServerReflectionInfo(iter([ask]), timeout=BOUND_S)
            listed = [s.name async for r in call for s in r.list_services_response.service]
            assert {name, "disagg.v1.AdminService", "grpc.health.v1.Health"} <= set(listed)


async def test_a_drained_rank_refuses_work_until_undrained(system: System) -> None:
    async with channel(system.decode[0]) as opened:
        admin = admin_pb2_grpc.AdminServiceStub(opened)
        stub = decode_pb2_grpc.DecodeServiceStub(opened)
        info = await admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=BOUND_S)
        ask = decode_pb2.ReserveSlotRequest(
            request_id="drain", num_tokens=10, fingerprint=bytes.fromhex(info.fingerprint)
        )
        assert info.role == "decode"
        await admin.Drain(admin_pb2.DrainRequest(), timeout=BOUND_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReserveSlot(ask, timeout=BOUND_S)
        assert status.from_rpc_error(caught.value).reason is Reason.DRAINING
        await admin.Undrain(admin_pb2.UndrainRequest(), timeout=BOUND_S)
        credit = await stub.ReserveSlot(ask, timeout=BOUND_S)
        release = decode_pb2.ReleaseSlotRequest(credit_id=credit.credit_id)
        assert (await stub.ReleaseSlot(release, timeout=BOUND_S)).found


class _Balancer(membership_pb2_grpc.MembershipServiceServicer):
    def __init__(self) -> None:
        self.members: asyncio.Queue[membership_pb2.Member] = asyncio.Queue()

    async def Heartbeat(self, request, context):  # type: ignore[no-untyped-def]
        self.members.put_nowait(request.member)
        return membership_pb2.HeartbeatResponse(interval=wire.duration(0.1))


async def test_a_group_announces_itself_and_drains_on_sigterm_while_a_request_runs(
    system: System,
) -> None:
    """The request that was admitted runs to its end; the group ends with 0 and leaves nothing."""
    arguments = ("--store", system.store_url, "--model", str(MODEL), "--group", "decode-1")
    async with listening() as (balancer, at):
        await _drain_while_running(system, balancer, arguments, at)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[_Balancer, str]]:
    """A balancer that only listens to heartbeats, and its address."""
    balancer, server = _Balancer(), grpc.aio.server()
    membership_pb2_grpc.add_MembershipServiceServicer_to_server(balancer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield balancer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def _drain_while_running(
    system: System, balancer: _Balancer, arguments: tuple[str, ...], balancer_address: str
) -> None:
    with service("decode_service", *arguments, "--balancer", balancer_address) as group:
        (address,) = await asyncio.to_thread(group.wait_serving, 1)
        async with asyncio.timeout(BOUND_S):
            while not (member := await balancer.members.get()).ready:
                pass
        assert member.role == membership_pb2.MEMBER_ROLE_DECODE
        assert member.address == address
        assert (member.group_id, member.rank, member.group_size) == ("decode-1", 0, 1)
        assert member.member_id.startswith("decode-1-r0-")
        assert (member.model, member.block_tokens) == ("tiny-v4", 32)
        assert member.load.kv_capacity_tokens > 0
        case = GOLDEN[1]
        ids, params = case["input_ids"], sampling(40, temperature=0.0)
        first, ticket = await prefill_of(system.prefill[0], "drains", ids, params)
        found = [first]
        async with channel(address) as opened:
            stub = decode_pb2_grpc.DecodeServiceStub(opened)
            async for event in stub.Decode(decode_request(ticket, ids, params), timeout=BOUND_S):
                found += event.tokens.token_ids
                if event.HasField("resumed"):
                    group.ask_to_stop()
                    await asyncio.to_thread(group.wait_for, "drain.begun")
        assert found == case["greedy_ids"][:40]
        assert await asyncio.to_thread(group.wait_ended) == 0
        async with asyncio.timeout(BOUND_S):
            while not (await balancer.members.get()).draining:
                pass
    await wait_at_rest(system)


def test_a_model_that_lacks_a_tensor_ends_the_group_and_says_so(
    system: System, tmp_path: Path
) -> None:
    """Only a rank sees it, when it loads; the line names file and tensor."""
    tensors = load_file(MODEL / "model.safetensors")
    name = sorted(tensors)[-1]
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((MODEL / "config.json").read_bytes())
    with service("prefill_service", "--store", system.store_url, "--model", str(tmp_path)) as group:
        code = group.wait_ended(BOUND_S)
        said = [line for line in group.lines if not line.startswith("{")]
        failures = [line for line in group.lines if "stopping the group" in line]
    assert code != 0
    assert len(said) == 1, said
    assert "is missing; the checkpoint is incomplete" in said[0]
    assert len(failures) == 1
    assert "rank 0 exited with 2" in failures[0]
