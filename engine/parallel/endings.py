"""Why rank processes ended, for the one line an operator reads. Supervisor and rank side.

Three witnesses: the exit status, which the fork server passes on; the error a rank died of, which
it writes into memory shared with its supervisor; and the kernel's count of processes it killed for
want of memory. The fork server itself may be killed; then every status is lost at once, although
the ranks may still run, so they are watched and signalled through descriptors of their own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

# What multiprocessing reports when the fork server was gone before it could pass a status on.
LOST_STATUS: Final = 255
_TEXT_BYTES: Final = 1024


def create_last_words() -> int:
    """Makes the anonymous memory file for the errors of a group's ranks; the caller owns it."""
    return os.memfd_create("disagg-last-words", os.MFD_CLOEXEC)


@contextlib.contextmanager
def recorded(descriptor: int, rank: int) -> Iterator[None]:
    """Writes the error that ends the block, for the supervisor; exits on purpose are none."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}".encode()[:_TEXT_BYTES]
        # What cannot be written must not hide the error itself.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, text, rank * _TEXT_BYTES)
        raise


def last_words(descriptor: int, rank: int) -> str:
    """Returns the error a rank died of, in one line; empty when it left none."""
    raw = os.pread(descriptor, _TEXT_BYTES, rank * _TEXT_BYTES)
    return " ".join(raw.rstrip(b"\0").decode(errors="replace").split())


def count_memory_kills() -> int:
    """Returns how many processes the kernel has killed for want of memory; 0 if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def describe(code: int, *, server_ended: bool, memory_kills: int) -> str:
    """Says how a rank ended, after "rank N".

    Args:
        code: as multiprocessing reports it: negative for signals.
        server_ended: the fork server has ended, so a status may be lost.
        memory_kills: processes that the kernel has killed for want of memory since the start.
    """
    if code < 0:
        text = f"died of {signal.Signals(-code).name}"
    elif code == LOST_STATUS and server_ended:
        text = "was lost: the fork server has ended and its exit status with it"
    else:
        return f"exited with {code}"
    if memory_kills and code in (-signal.SIGKILL, LOST_STATUS):
        text += f" (the kernel killed {memory_kills} processes for want of memory meanwhile)"
    return text


class ProcessHandle:
    """A process by descriptor: its number cannot come to mean another one.

    Args:
        pid: of a process that has not been waited for by anybody.
    """

    def __init__(self, pid: int | None) -> None:
        self._descriptor = -1
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                self._descriptor = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing when the process is gone."""
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Says whether the process is over, or is within that time."""
        if self._descriptor < 0:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(1e3 * timeout_s))

    def close(self) -> None:
        """Lets go of the descriptor. Twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def close_all(handles: Sequence[ProcessHandle]) -> None:
    """Lets go of all."""
    for handle in handles:
        handle.close()
