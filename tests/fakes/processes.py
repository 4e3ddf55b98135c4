"""Service groups as real processes: started, listened to, stopped by their own id."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 120.0
END_S = 60.0


class ServiceProcess:
    """A group: its supervisor, the records it logs, and the addresses of its ranks by number."""

    def __init__(self, module: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.addresses: dict[int, str] = {}
        self._records: queue.Queue[dict[str, object] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_serving(self, num_ranks: int) -> list[str]:
        """Addresses of all ranks, in their order, once the last one listens."""
        while len(self.addresses) < num_ranks:
            record = self.wait_for("rank.serving", START_S)
            self.addresses[int(str(record["rank"]))] = str(record["address"])
        return [self.addresses[rank] for rank in range(num_ranks)]

    def wait_for(self, event: str, timeout_s: float = END_S) -> dict[str, object]:
        """The next record of that name."""
        while True:
            record = self._records.get(timeout=timeout_s)
            if record is None:
                raise AssertionError(f"ended before {event}:\n" + "".join(self.lines[-40:]))
            if record.get("event") == event:
                return record

    def ask_to_stop(self) -> None:
        """SIGTERM to the supervisor, which passes it on."""
        self.process.send_signal(signal.SIGTERM)

    def wait_ended(self, timeout_s: float = END_S) -> int:
        """The exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(END_S)
        return code

    def kill(self) -> None:
        """Ends the supervisor at once; its ranks end with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)
        self._reader.join(END_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("{"):
                self._records.put(json.loads(line))
        self._records.put(None)


@contextmanager
def service(module: str, *arguments: str) -> Iterator[ServiceProcess]:
    """Starts `python -m module` from the source tree and ends it whatever happens."""
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DISAGG_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    started = ServiceProcess(module, arguments, environment)
    try:
        yield started
    finally:
        started.kill()
