"""`disagg ledger`: collectives and bytes of a step, its flags, its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.main import main
from tests.fakes.vectors import vectors

V41 = ["--model", "v4.1-flash"]
WIDE = [*V41, "--dp", "64", "--ep", "64"]
CONTEXT = [*V41, "--dp", "4", "--cp", "2", "--ep", "8", "--phase", "prefill"]
SPLIT = [*V41, "--dp", "4", "--attn-tp", "2", "--ep", "8"]
VECTORS = vectors("ledger")


def ledger(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["ledger", "--json", *flags]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert sum(entry["bytes"] for entry in found["lines"]) == found["bytes"]
    return found


@pytest.mark.parametrize(
    ("vector", "flags"),
    [
        ("decode two-phase", WIDE),
        ("decode fused", [*WIDE, "--fused"]),
        ("decode ep 1", [*V41, "--dp", "8"]),
        ("prefill two-phase cp 1", [*V41, "--dp", "8", "--ep", "8", "--phase", "prefill"]),
        ("prefill two-phase cp > 1", CONTEXT),
        ("SGLang attn_tp 1, A2A", [*V41, "--dp", "8", "--ep", "8"]),
        ("path B", SPLIT),
        ("path A attn_tp 1", [*V41, "--dp", "8", "--path", "a"]),
        ("path A attn_tp > 1, equal-padded, RS out", [*SPLIT, "--path", "a"]),
        ("path A attn_tp > 1, sum-padded", [*SPLIT, "--path", "a", "--phase", "prefill"]),
    ],
)
def test_counts_vector(vector: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = ledger(capsys, *flags)
    assert found["device_collectives"] == VECTORS[vector]["expected"]["device_collectives"]
    assert found["host_agreements"] == 1
    assert found["one_sided"] == 2


def test_a_fused_step_has_kernels_instead(capsys: pytest.CaptureFixture[str]) -> None:
    found = ledger(capsys, *WIDE, "--fused")
    assert (found["fused_kernels"], found["device_collectives"]) == (40, 0)


def test_bytes_vector(capsys: pytest.CaptureFixture[str]) -> None:
    expected = VECTORS["bytes per token and layer"]["expected"]
    found = ledger(capsys, *WIDE, "--tokens", "60")
    by_name = {entry["operation"]: entry for entry in found["lines"]}
    assert by_name["dispatch"]["bytes"] == expected["dispatch_step"]
    assert by_name["combine"]["bytes"] == expected["combine_step"]
    assert by_name["dispatch"]["count"] == by_name["combine"]["count"] == 40
    assert (found["phase"], found["path"], found["tokens"]) == ("decode", "direct", 60)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--dp", "2", "--ep", "2", "--tokens", "4"]) == 0
    out = capsys.readouterr().out
    # Six layers of the bundled model: 4 rows, 2 choices, 128 float32 numbers, weight and slot.
    assert "models/tiny-v4: one decode step, 4 rows an engine, float32" in out
    assert f"{6 * 4 * 2 * 520 / 1000:.1f} KB" in out
    assert "12 device collectives" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dp", "2", "--ep", "4"], "V2: ep 4 does not divide"),
        (["--cp", "0"], "SIZE: cp is 0"),
        (["--tokens", "-1"], "--tokens -1: give 0 or more"),
        (["--path", "b"], "--path b with --attn-tp 1"),
        (["--path", "a", "--fused"], "--fused with --path a"),
        (["--model", "v9"], "nor one of"),
    ],
)
def test_what_cannot_be_exits_2(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
