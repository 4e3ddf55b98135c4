"""The commands of the README as their user runs them: whole systems, bundled models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


@pytest.mark.parametrize("layout", LAYOUTS)
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


@pytest.mark.parametrize("layout", ["monolith", "2+4"])
@pytest.mark.parametrize("model", ["v4_base", "v4_hca8", "v4_quant"])
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


def test_a_model_that_cannot_be_loaded_is_named_by_the_part_that_failed(tmp_path: Path) -> None:
    for path in TINY.parent.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    done = disagg("demo", "--model", str(tmp_path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "model.safetensors" in done.stderr
    assert "ended with exit code 2" in done.stderr
