"""`disagg config`: values, origins, schema, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main


def test_one_role_with_origins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "disagg.toml"
    file.write_text(
        '[limits]\nfirst_token_s = 7.0\n[group]\nranks = 3\n[store]\nurl = "redis://:pw@h:1"\n'
    )
    monkeypatch.setenv("DISAGG_LOG__LEVEL", "debug")
    assert main(["config", "--role", "balancer", "--config", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["balancer"]
    assert rows["limits.first_token_s"] == {"value": "7.0", "origin": f"file {file}"}
    assert rows["log.level"] == {"value": "debug", "origin": "environment DISAGG_LOG__LEVEL"}
    assert rows["limits.suspect_s"]["origin"] == "default"
    assert rows["store.url"]["value"] == "redis://:***@h:1"  # the password stays out
    assert "group.ranks" not in rows  # a section of other roles is no mistake


def test_all_roles_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert {"balancer", "prefill", "decode"} <= set(out.splitlines())
    [store, *_] = [line for line in out.splitlines() if line.strip().startswith("store.url")]
    assert "required: --store" in store
    assert "not-given" not in out


def test_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--role", "decode", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "DecodeSettings"
    assert main(["config", "--schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"balancer", "prefill", "decode"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[limits]\nfirst_tokens_s = 1\n", "did you mean limits.first_token_s?"),
        ("[limits]\nfirst_token_s = -1\n", "limits.first_token_s = -1"),
        ("nonsense", "not valid"),
    ],
)
def test_settings_that_cannot_work_exit_2(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "disagg.toml"
    file.write_text(content)
    assert main(["config", "--role", "balancer", "--config", str(file)]) == 2
    assert message in capsys.readouterr().err
