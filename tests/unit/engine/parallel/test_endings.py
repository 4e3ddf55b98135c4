"""Endings: errors across processes by shared memory, what codes mean, processes by descriptor."""

import os
import signal
import subprocess
import sys

import pytest

from engine.parallel import endings
from engine.parallel.endings import ProcessHandle


@pytest.fixture
def words():
    descriptor = endings.create_last_words()
    yield descriptor
    os.close(descriptor)


def test_an_error_is_recorded_for_its_rank_and_goes_on(words):
    with pytest.raises(ValueError, match="too"), endings.recorded(words, 1):
        raise ValueError("too\nwide")
    with endings.recorded(words, 0):
        pass
    assert endings.last_words(words, 1) == "ValueError: too wide"
    assert endings.last_words(words, 0) == endings.last_words(words, 7) == ""


def test_an_exit_on_purpose_is_no_error(words):
    with pytest.raises(SystemExit), endings.recorded(words, 0):
        sys.exit(3)
    assert endings.last_words(words, 0) == ""


def test_long_errors_stay_within_their_place(words):
    for rank in (0, 1):
        with pytest.raises(ValueError, match="x"), endings.recorded(words, rank):
            raise ValueError("x" * 5000 + str(rank))
    assert endings.last_words(words, 0) == "ValueError: " + "x" * 1012
    # A character cut in two does not cost the rest.
    with pytest.raises(ValueError, match="\u00e9"), endings.recorded(words, 2):
        raise ValueError("\u00e9" * 1000)
    assert endings.last_words(words, 2).startswith("ValueError: \u00e9\u00e9")


def test_an_unwritable_place_does_not_hide_the_error():
    with pytest.raises(ValueError, match="mine"), endings.recorded(-1, 0):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("code", "server_ended", "kills", "text"),
    [
        (3, False, 0, "exited with 3"),
        (255, False, 0, "exited with 255"),
        (255, True, 0, "was lost: the fork server has ended and its exit status with it"),
        (-11, False, 2, "died of SIGSEGV"),
        (-9, False, 0, "died of SIGKILL"),
        (-9, False, 2, "died of SIGKILL (the kernel killed 2 processes for want of memory "),
        (255, True, 1, "its exit status with it (the kernel killed 1 processes for want of"),
    ],
)
def test_codes_are_put_into_words(code, server_ended, kills, text):
    found = endings.describe(code, server_ended=server_ended, memory_kills=kills)
    assert text in found
    assert ("want of memory" in found) is ("want of" in text)


def test_the_kernel_is_asked():
    assert endings.count_memory_kills() >= 0


@pytest.mark.medium
def test_a_process_is_followed_by_descriptor():
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    handle = ProcessHandle(process.pid)
    assert not handle.has_ended()
    handle.send(signal.SIGKILL)
    assert handle.has_ended(10.0)
    process.wait()
    handle.send(signal.SIGKILL)
    endings.close_all([handle, handle])
    assert handle.has_ended()


def test_a_process_that_is_gone_has_ended():
    gone = ProcessHandle(None)
    gone.send(signal.SIGTERM)
    assert gone.has_ended()
