"""Writers and readers that are killed at any moment leave nothing half-written and no orphan."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

import pytest
import redis

from kvstore import embedded
from tests.fakes.store_worker import COMMITTED, READ, WRONG, open_shared


def start(role: str, url: str, seed: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.store_worker", role, url, str(seed)], env=environment
    )


def run(num_pairs: int, seconds: float, seed: int) -> None:
    generator, pause = random.Random(seed), threading.Event()
    with embedded.start(max_memory_bytes=512 << 20) as server:
        roles = ["writer", "reader"] * num_pairs
        workers = [start(role, server.url, seed + idx) for idx, role in enumerate(roles)]
        client = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
        store = open_shared(server.url, "judge")
        num_killed = 0
        try:
            for _ in range(3000):  # nobody is killed before the work has begun
                if client.get(READ):
                    break
                pause.wait(0.01)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pause.wait(generator.uniform(0.1, 0.5))
                victim = generator.randrange(len(workers))
                workers[victim].kill()
                workers[victim].wait()
                num_killed += 1
                workers[victim] = start(roles[victim], server.url, seed + 100 + num_killed)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        # All are dead. What they held or reserved ends by itself, or by the janitor's hand.
        for _ in range(500):
            store.janitor()
            if not store.audit():
                break
            pause.wait(0.01)
        assert store.audit() == []
        assert [key for key in client.scan_iter(b"dkv1:*") if client.ttl(key) == -1] == []
        assert client.lrange(WRONG, 0, -1) == []
        assert int(client.get(COMMITTED) or 0) > 10
        assert int(client.get(READ) or 0) > 10
        assert num_killed >= 3
        client.close()
        store.close()


@pytest.mark.medium
def test_kills_for_a_moment() -> None:
    run(2, 3.0, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kills_for_two_minutes() -> None:
    run(8, 120.0, 2)
