"""The store in a directory: for machines that share a disk (a 3FS-like mount) and no server.

One value is one file, complete from the moment its name exists: it is written under another name
and linked to its own, which fails if that is taken. The time of change of a file is the end of its
life, read against the file system's own clock, so clients never compare theirs. Steps over several
files hold a lock file that is one of 256, chosen by the name in the braces of the key.

    DIR/lock/00 .. ff        lock files
    DIR/data/3f/dkv1:...     values and leases, spread over 256 directories
    DIR/temp/                values that are being written; old ones are swept by the audit

Nothing is evicted: the audit deletes what ended, and a full disk is `StoreFull`.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

import msgpack

from kvstore.backends.base import (
    BackendStatistics,
    Facts,
    LeaseEntry,
    OnBytes,
    OnValue,
    Place,
    PutItem,
)
from kvstore.backends.steps import Lease, StepBackend
from kvstore.buffers import Buffer, flat_view, new_buffer
from kvstore.config import StoreUrl
from kvstore.errors import StoreDown, StoreFull
from kvstore.headers import HEADER_BYTES
from kvstore.keys import LEASE_PREFIX, handoff_id_of_key

_TEMP_LIFE_NS = 60 * 10**9
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LEASE_TYPES = (str, str, str, int, int, int, int, int, int)


class FilesBackend(StepBackend):
    """All ports over a directory, which is made if it is not there. Thread-safe."""

    def __init__(self, url: StoreUrl) -> None:
        self._root = Path(url.path)
        self._counter = 0
        self._lock = threading.Lock()
        self._is_ready = False
        self._clock_fd = -1

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        with self._translated():
            now_ms = self._now_ms()
            expires_ms = now_ms + extend_ms if extend_ms else 0
            return [self._lengthen(key, expires_ms) for key in keys]

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """See `BlockStore`."""
        with self._translated():
            return [self._put_one(item) for item in items]

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """See `BlockStore`."""
        for idx, key in enumerate(keys):
            with self._translated():
                view = self._read(key, functools.partial(place, idx) if place else new_buffer)
            if view is not None and on_bytes is not None:
                on_bytes(len(view))
            on_value(idx, view)

    def statistics(self) -> BackendStatistics:
        """See `BlockStore`. Counts all files."""
        with self._translated():
            self._prepare()
            sizes = [entry.stat().st_size for entry in self._entries()]
            disk = os.statvfs(self._root)
        used = sum(sizes)
        return BackendStatistics(
            address=str(self._root),
            used_bytes=used,
            max_bytes=used + disk.f_bavail * disk.f_frsize,
            num_keys=len(sizes),
        )

    def close(self) -> None:
        """See `BlockStore`."""
        with self._lock:
            descriptor, self._clock_fd, self._is_ready = self._clock_fd, -1, False
        if descriptor >= 0:
            os.close(descriptor)

    # LeaseStore

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`; deletes what ended on the way."""
        with self._translated():
            self._sweep()
            return super().audit()

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        values, leases = self._live_keys()
        yield from (key for key in (*values, *leases) if key.startswith(prefix))

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`."""
        with self._translated():
            now_ms = self._now_ms()
            found = [self._stat(key, now_ms) for key in keys]
        return [
            stat.st_size if stat and not key.startswith(LEASE_PREFIX) else 0
            for key, stat in zip(keys, found, strict=True)
        ]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        with self._translated():
            return sum(self._drop(key) for key in keys)

    def facts(self) -> list[Facts]:
        """See `KeyStore`: there is no server."""
        return []

    # Cells

    @contextmanager
    def _locked(self, key: bytes, /) -> Iterator[object]:
        with self._translated():
            self._prepare()
            descriptor = os.open(
                self._root / "lock" / _shard(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)  # ends the lock

    def _now_ms(self) -> int:
        self._prepare()
        # The file system's clock: it stamps the probe, whoever touches it.
        os.utime(self._clock_fd)
        return os.fstat(self._clock_fd).st_mtime_ns // 1_000_000

    def _peek(self, key: bytes) -> bytes | None:
        view = self._read(key, new_buffer)
        return None if view is None else bytes(view)

    def _write(self, key: bytes, data: bytes, expires_ms: int) -> None:
        temporary = self._fill([data], expires_ms)
        os.replace(temporary, self._path(key))

    def _lengthen(self, key: bytes, expires_ms: int) -> bool:
        stat = self._stat(key, self._now_ms())
        if stat is None:
            return False
        if expires_ms * 1_000_000 > stat.st_mtime_ns:
            with suppress(FileNotFoundError):
                os.utime(self._path(key), ns=(expires_ms * 1_000_000,) * 2)
        return True

    def _life_ms(self, key: bytes) -> int:
        now_ms = self._now_ms()
        stat = self._stat(key, now_ms)
        return 0 if stat is None else stat.st_mtime_ns // 1_000_000 - now_ms

    def _drop(self, key: bytes) -> bool:
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def _lease(self, key: bytes) -> Lease | None:
        data = self._peek(key)
        if data is None:
            return None
        try:
            fields = msgpack.unpackb(data, raw=False, max_array_len=len(_LEASE_TYPES))
        except (ValueError, TypeError, msgpack.UnpackException):
            return None
        if not isinstance(fields, list) or tuple(map(type, fields)) != _LEASE_TYPES:
            return None
        return Lease(*fields)

    def _save_lease(self, key: bytes, lease: Lease) -> None:
        self._write(key, bytes(msgpack.packb(astuple(lease))), lease.expires_ms)

    def _drop_lease(self, key: bytes) -> bool:
        return self._drop(key)

    def _first_fence(self) -> int:
        # As in `commit.lua`: the time in microseconds is above all tokens of earlier lives.
        self._now_ms()
        return os.fstat(self._clock_fd).st_mtime_ns // 1000

    def _live_keys(self) -> tuple[list[bytes], list[bytes]]:
        with self._translated():
            now_ms = self._now_ms()
            values: list[bytes] = []
            leases: list[bytes] = []
            for entry in self._entries():
                key = os.fsencode(entry.name)
                if self._stat(key, now_ms) is not None:
                    (leases if key.startswith(LEASE_PREFIX) else values).append(key)
        return values, leases

    # Files

    def _put_one(self, item: PutItem) -> bytes | None:
        now_ms = self._now_ms()
        if self._stat(item.key, now_ms) is None:
            temporary = self._fill(
                [item.header, flat_view(item.payload), item.trailer], now_ms + item.ttl_ms
            )
            try:
                return self._link(temporary, item.key)
            finally:
                os.unlink(temporary)
        return self._head(item.key)

    def _link(self, temporary: Path, key: bytes) -> bytes | None:
        try:
            os.link(temporary, self._path(key))
        except FileExistsError:
            # Somebody was quicker, or what is there has ended and was not swept yet.
            with self._locked(key):
                if self._stat(key, self._now_ms()) is not None:
                    return self._head(key)
                os.replace(self._copy_name(temporary), self._path(key))
        return None

    def _copy_name(self, temporary: Path) -> Path:
        """A second name of a temporary file, to be moved while the caller removes the first."""
        other = self._temporary()
        os.link(temporary, other)
        return other

    def _head(self, key: bytes) -> bytes:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return file.read(HEADER_BYTES)
        except FileNotFoundError:
            return b""

    def _fill(self, parts: Sequence[bytes | memoryview], expires_ms: int) -> Path:
        self._prepare()
        path = self._temporary()
        try:
            with open(path, "xb", buffering=0) as file:
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.utime(file.fileno(), ns=(expires_ms * 1_000_000,) * 2)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return path

    def _read(self, key: bytes, allocate: Callable[[int], Buffer]) -> memoryview | None:
        now_ms = self._now_ms()
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            stat = os.fstat(descriptor)
            if stat.st_mtime_ns <= now_ms * 1_000_000:
                return None
            view = flat_view(allocate(stat.st_size))[: stat.st_size]
            filled = 0
            while filled < stat.st_size:
                count = os.readv(descriptor, [view[filled:]])
                if not count:
                    return view[:filled]  # truncated meanwhile; whoever verifies finds out
                filled += count
            return view
        finally:
            os.close(descriptor)

    def _stat(self, key: bytes, now_ms: int) -> os.stat_result | None:
        """Of a value whose life has not ended."""
        try:
            stat = os.stat(self._path(key))
        except FileNotFoundError:
            return None
        return stat if stat.st_mtime_ns > now_ms * 1_000_000 else None

    def _sweep(self) -> None:
        now_ms = self._now_ms()
        for entry in self._entries():
            key = os.fsencode(entry.name)
            if self._stat(key, now_ms) is None:
                with self._locked(key):
                    if self._stat(key, now_ms) is None:
                        self._drop(key)
        for path in (self._root / "temp").iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_ctime_ns < now_ms * 1_000_000 - _TEMP_LIFE_NS:
                    path.unlink()

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for shard in sorted(os.listdir(self._root / "data")):
            with os.scandir(self._root / "data" / shard) as entries:
                yield from (entry for entry in entries if entry.name.startswith("dkv1:"))

    def _path(self, key: bytes) -> Path:
        assert b"/" not in key
        return self._root / "data" / _shard(key) / os.fsdecode(key)

    def _temporary(self) -> Path:
        with self._lock:
            self._counter += 1
            number = self._counter
        return self._root / "temp" / f"{os.uname().nodename}-{os.getpid()}-{id(self)}-{number}"

    def _prepare(self) -> None:
        """Makes the directories and opens the clock, once."""
        if not self._is_ready:
            with self._lock:
                self._make()

    def _make(self) -> None:
        if self._clock_fd >= 0:
            return
        for name in ("lock", "temp"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        for number in range(256):
            (self._root / "data" / f"{number:02x}").mkdir(parents=True, exist_ok=True)
        self._clock_fd = os.open(self._root / "clock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_ready = True

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = error.strerror or str(error)
            if error.errno in _FULL:
                raise StoreFull(str(self._root), text) from error
            raise StoreDown(str(self._root), text) from error


def _shard(key: bytes) -> str:
    """One of 256, the same for all keys of one block or one hand-off."""
    return hashlib.sha256(handoff_id_of_key(key).encode()).hexdigest()[:2]
