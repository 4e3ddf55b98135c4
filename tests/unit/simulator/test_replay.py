"""A recorded run, decided again one by one; and recordings that were damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.routing.policies import POLICIES
from simulator.replay import RecordingError, replay_file
from simulator.study import make_study, run_policy
from simulator.topology import parse_topology
from simulator.traces.formats import read_trace
from simulator.traces.trace import Trace

DATA = Path(__file__).parents[2] / "data"
HEAD = Trace(
    name="head",
    requests=read_trace(DATA / "mooncake_conversation_head.jsonl").requests[:150],
)
SMALL = parse_topology({"decode": {"ranks": 8}})


def record(path: Path, policy: str, load: float = 6.0) -> None:
    with path.open("w") as file:
        study = make_study(HEAD, SMALL, load=load)
        run_policy(study, policy, journal=lambda line: file.write(line + "\n") and None)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    record(path, "deepseek")
    return path


@pytest.fixture
def changed(recording: Path, tmp_path: Path) -> Callable[[Callable[[list[str]], None]], Path]:
    def change(edit: Callable[[list[str]], None]) -> Path:
        lines = recording.read_text().splitlines(keepends=True)
        edit(lines)
        path = tmp_path / "changed.jsonl"
        path.write_text("".join(lines))
        return path

    return change


@pytest.mark.medium
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_decides_the_same_again(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, policy)
    found = replay_file(path)
    assert found.decisions >= 150
    assert (found.equal, found.first_difference) == (found.decisions, "")


@pytest.mark.medium
def test_a_decision_that_was_another_is_found(
    changed: Callable[[Callable[[list[str]], None]], Path],
) -> None:
    def edit(lines: list[str]) -> None:
        place = next(n for n, line in enumerate(lines) if '"call": "place"' in line)
        entry = json.loads(lines[place])
        entry["outcome"]["prefill_id"] = "prefill-99"
        lines[place] = json.dumps(entry) + "\n"

    found = replay_file(changed(edit))
    assert found.equal == found.decisions - 1
    assert "prefill-99" in found.first_difference
    assert " became place prefill-0" in found.first_difference


@pytest.mark.medium
def test_an_input_that_is_missing_changes_decisions(
    changed: Callable[[Callable[[list[str]], None]], Path],
) -> None:
    def edit(lines: list[str]) -> None:
        lines[:] = [line for line in lines if '"call": "assign"' not in line]

    found = replay_file(changed(edit))
    assert found.equal < found.decisions


@pytest.mark.medium
def test_damage_is_named_with_its_line(
    changed: Callable[[Callable[[list[str]], None]], Path], tmp_path: Path
) -> None:
    def cut(lines: list[str]) -> None:
        lines[4] = lines[4][:20] + "\n"

    with pytest.raises(RecordingError, match="line 5"):
        replay_file(changed(cut))
    with pytest.raises(RecordingError, match="cannot be read"):
        replay_file(tmp_path / "none")


@pytest.mark.medium
def test_a_recording_that_was_stopped_in_a_line_is_replayed_up_to_it(
    changed: Callable[[Callable[[list[str]], None]], Path],
) -> None:
    def stop(lines: list[str]) -> None:
        lines[-1] = lines[-1][:10]

    found = replay_file(changed(stop))
    assert found.equal == found.decisions


def test_files_that_are_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content, message in (
        (b"", "holds no decision"),
        (b"\xff\xff\n", "is no text"),
        (b"{}\n", "line 1"),
        (b"[]\n", "line 1"),
    ):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match=message):
            replay_file(path)
