"""Child processes of the launcher: one log file each, an end with the launcher, a clear last word.

A child runs in a session of its own, so that Ctrl-C reaches the launcher alone and the launcher
decides the order of the stop. Should the launcher be killed, the kernel sends the child SIGTERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cli.errors import CommandError
from runtime.errors import ExitCode
from runtime.settings import environment_with

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 12


class Child:
    """A running `python -m MODULE`.

    Args:
        name: How people call it; also the name of its log file.
        arguments: Module and its flags.
        directory: Where its output goes: NAME.log and NAME.out.
        variables: Of its environment, beside those of this process; for what the table of
            processes should not show to everybody on the machine.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.out = directory / f"{name}.out"
        with self.log.open("wb") as log, self.out.open("wb") as out:
            # preexec_fn is safe here: the launcher has no thread before its last child runs.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
                env=environment_with(variables or {}),
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raises CommandError if the child has ended.

        A lost process is a failed run and no bug: where its supervisor says who was lost, that and
        the log's place are told, without what the other ranks said about it.
        """
        code = self.exit_code
        if code is None:
            return
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        is_told = code in (ExitCode.CONFIGURATION, ExitCode.DEPENDENCY, ExitCode.INTERNAL)
        cause = self.cause()
        text = f"{self.name} ended with {ending}{': ' if cause else ''}{cause}"
        raise CommandError(
            f"{text}; its log is {self.log}" if cause and not is_told else f"{text}\n{self.tail()}",
            ExitCode(code) if is_told else ExitCode.FAILED,
        )

    def cause(self) -> str:
        """What its log says first about the end; empty if that is not in a record of its own.

        A supervisor names the rank that failed; what the other ranks say are consequences.
        """
        errors = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and record.get("level") in ("error", "critical"):
                    errors.append(record)
        errors.sort(key=lambda record: "rank" in record)  # the supervisor's have none
        return str(errors[0].get("event", "")) if errors else ""

    def tail(self) -> str:
        """The last lines of its log, indented, under the name of the file."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = [f"  | {line}" for line in lines[-_TAIL_LINES:]] or ["  | (it wrote nothing)"]
        return "\n".join([f"  {self.log}", *shown])

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, which drains; twice is harmless."""
        if self.exit_code is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end; returns whether it came in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends the child and its whole session at once."""
        if self.exit_code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork; nothing may be loaded after it
    launcher = os.getpid()

    def ask_the_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it died in between
            os.kill(os.getpid(), signal.SIGTERM)

    return ask_the_kernel
