"""`disagg topology`: its JSON by the layout vectors, its text, its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.main import main
from tests.fakes.vectors import vectors

GROUPS = vectors("groups")
del GROUPS["T-G11"]  # store ranks have no flag
EXPERTS = vectors("experts")


def topology(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["topology", "--json", *flags])
    [line] = capsys.readouterr().out.splitlines()
    return code, json.loads(line)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_vector(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, expected = GROUPS[name]["inputs"], GROUPS[name]["expected"]
    flags = [text for axis, size in inputs.items() for text in (f"--{axis}", str(size))]

    code, found = topology(capsys, "--model", "v4.1-flash", *flags)

    assert code == (0 if expected["valid"] else 2)
    assert [error.split(":")[0] for error in found["errors"]] == expected["violated"]
    assert found["world_size"] == expected["world_size"]
    if "groups" in expected:
        tensor = found["groups"].pop("attn_tp")
        assert found["groups"] == expected["groups"]
        assert tensor == [[rank] for rank in range(found["world_size"])]
    else:
        assert set(map(str, found["groups"].values())) == {"[]"}


@pytest.mark.parametrize("name", ["T-E1/ep8", "T-E2/ep8", "T-E2/ep64", "T-E4/ep72", "T-E5/ep144"])
def test_experts_vector(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, expected = EXPERTS[name]["inputs"], EXPERTS[name]["expected"]
    ep = str(inputs["ep"])
    flags = ["--dp", ep, "--ep", ep, "--min-redundant", str(inputs["min_redundant"])]

    code, found = topology(capsys, "--model", "v4.1-flash", *flags)

    assert code == 0
    assert found["experts"] == {
        "logical": inputs["logical"],
        "extra": expected["extra"],
        "physical": expected["physical"],
        "local": expected["local"],
        "bytes_per_layer_per_rank": expected["bytes_per_layer_per_rank"],
    }


def test_keys_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = topology(capsys, "--model", "v4.1-flash", "--ep", "8")
    assert code == 0
    assert {
        "world_size",
        "groups",
        "experts",
        "lockstep_block",
        "kv_bytes_per_token",
        "memory_per_rank_bytes",
        "errors",
    } <= found.keys()
    assert found["groups"].keys() == {"dp", "cp", "ep", "enp", "attn_tp"}
    # One redundant expert at least, and dp from ep.
    assert found["experts"]["extra"] == 8
    assert found["world_size"] == found["lockstep_block"] == 8
    assert found["kv_bytes_per_token"] == 890
    assert found["memory_per_rank_bytes"] == sum(found["fit"]["weights"].values())
    assert found["fit"]["gpu"] == "h200"
    assert found["fit"]["binds"] == "kv"


@pytest.mark.parametrize(
    ("name", "kv", "experts"),
    [("v4-flash", 3850, 256), ("v4-pro", 5511, 384), ("llama3-70b", 327_680, 0)],
)
def test_named_models(name: str, kv: int, experts: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = topology(capsys, "--model", name)
    assert code == 0
    assert found["kv_bytes_per_token"] == kv
    assert found["experts"]["logical"] == experts
    # One GPU holds none of them: memory is told, it does not make a layout invalid.
    assert found["fit"]["fits"] is False


def test_attention_tp(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "v4.1-flash", "--dp", "4", "--ep", "8", "--attn-tp", "2"]
    code, found = topology(capsys, *flags)
    assert code == 0
    assert found["groups"]["attn_tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found["groups"]["dp"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    code, found = topology(capsys, "--model", "v4.1-flash", "--attn-tp", "3")
    assert code == 2
    assert found["errors"][0].startswith("HEADS: attn_tp 3 does not divide both the 64 heads")


@pytest.mark.parametrize(
    ("flags", "errors"),
    [
        (["--cp", "0", "--ep", "-1"], ["SIZE: cp is 0", "SIZE: ep is -1"]),
        (["--min-redundant", "-1"], ["SIZE: min_redundant is -1"]),
        (["--dp", "3", "--ep", "4", "--enp", "4"], ["V1: enp 4", "V2: ep 4"]),
        (
            ["--dp", "2", "--cp", "2", "--attn-tp", "2", "--ep", "8"],
            ["PATH: cp 2 and attn_tp 2 both decide which rows a rank sends to the experts: set cp"],
        ),
        (
            ["--dp", "2", "--ep", "2", "--min-redundant", "17"],
            ["SLOTS: min_redundant 17 is more than the 16 with which each of the 16 experts is on"],
        ),
        (["--cp", "16"], ["V5: cp 16 is more than the 8 ranks of a node"]),
        (["--model", "llama3-70b", "--ep", "2"], ["EXPERTS: ep 2, but llama3-70b has 0"]),
    ],
)
def test_an_invalid_layout_exits_2_with_all_errors(
    flags: list[str], errors: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = topology(capsys, *flags)
    assert code == 2
    assert len(found["errors"]) == len(errors)
    for text, start in zip(found["errors"], errors, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "v9"], ("--model v9", "nor one of", "v4.1-flash")),
        (["--gpu", "abacus"], ("--gpu abacus", "known:", "h200")),
    ],
)
def test_unknown_names_exit_2(
    flags: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in words)


def test_text_of_a_layout_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--model", "v4.1-flash", "--dp", "8", "--ep", "8"]) == 0
    out = capsys.readouterr().out
    for words in (
        "v4.1-flash: dp 8, cp 1, ep 8, enp 8, attn_tp 1",
        "384 + 8 redundant = 392 slots, 49 a rank; 867.0 MB",
        "ep groups       {0..7}",
        "{0} {1} {2} {3} and 4 more",
        "890 B a token",
        "KV binds",
    ):
        assert words in out


def test_text_of_a_dense_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--model", "llama3-70b", "--attn-tp", "8"]) == 0
    out = capsys.readouterr().out
    assert "experts         none: every layer is dense" in out
    assert "KV              327,680 B a token\n" in out


def test_text_of_strided_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--model", "v4.1-flash", "--dp", "8", "--cp", "2", "--ep", "16"]) == 0
    assert "dp groups       {0,2..14} {1,3..15}" in capsys.readouterr().out


def test_text_of_a_layout_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--model", "v4-pro", "--dp", "2", "--ep", "2"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "experts bind" in out


def test_text_of_an_invalid_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--dp", "2", "--ep", "4"]) == 2
    assert "V2: ep 4 does not divide dp * cp" in capsys.readouterr().out
