"""Where commands find the system of `up`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local import rendezvous


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "disagg-0"
    monkeypatch.setattr(rendezvous, "_directory", lambda: directory)
    return directory


def test_an_address_is_found_while_its_system_runs(place: Path) -> None:
    assert rendezvous.find() is None
    with rendezvous.announced("h:1"):
        assert rendezvous.find() == "h:1"
        assert rendezvous.find() == "h:1"
        assert place.stat().st_mode & 0o077 == 0
    assert rendezvous.find() is None
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("what", ["open", "file", "link"])
def test_a_directory_that_others_can_write_to_is_not_used(
    what: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rendezvous.announced("evil:1"):
        if what == "open":
            place.chmod(0o777)
        else:
            other = place.rename(place.with_name("other"))
            place.symlink_to(other) if what == "link" else place.touch()
        assert rendezvous.find() is None
        with rendezvous.announced("h:1"):
            assert rendezvous.find() is None
    assert f"{place} is not this user's alone" in capsys.readouterr().err


def test_of_several_systems_none_is_guessed() -> None:
    with rendezvous.announced("h:1"):
        with (
            rendezvous.announced("h:2"),
            pytest.raises(CommandError, match=r"2 systems run .* h:2, h:1; .*--address") as raised,
        ):
            rendezvous.find()
        assert raised.value.exit_code == 2
        assert rendezvous.find() == "h:1"


def test_an_earlier_end_leaves_a_later_system_alone() -> None:
    first, second = rendezvous.announced("h:1"), rendezvous.announced("h:2")
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert rendezvous.find() == "h:2"


@pytest.mark.medium
def test_a_killed_system_is_not_found_and_its_file_goes(place: Path) -> None:
    program = (
        "import pathlib, sys; from cli.local import rendezvous;"
        f"rendezvous._directory = lambda: pathlib.Path({str(place)!r});"
        "context = rendezvous.announced('h:1'); context.__enter__();"
        "print('up', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[4]
    paths = [str(root), str(root / "proto")]
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert rendezvous.find() == "h:1"
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert rendezvous.find() is None
    assert list(place.iterdir()) == []


def test_what_is_not_a_record_is_passed_over(place: Path) -> None:
    place.mkdir()
    (place / "up-1.json").mkdir()
    (place / "other.json").write_text("nonsense")
    with rendezvous.announced("h:1"):
        assert rendezvous.find() == "h:1"
