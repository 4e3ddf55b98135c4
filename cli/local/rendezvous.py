"""How commands find the system that `disagg up` started on this machine.

`up` leaves its address in a file of this user while it runs, one file per system. The files are a
convenience, no registry: the one system that runs is found, of several none is guessed, and
--address reaches any.
A system holds a lock on its file, which the kernel takes back however the system ends.

A directory that somebody else can write to is not used: who leaves an address there is sent prompts
and keys.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.errors import usage
from cli.output import say
from runtime.clock import SystemClock


@contextmanager
def announced(address: str) -> Iterator[None]:
    """Leaves the address while the body runs, if there is a directory that is ours alone."""
    directory = _directory()
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(directory):
        say(f"{directory} is not this user's alone, so commands need --address {address}")
        yield
        return
    path = directory / f"up-{uuid.uuid4().hex}.json"
    draft = path.with_suffix(".draft")
    content = {"address": address, "pid": os.getpid(), "started": SystemClock().wall()}
    with draft.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(content))
        file.flush()
        draft.rename(path)  # complete and locked from the first moment it can be found
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def find() -> str | None:
    """The address of the one running system; None if none runs.

    Raises:
        CommandError: Several run, and nothing says which is meant.
    """
    if not _is_ours(_directory()):
        return None
    found = [record for path in _directory().glob("up-*.json") if (record := _read(path))]
    if len(found) > 1:
        addresses = ", ".join(address for _, address in sorted(found, reverse=True))
        raise usage(
            f"{len(found)} systems run on this machine, newest first: {addresses}; choose one "
            "with --address"
        )
    return found[0][1] if found else None


def _read(path: Path) -> tuple[float, str] | None:
    """Start and address of a running system; removes the file of one that was killed."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                left = json.load(file)
                return float(left["started"]), str(left["address"])
        path.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it went away meanwhile, or is nothing of ours
    return None


def _is_ours(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    is_private = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and is_private


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"disagg-{os.getuid()}"
