"""Where `generate` finds the system of `up`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.local import rendezvous


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "disagg-0" / "up.json"
    monkeypatch.setattr(rendezvous, "_path", lambda: path)
    return path


def test_an_address_is_found_while_its_system_runs(place: Path) -> None:
    assert rendezvous.find() is None
    with rendezvous.announced("h:1"):
        assert rendezvous.find() == "h:1"
        assert place.parent.stat().st_mode & 0o077 == 0
    assert rendezvous.find() is None


def test_the_last_system_is_found_and_not_removed_by_an_earlier_one() -> None:
    with rendezvous.announced("h:1"):
        with rendezvous.announced("h:2"):
            assert rendezvous.find() == "h:2"
        assert rendezvous.find() is None


def test_an_earlier_end_leaves_a_later_system_alone(place: Path) -> None:
    with rendezvous.announced("h:1"):
        later = f'{{"address": "h:2", "pid": {os.getpid()}}}'
        place.write_text(later)
    assert rendezvous.find() == "h:2"


def test_a_killed_system_is_not_found(place: Path) -> None:
    place.parent.mkdir()
    place.write_text('{"address": "h:1", "pid": 4194303}')
    assert rendezvous.find() is None
    place.write_text("nonsense")
    assert rendezvous.find() is None
