"""Every backend, behind one fixture: the tests do not know which one they run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore import KvStore
from kvstore.backends.memory import MemoryBackend
from tests.fakes.servers import raw_cluster, raw_debian_redis, raw_tls_redis, raw_watched
from tests.fakes.stores import (
    ManualClock,
    RawFiles,
    RawKeyed,
    RawMemory,
    RawRedis,
    RawStore,
    make_store,
    raw_redis,
)

SERVERS = {
    "valkey": raw_redis,
    "cluster": raw_cluster,
    "redis-7": raw_debian_redis,
    "redis-7-tls": raw_tls_redis,
    "sentinel": raw_watched,
}


class Servers:
    """Servers that are started at their first use and stopped after the last test."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._running: dict[str, RawRedis] = {}

    def get(self, name: str) -> RawRedis:
        if name not in self._running:
            self._running[name] = self._cleanup.enter_context(SERVERS[name]())
        return self._running[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as cleanup:
        yield Servers(cleanup)


@pytest.fixture(
    params=[
        "memory",
        *(pytest.param(name, marks=pytest.mark.medium) for name in ("keyed", "files", *SERVERS)),
    ]
)
def raw(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[RawStore]:
    if request.param == "memory":
        yield RawMemory(MemoryBackend(ManualClock()))
    elif request.param == "keyed":
        yield RawKeyed(RawMemory(MemoryBackend(ManualClock())))
    elif request.param == "files":
        files = RawFiles(tmp_path / "store")
        yield files
        files.backend.close()
    else:
        server = servers.get(request.param)
        server.clear()
        yield server


@pytest.fixture
def store(raw: RawStore) -> KvStore:
    return make_store(raw.backend)
