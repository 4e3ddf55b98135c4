"""Launched systems for tests: real ones, and a stand-in around a balancer of the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local import launcher, signals
from cli.local.children import Child
from cli.local.launcher import Row, System
from cli.local.topology import Topology
from tests.fakes.processes import ROOT


@dataclass
class FakeSystem:
    """What commands see of `cli.local.launcher.System`."""

    address: str = "127.0.0.1:1"
    http_address: str = ""
    trace_address: str = ""
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


@contextmanager
def launched(
    *,
    prefill_ranks: int = 1,
    decode_ranks: int = 2,
    prefill_layout: str = "",
    decode_layout: str = "",
    http_port: int | None = None,
    has_traces: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[System]:
    """A real system of the bundled model, started from the source tree.

    Args:
        flags: Further ones of its processes, by role.
    """
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    topology = Topology(
        model=ROOT / "models" / "tiny-v4",
        prefill_ranks=prefill_ranks,
        decode_ranks=decode_ranks,
        prefill_layout=prefill_layout,
        decode_layout=decode_layout,
        http_port=http_port,
        has_traces=has_traces,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        start = System._child

        def child(self: System, name: str, module: str, *given: str) -> Child:
            return start(self, name, module, *given, *(flags or {}).get(name, ()))

        patch.setattr(System, "_child", child)
        with launcher.running_system(topology) as system:
            yield system


def install(monkeypatch: pytest.MonkeyPatch, system: FakeSystem) -> FakeSystem:
    """Lets commands find this system instead of starting one."""

    @contextmanager
    def running_system(topology: Topology, **_: float) -> Iterator[FakeSystem]:
        system.topologies.append(topology)
        try:
            yield system
            signals.check()
        finally:
            system.is_stopped = True

    monkeypatch.setattr(launcher, "running_system", running_system)
    return system
