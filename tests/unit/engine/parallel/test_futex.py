"""Sleeping and waking on a shared word."""

import mmap
import threading

import pytest

from engine.parallel import futex
from engine.parallel.futex import Fence, FutexWord

pytestmark = pytest.mark.skipif(not futex.is_available(), reason="needs Linux futexes")


@pytest.fixture
def memory():
    return memoryview(mmap.mmap(-1, 4096))


def test_a_word_is_shared_between_its_mappings(memory):
    one, other = FutexWord(memory, 64), FutexWord(memory, 64)
    one.store(7)
    assert other.load() == 7
    assert FutexWord(memory, 0).load() == 0


def test_wait_returns_at_once_when_the_word_has_changed(memory):
    word = FutexWord(memory, 0)
    word.store(1)
    assert word.wait(0, 30.0)


def test_wait_ends_with_its_time(memory):
    assert not FutexWord(memory, 0).wait(0, 0.01)


def test_a_sleeper_is_woken(memory):
    sleeper, waker = FutexWord(memory, 0), FutexWord(memory, 0)
    outcomes = []

    def sleep():
        while sleeper.load() == 0:
            outcomes.append(sleeper.wait(0, 20.0))

    thread = threading.Thread(target=sleep)
    thread.start()
    waker.store(5)
    waker.wake_all()
    thread.join(10.0)

    assert not thread.is_alive()
    assert all(outcomes)


def test_waking_nobody_is_harmless(memory):
    word = FutexWord(memory, 0)
    word.wake_all()
    word.wake_all()
    assert word.load() == 0


def test_a_fence_acts_only_where_it_is_needed(monkeypatch):
    Fence()()
    monkeypatch.setattr(futex, "needs_fence", lambda: True)
    fence = Fence()
    fence()
    assert fence._word is not None
    assert fence._word.load() == 0


def test_other_machines_are_told_what_to_use(monkeypatch, memory):
    monkeypatch.setattr(futex.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64; use backend='gloo'"):
        FutexWord(memory, 0)


def test_a_closed_word_lets_its_memory_go():
    region = mmap.mmap(-1, 4096)
    view = memoryview(region)
    word = FutexWord(view, 0)
    word.close()
    view.release()
    region.close()
    assert region.closed
