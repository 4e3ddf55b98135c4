"""SIGTERM and SIGINT while a command runs: both are Ctrl-C.

Whatever a command started is ended on the way out of its `with` blocks, so a signal has to become
an exception; by default SIGTERM would end this process and leave directories and children behind.
SIGINT too: a shell starts background jobs with it ignored, and Python keeps that.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt in the body on either signal; on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone, which has its own way with them
        return
    # Python's own handler, which asyncio knows and makes way for.
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
