"""`disagg ledger`: collectives and bytes of a step, its flags, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
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


def test_a_dense_model_has_no_experts_to_talk_to(capsys: pytest.CaptureFixture[str]) -> None:
    """Attention and feed-forward sums of 80 layers, rows in bfloat16 over a ring of eight."""
    dense = ["--model", "llama3-70b"]
    found = ledger(capsys, *dense, "--attn-tp", "8")
    assert (found["device_collectives"], found["wire"]) == (160, "bf16")
    assert found["bytes"] == 72 + 160 * 2 * (60 * 8192 * 2 * 7 // 8)
    assert main(["ledger", *dense]) == 0
    out = capsys.readouterr().out
    assert "bf16; dense, no experts to dispatch to" in out
    assert "none: one rank has nobody to talk to" in out


def test_an_invalid_layout_is_one_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ledger(capsys, *WIDE).keys()
    assert main(["ledger", "--json", "--dp", "3", "--ep", "4", "--min-redundant", "49"]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found.keys() == keys
    assert [error.split(":")[0] for error in found["errors"]] == ["V2", "SLOTS"]
    assert (found["lines"], found["bytes"], found["device_collectives"]) == ([], 0, 0)


@pytest.mark.parametrize(
    ("layout", "flags"),
    [
        ("dp=2,cp=2,ep=4", ["--dp", "2", "--cp", "2", "--ep", "4"]),
        ("dp=2,attn_tp=2,path=a", ["--dp", "2", "--attn-tp", "2", "--ep", "4", "--path", "a"]),
    ],
)
def test_a_settings_file_instead_of_flags(
    layout: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prefill.toml"
    # As a service reads it, with what is none of our business.
    group = f'group = {{name = "p", layout = "{layout}"}}'
    file.write_text(f"{group}\nfetch.max_bytes_prefetched = 4\n")
    phase = ["--phase", "prefill"]
    assert ledger(capsys, "--config", str(file), *phase) == ledger(capsys, *flags, *phase)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dp", "2", "--ep", "4"], "V2: ep 4 does not divide"),
        (["--cp", "2", "--attn-tp", "2"], "PATH: cp 2 and attn_tp 2 both decide which rows"),
        (["--cp", "2", "--path", "a"], "PATH: cp 2 and path a both decide which rows"),
        (["--model", "v4.1-flash", "--dp", "16", "--path", "a"], "MOE_TP: path a with ep 1 cuts"),
        (["--model", "llama3-70b", "--path", "a"], "EXPERTS: path a, but llama3-70b has 0"),
        (["--model", "llama3-70b", "--fused"], "--fused: llama3-70b has no routed experts"),
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
