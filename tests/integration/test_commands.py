"""The commands of the README as their user runs them: whole systems, bundled models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.processes import ROOT

pytestmark = [pytest.mark.medium, pytest.mark.timeout(300)]

TINY = ROOT / "models" / "tiny-v4" / "golden.json"
SMALL = ROOT / "tests" / "golden" / "data"
LAYOUTS = {
    "monolith": ["--monolith"],
    "1+1": ["--prefill-ranks", "1", "--decode-ranks", "1"],
    "2+4": ["--prefill-layout", "dp=2,ep=2", "--decode-layout", "dp=4,ep=4"],
    "2+8": ["--prefill-ranks", "2", "--decode-ranks", "8"],
}
# Eight ranks on two cores take most of a minute; four show the same.
SLOW = {"2+8"}


def disagg(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in the repository, as after an installation."""
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LAYOUTS]
)
def test_every_golden_token_of_the_bundled_model(layout: str) -> None:
    done = disagg("verify", str(TINY), "--json", *LAYOUTS[layout])
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "prompts": 20,
        "prompts_equal": 20,
        "tokens": 1280,
        "tokens_equal": 1280,
        "first_difference": None,
    }
    assert "attempt" not in done.stderr  # nothing had to be repeated


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *((model, "monolith") for model in ("v4_base", "v4_hca8", "v4_quant")),
        # Quantised KV is what a hand-off could spoil; the others do the same with plain floats.
        ("v4_quant", "2+4"),
        *(pytest.param(name, "2+4", marks=pytest.mark.slow) for name in ("v4_base", "v4_hca8")),
    ],
)
def test_every_golden_token_of_the_small_checkpoints(model: str, layout: str) -> None:
    done = disagg("verify", str(SMALL / model / "golden.json"), *LAYOUTS[layout])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "prompts 17/17 equal, tokens 272/272 equal\n"


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    done = disagg("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo ok: 64 tokens"
    assert "answer    PROSPERO." in done.stdout
    logs = [line for line in done.stderr.splitlines() if "disagg-run-" in line]
    assert logs == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [["demo"], ["verify", str(TINY)]])
def test_a_signal_leaves_no_directory_and_no_process(
    command: list[str], number: int, tmp_path: Path
) -> None:
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path)},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell starts a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("  balancer"):  # now the members are starting
            members = processes_of(tmp_path)
            process.send_signal(number)
            break
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1, said
    assert rest.endswith(f"disagg {command[0]}: interrupted\n")
    assert members
    for _ in range(200):  # helpers of Python's process pools see the end of a pipe a moment later
        if not processes_of(tmp_path):
            break
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "1"], timeout=0.05, check=False)
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("disagg-*")) == []


def processes_of(directory: Path) -> list[str]:
    """Processes whose environment says that they keep their files in `directory`."""
    wanted = f"TMPDIR={directory}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended, or is another user's
            if wanted in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def test_a_model_that_cannot_be_loaded_is_named_by_the_part_that_failed(tmp_path: Path) -> None:
    for path in TINY.parent.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    done = disagg("demo", "--model", str(tmp_path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "model.safetensors" in done.stderr
    assert "ended with exit code 2" in done.stderr


@pytest.mark.parametrize("module", ["balancer", "prefill_service", "decode_service", "kvstore"])
def test_the_help_of_a_service_ends_with_an_example(module: str, tmp_path: Path) -> None:
    paths = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"example: python -m {module} --" in " ".join(done.stdout.split())
