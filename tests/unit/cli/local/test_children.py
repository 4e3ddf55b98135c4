"""Child processes: output to files, ends reported, nothing survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local.children import Child

pytestmark = pytest.mark.medium


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Child:
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Child("part", ["program"], tmp_path)


def test_output_goes_to_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = child(tmp_path, monkeypatch, "import sys; print('ready'); sys.stderr.write('log')")
    assert part.wait(20)
    assert part.out.read_text() == "ready\n"
    assert part.log.read_text() == "log"
    assert part.exit_code == 0


@pytest.mark.parametrize(("code", "exit_code"), [(2, 2), (3, 3), (4, 4), (1, 1), (0, 1)])
def test_an_early_end_is_an_error_with_the_log(
    code: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import sys; sys.stderr.write('the reason\\n'); sys.exit({code})"
    part = child(tmp_path, monkeypatch, program)
    assert part.wait(20)
    with pytest.raises(CommandError, match=f"part ended with exit code {code}") as caught:
        part.check()
    assert caught.value.exit_code == exit_code
    assert "| the reason" in str(caught.value)
    assert str(part.log) in str(caught.value)


def test_the_word_of_the_supervisor_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {"event": "rank.serving", "level": "info", "rank": "0"},
        {"event": "the step loop died", "level": "error", "rank": "0"},
        {"event": "group g: rank 1 died of SIGKILL; stopping the group", "level": "error"},
    ]
    lines = "\n".join(["no record", *map(json.dumps, records), *["  traceback"] * 20, ""])
    part = child(tmp_path, monkeypatch, f"import sys; sys.stderr.write({lines!r}); sys.exit(1)")
    assert part.wait(20)
    with pytest.raises(CommandError) as caught:
        part.check()
    assert str(caught.value) == (
        "part ended with exit code 1: group g: rank 1 died of SIGKILL; stopping the group; "
        f"its log is {part.log}"
    )
    assert caught.value.exit_code == 1


def test_a_killed_child_is_told_by_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = child(tmp_path, monkeypatch, "import threading; threading.Event().wait()")
    part.check()
    assert not part.wait(0.05)
    part.kill()
    part.kill()
    with pytest.raises(CommandError, match="signal SIGKILL") as caught:
        part.check()
    assert caught.value.exit_code == 1
    assert "(it wrote nothing)" in part.tail()


def test_a_polite_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = child(tmp_path, monkeypatch, "import threading; threading.Event().wait()")
    part.ask_to_stop()
    assert part.wait(20)
    assert part.exit_code == -signal.SIGTERM
    part.ask_to_stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_child_ends_with_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import threading; threading.Event().wait()")
    launcher = (
        "import os, pathlib, sys; from cli.local.children import Child;"
        f"part = Child('part', ['program'], pathlib.Path({str(tmp_path)!r}));"
        "print(part.pid, flush=True); sys.stdin.read(); os._exit(9)"
    )
    root = Path(__file__).parents[4]
    paths = [str(tmp_path), str(root), str(root / "proto")]
    process = subprocess.Popen(
        [sys.executable, "-c", launcher],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    pid = int(process.stdout.readline())
    status = Path(f"/proc/{pid}/status")
    assert status.exists()
    process.stdin.close()  # the launcher leaves without a word to its child
    process.wait(20)
    process.stdout.close()
    for _ in range(400):
        # An orphan may stay a zombie where nobody reaps it.
        if not status.exists() or "State:\tZ" in status.read_text():
            break
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "1"], timeout=0.02, check=False)
    else:
        pytest.fail("the child survived its launcher")
