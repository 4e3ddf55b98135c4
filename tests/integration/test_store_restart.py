"""The store comes back empty, or goes away, in the middle of hand-offs that decode reads ahead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
import redis

from cli.local import launcher
from cli.local.children import Child
from cli.local.launcher import System
from cli.local.members import list_members
from cli.local.topology import Topology
from client import AsyncClient, Completion, Sampling
from disagg.v1 import admin_pb2, admin_pb2_grpc
from kvstore import embedded
from tests.fakes.processes import ROOT

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
LONG = [case for case in GOLDEN if len(case["input_ids"]) >= 350]
GREEDY = Sampling(max_tokens=64, ignore_eos=True)
AWAY_S = 1.0


@dataclass
class Store:
    """A private server that can be taken away and put back, without what it held."""

    directory: Path
    server: embedded.EmbeddedStore

    def crash(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def restart(self) -> None:
        self.server = embedded.start(self.directory)

    def wait_for_blocks(self) -> None:
        """Until a prompt that computes has stored some of its blocks."""
        pause = threading.Event()
        with redis.Redis(unix_socket_path=self.server.url.removeprefix("unix://")) as connection:
            for _ in range(10_000):
                if any(connection.scan_iter("dkv1:*:b:*", count=1000)):
                    return
                pause.wait(0.001)
        raise AssertionError("no block was stored")


@dataclass
class Stage:
    """A running system and its store."""

    system: System
    store: Store

    async def counted(self, prefix: str) -> float:
        """A balancer's counters whose names begin so, added up."""
        async with grpc.aio.insecure_channel(self.system.address) as channel:
            info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
                admin_pb2.GetServerInfoRequest(), timeout=30
            )
        return sum(value for name, value in info.statistics.items() if name.startswith(prefix))

    async def decode_bytes(self) -> float:
        """Bytes that decode holds of what it read ahead."""
        [address] = [m.address for m in list_members(self.system.address) if m.role == "decode"]
        async with grpc.aio.insecure_channel(address) as channel:
            info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
                admin_pb2.GetServerInfoRequest(), timeout=30
            )
        return info.statistics["path.prefetched_bytes"] + info.statistics["path.prefetching"]


_START = System._child


def _patient(self: System, name: str, module: str, *flags: str) -> Child:
    more = ["--limits-recovery-wait-s", "60"] if name == "balancer" else []
    return _START(self, name, module, *flags, *more)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("store")
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("DISAGG_HANDOFF__OVERLAP", "true")
        patch.setenv("DISAGG_ENGINE__MAX_NUM_BATCHED_TOKENS", "64")
        patch.setattr(System, "_child", _patient)
        store = Store(directory, embedded.start(directory))
        stack.callback(lambda: store.server.stop())
        topology = Topology(
            model=MODEL, prefill_ranks=1, decode_ranks=1, store_url=store.server.url
        )
        yield Stage(stack.enter_context(launcher.running_system(topology)), store)


async def _all(stage: Stage, number: int) -> list[Completion]:
    """Long prompts at once, with the ids of this round; every answer is the golden one."""
    async with AsyncClient(stage.system.address, timeout_s=120.0) as client:
        answers = await asyncio.gather(
            *(
                client.generate(case["input_ids"], sampling=GREEDY, request_id=f"{number}-{idx}")
                for idx, case in enumerate(LONG)
            )
        )
    for case, answer in zip(LONG, answers, strict=True):
        assert list(answer.token_ids) == case["greedy_ids"], case["name"]
    return answers


async def test_a_store_that_comes_back_empty_costs_a_prefill_and_no_request(stage: Stage) -> None:
    before = await stage.counted("disagg_redispatch_total")
    requests = asyncio.create_task(_all(stage, 1))
    await asyncio.to_thread(stage.store.wait_for_blocks)
    stage.store.crash()
    await asyncio.to_thread(stage.store.restart)
    answers = await requests
    assert any(answer.attempts > 1 for answer in answers)
    assert await stage.counted("disagg_redispatch_total") > before
    assert await stage.decode_bytes() == 0


async def test_a_store_that_is_emptied_costs_a_prefill_and_no_request(stage: Stage) -> None:
    url = stage.store.server.url.removeprefix("unix://")
    with redis.Redis(unix_socket_path=url) as connection:
        connection.flushall()
        requests = asyncio.create_task(_all(stage, 2))
        for _ in range(5):
            await asyncio.to_thread(stage.store.wait_for_blocks)
            connection.flushall()
    answers = await requests
    assert any(answer.attempts > 1 for answer in answers)
    causes = ("evicted", "stale_attempt", "lease_lost")
    assert sum(
        [
            await stage.counted(f"disagg_redispatch_total{{reason={cause},stage={leg}")
            for cause in causes
            for leg in ("prefill", "decode")
        ]
    )
    assert await stage.decode_bytes() == 0


@pytest.mark.slow
async def test_a_store_that_is_away_for_a_while_costs_no_request(stage: Stage) -> None:
    requests = asyncio.create_task(_all(stage, 3))
    await asyncio.to_thread(stage.store.wait_for_blocks)
    stage.store.crash()
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(stage.store.restart)
    answers = await requests
    assert any(answer.attempts > 1 for answer in answers)
    assert await stage.decode_bytes() == 0
