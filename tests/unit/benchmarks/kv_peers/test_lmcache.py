"""What its benchmark command is told, and what is read from its result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.kv_peers.lmcache import measure

COMMAND = """#!{python}
import json, sys
arguments = sys.argv[1:]
assert arguments[:2] == ["bench", "l2"], arguments
given = dict(zip(arguments[2::2], arguments[3::2]))
assert json.loads(given["--l2-adapter"])["port"] == 1234
assert (given["--num-keys"], given["--data-size-kb"], given["--rounds"]) == ("8", "256", "3")
operation = {{"keys_per_round": 8, "operation": "Store", "duration_p50_ms": 2.097152}}
metrics = {{
    "config": {{}},
    "op_0": operation,
    "op_1": {{**operation, "operation": "Load", "duration_p50_ms": 1.048576}},
}}
open(given["--output"], "w").write(json.dumps({{"metrics": metrics}}))
"""


def test_rates_are_read_from_its_result(tmp_path: Path) -> None:
    command = tmp_path / "lmcache"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    put, get = measure(str(tmp_path / "python"), 1234, 256 << 10, 2 << 20, 3)
    assert (put, get) == (pytest.approx(1.0), pytest.approx(2.0))


def test_a_command_that_fails_says_so(tmp_path: Path) -> None:
    command = tmp_path / "lmcache"
    command.write_text("#!/bin/sh\necho no such adapter >&2\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(RuntimeError, match="no such adapter"):
        measure(str(tmp_path / "python"), 1, 1024, 1024, 1)
