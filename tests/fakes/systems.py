"""A stand-in for a launched system, around a balancer that already runs in the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local import launcher
from cli.local.launcher import Row
from cli.local.topology import Topology


@dataclass
class FakeSystem:
    """What commands see of `cli.local.launcher.System`."""

    address: str = "127.0.0.1:1"
    store_url: str = "unix:///s"
    directory: Path = Path("/run/logs")
    topologies: list[Topology] = field(default_factory=list)
    error: CommandError | None = None
    is_stopped: bool = False

    def rows(self) -> list[Row]:
        return [
            Row(role="store", name="", address=self.store_url, state="ready", pid="1"),
            Row(role="decode", name="d0", address="h:2", state="ready", pid="22"),
        ]

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def install(monkeypatch: pytest.MonkeyPatch, system: FakeSystem) -> FakeSystem:
    """Lets commands find this system instead of starting one."""

    @contextmanager
    def running_system(topology: Topology, **_: float) -> Iterator[FakeSystem]:
        system.topologies.append(topology)
        try:
            yield system
        finally:
            system.is_stopped = True

    monkeypatch.setattr(launcher, "running_system", running_system)
    return system
