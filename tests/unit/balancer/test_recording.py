"""A recording on its way to a file: complete, or honest about what is missing."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from balancer.explain.journal import JournalError, recorded_router, replay
from balancer.membership.members import Role
from balancer.recording import Recording, RecordingError, recording
from balancer.routing.base import PlacementRequest
from balancer.routing.options import RoutingOptions
from tests.fakes.memberships import member


class SlowFile(io.StringIO):
    """Takes its first line only when it may; fails if told so."""

    def __init__(self, error: OSError | None = None) -> None:
        super().__init__()
        self.error = error
        self.may_write = threading.Event()
        self.is_busy = threading.Event()

    def write(self, text: str) -> int:
        self.is_busy.set()
        self.may_write.wait(5)
        if self.error is not None:
            raise self.error
        return super().write(text)


def drive(write) -> None:
    members, router = recorded_router(
        write,
        policy="deepseek",
        options=RoutingOptions(),
        stale_after_s=5.0,
        forget_after_s=60.0,
        records=10,
    )
    for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)):
        members.observe(member(name, role), 1.0)
    for number in range(20):
        request = PlacementRequest(
            request_id=f"r{number}", attempt=1, num_tokens=100, max_new_tokens=5, arrived_at=1.0
        )
        placement = router.place(request, 1.0 + number / 10).placement
        members.assign(placement.decode_id, request.request_id, 105, now=1.0)


def test_what_is_recorded_is_decided_again(tmp_path: Path) -> None:
    path, drops = tmp_path / "run.jsonl", []
    with recording(path, max_bytes=1 << 20, on_drop=lambda: drops.append(1)) as write:
        drive(write)
    found = list(replay(path.read_text().splitlines()))
    assert len(found) == 20
    assert all(item.is_equal for item in found)
    assert drops == []


def test_a_file_that_is_full_says_what_is_missing(tmp_path: Path) -> None:
    path, drops = tmp_path / "run.jsonl", []
    with recording(path, max_bytes=8000, on_drop=lambda: drops.append(1)) as write:
        drive(write)
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1]) == {"call": "gap", "lines": len(drops)}
    with pytest.raises(JournalError, match=f"{len(drops)} lines were dropped here"):
        list(replay(lines))
    assert path.stat().st_size < 8100


def test_a_disk_that_is_too_slow_leaves_a_gap_in_its_place() -> None:
    file, drops = SlowFile(), []
    made = Recording(file, max_bytes=1000, on_drop=lambda: drops.append(1), max_lines=2)
    made.start()
    made.write("0")
    assert file.is_busy.wait(5)
    for number in range(1, 6):
        made.write(str(number))
    assert len(drops) == 3
    file.may_write.set()
    made.stop()
    assert file.getvalue() == '0\n1\n2\n{"call": "gap", "lines": 3}\n'


def test_a_disk_that_fails_ends_the_recording_and_nothing_else() -> None:
    file, drops = SlowFile(OSError(28, "No space left on device")), []
    file.may_write.set()
    made = Recording(file, max_bytes=1000, on_drop=lambda: drops.append(1))
    made.start()
    made.write("0")
    made.stop()
    made.write("1")
    assert (file.getvalue(), len(drops)) == ("", 1)


def test_an_old_recording_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("old")
    for wrong, message in ((path, "exists already; name a new file"), (path / "x", "be written")):
        with (
            pytest.raises(RecordingError, match=message),
            recording(wrong, max_bytes=1, on_drop=lambda: None),
        ):
            pytest.fail("it was not made")
    assert path.read_text() == "old"
