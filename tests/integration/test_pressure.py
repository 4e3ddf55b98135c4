"""A small store fills up behind a running system: new requests are refused until it has room."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator

import pytest
import redis

from cli.local import launcher
from cli.local.launcher import System
from cli.local.topology import Topology
from client import AsyncClient, ClientError, Sampling
from kvstore import HandoffDraft, KvStore, KvStoreConfig, Ticket, embedded, open_store
from runtime.clock import SystemClock
from tests.fakes.processes import ROOT

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

LIMIT_BYTES = 48 << 20
BOUND_S = 30.0
LAYOUT = b"\x01" * 8
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        server = stack.enter_context(embedded.start(max_memory_bytes=LIMIT_BYTES))
        topology = Topology(
            model=ROOT / "models" / "tiny-v4",
            prefill_ranks=1,
            decode_ranks=1,
            store_url=server.url,
        )
        yield stack.enter_context(launcher.running_system(topology))


@pytest.fixture
def store(system: System) -> Iterator[KvStore]:
    """A client of another layout, which brings hand-offs that nobody fetches."""
    config = KvStoreConfig(block_tokens=4, owner="test", claim_ttl_s=300.0)
    with contextlib.closing(
        open_store(system.store_url, config, fingerprint=LAYOUT, clock=SystemClock().now)
    ) as opened:
        yield opened


def hand_off(store: KvStore, number: int, num_bytes: int) -> Ticket:
    """A hand-off of one token and a state of so many bytes."""
    return store.commit(
        HandoffDraft(
            request_id=f"held-{number}",
            attempt=1,
            num_tokens=1,
            block_hashes=(),
            block_digests=(),
            tail_tokens=(number,),
            tail_kv=b"",
            tail_state=bytes([number]) * num_bytes,
            first_token=1,
        )
    )


async def ask(client: AsyncClient) -> ClientError | None:
    """One request; the error if it is refused."""
    try:
        answer = await client.generate(PROMPT, sampling=Sampling(max_tokens=4, ignore_eos=True))
    except ClientError as error:
        return error
    assert len(answer.token_ids) == 4
    return None


async def ask_until(
    client: AsyncClient, condition: Callable[[ClientError | None], bool]
) -> ClientError | None:
    """Asks again and again: the balancer looks at the store twice a second."""
    async with asyncio.timeout(BOUND_S):
        while not condition(error := await ask(client)):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    return error


async def test_hand_offs_that_pile_up_stop_new_ones(system: System, store: KvStore) -> None:
    async with AsyncClient(system.address, timeout_s=BOUND_S) as client:
        assert await ask(client) is None
        part = LIMIT_BYTES // 50
        held = [hand_off(store, number, part) for number in range(31)]  # 62 % of its memory
        error = await ask_until(client, lambda error: error is not None)
        assert error is not None
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "POOL_FULL")
        assert error.retry_after_s == 1.0
        assert "hand-offs hold 62%" in error.message
        assert len(store.audit()) == 31, "nobody lost a lease over it"
        for _ in range(2):
            store.abort(held.pop().handoff_id)
        # Below the limit, and not yet well below it.
        error = await ask_until(client, lambda error: error is None or "62%" not in error.message)
        assert error is not None
        assert "hand-offs hold 58%" in error.message
        while held:
            store.abort(held.pop().handoff_id)
        await ask_until(client, lambda error: error is None)


async def test_a_store_that_does_not_evict_is_not_filled_to_the_brim(
    system: System, store: KvStore
) -> None:
    path = system.store_url.removeprefix("unix://")
    with redis.Redis(unix_socket_path=path) as server:
        server.config_set("maxmemory-policy", "noeviction")
        try:
            async with AsyncClient(system.address, timeout_s=BOUND_S) as client:
                assert not store.ping().evicts
                for number in range(18):
                    server.set(f"other-{number}", bytes(LIMIT_BYTES // 20), px=600_000)
                error = await ask_until(client, lambda error: error is not None)
                assert error is not None
                assert (error.reason, error.retry_after_s) == ("POOL_FULL", 1.0)
                assert "of the KV store's memory is used, the limit is 85%" in error.message
                server.config_set("maxmemory-policy", "volatile-lru")
                assert store.ping().evicts
                # The same bytes are a warm cache now.
                await ask_until(client, lambda error: error is None)
        finally:
            server.config_set("maxmemory-policy", "volatile-lru")
            server.flushall()
