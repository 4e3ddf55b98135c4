"""What only a directory does: life in the time of change, atomic names, sweeping, full disks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.backends.base import HandoffKeys, LeaseGrant, PutItem
from kvstore.backends.files import FilesBackend
from kvstore.config import parse_url
from kvstore.errors import StoreDown, StoreFull
from kvstore.keys import lease_key
from tests.fakes.stores import Prompt, make_store

KEY = b"dkv1:00:b:{aa}:1:0:0"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FilesBackend]:
    backend = FilesBackend(parse_url(f"file://{tmp_path}/store"))
    yield backend
    backend.close()
    backend.close()


def item(payload: bytes, ttl_ms: int = 60_000) -> PutItem:
    return PutItem(KEY, bytes(64), payload, ttl_ms)


def end_life(files: FilesBackend, key: bytes) -> None:
    os.utime(files._path(key), ns=(1, 1))


def test_a_value_whose_life_ended_is_gone_and_its_name_free(files: FilesBackend) -> None:
    assert files.put([item(b"one")]) == [None]
    end_life(files, KEY)
    assert files.lookup([KEY], extend_ms=1000) == [False]
    assert list(files.keys(b"dkv1:")) == []
    assert files.put([item(b"two")]) == [None]
    assert files._peek(KEY) == bytes(64) + b"two"


def test_lives_are_lengthened_and_never_shortened(files: FilesBackend) -> None:
    files.put([item(b"x", 50_000)])
    before = files._path(KEY).stat().st_mtime_ns
    assert files.lookup([KEY], extend_ms=10_000) == [True]
    assert files._path(KEY).stat().st_mtime_ns == before
    files.lookup([KEY], extend_ms=90_000)
    assert files._path(KEY).stat().st_mtime_ns > before + 30 * 10**9


def test_of_many_writers_one_wins_and_nothing_is_left(files: FilesBackend, tmp_path: Path) -> None:
    start, results = threading.Barrier(8), []

    def write(number: int) -> None:
        start.wait()
        results.append(files.put([item(b"%d" % number)])[0])

    for _ in range(5):
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(result is None for result in results) == 1
        results.clear()
        files.delete([KEY])
    assert list((tmp_path / "store" / "temp").iterdir()) == []


def test_the_audit_sweeps_what_ended_and_what_dead_writers_left(
    files: FilesBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put([item(b"x")])
    end_life(files, KEY)
    left = tmp_path / "store" / "temp" / "left"
    left.write_bytes(b"half")
    files.audit()
    assert not files._path(KEY).exists()
    assert left.exists()  # it may be a value on its way
    monkeypatch.setattr("kvstore.backends.files._TEMP_LIFE_NS", -(10**12))
    files.audit()
    assert not left.exists()


def test_a_broken_lease_is_none(files: FilesBackend) -> None:
    keys = HandoffKeys(body=b"dkv1:h:{a}", lease=lease_key("a"))
    grant = LeaseGrant(
        owner="o", request_id="r", attempt=1, num_bytes=1, lease_ms=1000, ttl_ms=10_000
    )
    files.commit(keys, b"body", grant)
    assert files._lease(keys.lease) is not None
    for data in (b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03"):
        files._write(keys.lease, data, files._now_ms() + 10_000)
        assert files._lease(keys.lease) is None


def test_two_backends_share_a_directory(files: FilesBackend, tmp_path: Path) -> None:
    other = FilesBackend(parse_url(f"file://{tmp_path}/store"))
    prompt = Prompt("r", tuple(range(14)))
    ticket = prompt.hand_over(make_store(files))
    with make_store(other).open_ticket(ticket, prompt.token_ids) as reader:
        assert reader.fetch().num_tokens == 14
    assert make_store(files).audit() == []
    other.close()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreDown)])
def test_errors_of_the_disk_are_errors_of_the_store(
    files: FilesBackend, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    files.put([item(b"x")])

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("kvstore.backends.files.os.link", fail)
    files.delete([KEY])
    with pytest.raises(kind):
        files.put([item(b"y")])
    monkeypatch.undo()
    assert files.put([item(b"y")]) == [None]


def test_a_directory_that_cannot_be_made_is_a_store_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = FilesBackend(parse_url(f"file://{tmp_path}/file/store"))
    with pytest.raises(StoreDown, match="Not a directory"):
        files.statistics()
