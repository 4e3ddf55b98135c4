"""SIGTERM and SIGINT while a command runs: both are Ctrl-C.

Whatever a command started is ended on the way out of its `with` blocks, so a signal has to become
an exception; by default SIGTERM would end this process and leave directories and children behind.
SIGINT too: a shell starts background jobs with it ignored, and Python keeps that.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_received = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt in the body on either signal; on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone, which has its own way with them
        return
    _received.clear()
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _as_interrupt),
        signal.SIGINT: signal.signal(signal.SIGINT, _interrupt),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def check() -> None:
    """Raises KeyboardInterrupt if a signal came; for loops that wait.

    An exception that a handler raises is lost if it strikes inside a callback of a C extension.
    """
    if _received.is_set():
        raise KeyboardInterrupt


def forget() -> None:
    """The interrupt was dealt with: `check` is silent again."""
    _received.clear()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` that cancels its task on either signal, where the command is interruptible."""
    if signal.getsignal(signal.SIGINT) is not _interrupt:
        return asyncio.run(main)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which asyncio replaces by its own
    try:
        return asyncio.run(main)
    finally:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.set()
    signal.default_int_handler(number, frame)


def _as_interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal wants
    _received.set()
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
