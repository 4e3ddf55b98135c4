"""Work that the benchmark of the store gives to each client: the same bytes, the same server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import redis

import kvstore.digests
import kvstore.payloads.reading
import kvstore.payloads.sealing
import kvstore.verification
from kvstore import KvStore, KvStoreConfig, open_store

BLOCK_TOKENS = 128
FINGERPRINT = b"\x01" * 8
_PIPELINE = 8
_LIFE_MS = 600_000


def open_client(url: str) -> KvStore:
    """A client of ours with its defaults."""
    config = KvStoreConfig(block_tokens=BLOCK_TOKENS, owner="benchmark")
    return open_store(url, config, fingerprint=FINGERPRINT, clock=time.monotonic)


def random_payloads(count: int, size: int, seed: int) -> list[bytes]:
    """Values of random bytes."""
    generator = np.random.default_rng(seed)
    return [generator.bytes(size) for _ in range(count)]


def names_of(count: int, seed: int) -> list[bytes]:
    """Names like block hashes."""
    return [hashlib.sha256(f"{seed} {idx}".encode()).digest() for idx in range(count)]


@dataclass
class Series:
    """Repeated measurements of one operation: wall and processor seconds per GB."""

    wall: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)


class Meter:
    """Measures operations that move a known number of bytes between us and one server process."""

    def __init__(self, server_pid: int, num_bytes: int) -> None:
        self._schedule = Path(f"/proc/{server_pid}/schedstat")
        self._gb = num_bytes / 1e9
        self.series: dict[str, Series] = {}

    def measure(self, name: str, operation: Callable[[], None], *, keep: bool) -> None:
        """Runs an operation once; the first round of all is not kept."""
        client, server, wall = time.process_time(), self._server_s(), time.perf_counter()
        operation()
        wall = time.perf_counter() - wall
        client, server = time.process_time() - client, self._server_s() - server
        if keep:
            series = self.series.setdefault(name, Series())
            series.wall.append(wall / self._gb)
            series.client.append(client / self._gb)
            series.server.append(server / self._gb)

    def _server_s(self) -> float:
        return int(self._schedule.read_text().split()[0]) / 1e9


class OurWork:
    """Puts and gets of blocks, with digests and, for comparison, without computing any."""

    def __init__(self, store: KvStore, names: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        self._store = store
        self._names = names
        self._blocks = list(zip(names, payloads, strict=True))

    def put(self) -> None:
        """Writes all blocks."""
        self._store.put_blocks(self._blocks, attempt=1)

    def get(self) -> None:
        """Reads and verifies all blocks into fresh memory."""
        self._store.get_blocks(self._names)

    def put_plain(self) -> None:
        """As `put`, with a constant for every digest."""
        with _no_digests():
            self.put()

    def get_plain(self) -> None:
        """As `get`, with a constant for every digest."""
        with _no_digests():
            self.get()


@contextmanager
def _no_digests() -> Iterator[None]:
    modules = (kvstore.digests, kvstore.verification, kvstore.payloads.sealing)
    original, advance = kvstore.digests.payload_digest, kvstore.digests.RunningDigest.advance
    for module in modules:
        module.payload_digest = lambda _payload: bytes(16)  # type: ignore[attr-defined]
    kvstore.digests.RunningDigest.advance = lambda _self, _count: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in modules:
            module.payload_digest = original  # type: ignore[attr-defined]
        kvstore.digests.RunningDigest.advance = advance  # type: ignore[method-assign]


class RedisPyWork:
    """The same puts and gets through redis-py with hiredis, one by one and in pipelines."""

    def __init__(
        self, client: redis.Redis, names: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        self._client = client
        self._names = [name.hex() for name in names]
        self._payloads = payloads

    def put_single(self) -> None:
        """One command at a time."""
        for name, payload in zip(self._names, self._payloads, strict=True):
            self._client.set(name, memoryview(payload), px=_LIFE_MS, nx=True)

    def get_single(self) -> None:
        """One command at a time."""
        found = [self._client.get(name) for name in self._names]
        assert len(found[-1] or b"") == len(self._payloads[-1])

    def put_pipelined(self) -> None:
        """Pipelines of eight."""
        for start in range(0, len(self._names), _PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            stop = start + _PIPELINE
            for name, payload in zip(
                self._names[start:stop], self._payloads[start:stop], strict=True
            ):
                pipeline.set(name, memoryview(payload), px=_LIFE_MS, nx=True)
            pipeline.execute()

    def get_pipelined(self) -> None:
        """Pipelines of eight."""
        found = []
        for start in range(0, len(self._names), _PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for name in self._names[start : start + _PIPELINE]:
                pipeline.get(name)
            found += pipeline.execute()
        assert len(found[-1]) == len(self._payloads[-1])
