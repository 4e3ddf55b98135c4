"""How `disagg generate` finds the system that `disagg up` started on this machine.

`up` leaves its address in a file of this user while it runs. The file is a convenience, no
registry: with two systems up the last one started is found, and --address reaches either.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def announced(address: str) -> Iterator[None]:
    """Leaves the address while the body runs."""
    path = _path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps({"address": address, "pid": os.getpid()})
    path.write_text(content, encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_text(encoding="utf-8") == content:  # not that of a later system
                path.unlink()


def find() -> str | None:
    """The address that was left last; None if there is none, or its system was killed."""
    try:
        left = json.loads(_path().read_text(encoding="utf-8"))
        os.kill(int(left["pid"]), 0)  # raises if there is no such process
        return str(left["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"disagg-{os.getuid()}" / "up.json"
