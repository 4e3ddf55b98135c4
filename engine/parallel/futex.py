"""Sleeping on a 32-bit word that several processes map: Linux futexes through ctypes.

Knows nothing of ranks. `wait` gives the interpreter lock away while it sleeps; `wake` does not,
because it never blocks.

`fence` orders plain stores and loads of this thread against those of other processes. x86 keeps
them in order as far as this package needs; on aarch64 a wake of a private word is used, whose
kernel path holds a full barrier.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from functools import cache
from typing import Any

_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT = 0
_WAKE = 1
_ALL = 0x7FFFFFFF


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def is_available() -> bool:
    """Whether this machine has the futex calls this module knows."""
    return platform.system() == "Linux" and platform.machine() in _SYSCALL_NUMBERS


class FutexWord:
    """One 32-bit word in shared memory to sleep on.

    Args:
        buffer: a writable buffer of at least `offset + 4` bytes, shared between the processes.
        offset: byte offset of the word, a multiple of 4.
    """

    __slots__ = ("_address", "_number", "_syscall", "_timeout", "_wake_syscall", "_word")

    def __init__(self, buffer: memoryview, offset: int) -> None:
        """Maps the word; keeps the buffer alive until `close`."""
        if not is_available():
            raise OSError(
                f"shared-memory groups need Linux on x86_64 or aarch64, this is "
                f"{platform.system()} on {platform.machine()}; use backend='gloo'"
            )
        self._number = ctypes.c_long(_SYSCALL_NUMBERS[platform.machine()])
        self._word = ctypes.c_int32.from_buffer(buffer, offset)
        self._address = ctypes.c_void_p(ctypes.addressof(self._word))
        self._timeout = _Timespec()
        self._syscall, self._wake_syscall = _syscalls()

    def load(self) -> int:
        """Reads the word."""
        return self._word.value

    def store(self, value: int) -> None:
        """Writes the word; does not wake anybody."""
        self._word.value = value

    def wait(self, expected: int, timeout_s: float) -> bool:
        """Sleeps while the word equals `expected`, at most `timeout_s`.

        Returns False when the time ran out, True otherwise (woken, changed, or for no reason:
        look again). One thread at a time per object.
        """
        seconds = int(timeout_s)
        self._timeout.tv_sec = seconds
        self._timeout.tv_nsec = int((timeout_s - seconds) * 1e9)
        result = self._syscall(
            self._number,
            self._address,
            _WAIT,
            ctypes.c_int32(expected),
            ctypes.byref(self._timeout),
            None,
            0,
        )
        return not (result != 0 and ctypes.get_errno() == errno.ETIMEDOUT)

    def wake_all(self) -> None:
        """Wakes everybody who sleeps on the word. Twice is harmless."""
        self._wake_syscall(self._number, self._address, _WAKE, _ALL, None, None, 0)

    def close(self) -> None:
        """Lets go of the buffer, so that its mapping can be closed."""
        del self._word, self._address


@cache
def _syscalls() -> tuple[Any, Any]:
    """The system call without the interpreter lock and with it (foreign functions have no type).

    Opened once: each opening makes classes, which costs more than everything else about a word.
    """
    return ctypes.CDLL(None, use_errno=True).syscall, ctypes.PyDLL(None).syscall


def needs_fence() -> bool:
    """Whether this machine may reorder plain stores (aarch64) so that `Fence` must act."""
    return platform.machine() != "x86_64"


class Fence:
    """A full memory barrier; a no-op where the hardware keeps stores and loads in order."""

    __slots__ = ("_memory", "_word")

    def __init__(self) -> None:
        """Prepares the private word whose wake-up is the barrier."""
        self._memory = bytearray(4)
        self._word = FutexWord(memoryview(self._memory), 0) if needs_fence() else None

    def __call__(self) -> None:
        """Orders what was written and read before against what comes after."""
        if self._word is not None:
            self._word.wake_all()
