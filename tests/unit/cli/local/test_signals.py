"""Signals end a command like Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress

import pytest

from cli.local import signals
from cli.local.signals import interruptible


def receive(number: int) -> None:
    os.kill(os.getpid(), number)
    threading.Event().wait(5)  # Python runs a handler between two instructions, not within kill


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_is_an_interrupt(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        receive(number)
    assert signal.getsignal(number) is before


def test_an_ignored_interrupt_is_heard_again() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            receive(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lost_interrupt_is_noticed_later() -> None:
    with interruptible():
        signals.check()
        with suppress(KeyboardInterrupt):  # as a callback in C would lose it
            receive(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signals.check()
        signals.forget()
        signals.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_coroutine_is_cancelled(number: int) -> None:
    ended = []

    async def wait() -> None:
        try:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
            await asyncio.sleep(5)
        finally:
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt), interruptible():
        signals.run(wait())
    assert ended == ["in order"]


def test_a_coroutine_of_a_plain_process() -> None:
    async def answer() -> int:
        return 7

    assert signals.run(answer()) == 7


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def body() -> None:
        with interruptible():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
