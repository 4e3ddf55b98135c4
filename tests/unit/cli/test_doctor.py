"""`disagg doctor`: each check finds what is wrong and says what to do."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import redis

import cli
from cli import doctor
from cli.main import main
from kvstore import embedded

MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(MODEL, directory)
    return directory


@pytest.mark.medium
def test_a_good_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", str(MODEL), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"]
    checks = {check["check"]: check["detail"] for check in result["checks"]}
    assert "private server" in checks["store"]
    assert "deepseek_v4" in checks["model config"]
    assert checks["model tokenizer"] == "2048 tokens"
    assert "model.safetensors" in checks["model weights"]
    assert "every tensor is there" in checks["model tensors"]


@pytest.mark.medium
def test_a_store_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--model", str(MODEL), "--store", "redis://127.0.0.1:1"])
    assert code == 1
    out = capsys.readouterr().out
    assert "FAIL  store" in out
    assert "start the server, or correct --store" in out


@pytest.mark.medium
def test_a_store_that_answers_and_is_unfit(capsys: pytest.CaptureFixture[str]) -> None:
    with embedded.start(max_memory_bytes=32 << 20) as server:
        [finding] = doctor.check_store(server.url)
        assert finding.ok
        with redis.Redis(unix_socket_path=server.url.removeprefix("unix://")) as client:
            client.config_set("maxmemory-policy", "volatile-ttl")
        findings = list(doctor.check_store(server.url))
    assert [finding.ok for finding in findings] == [True, False]
    assert "volatile-ttl" in findings[1].detail
    assert "volatile-lru" in findings[1].way_out


def test_a_bad_store_url() -> None:
    [finding] = doctor.check_store("gopher://x")
    assert not finding.ok
    assert "gopher" in finding.detail


def test_a_truncated_checkpoint(model: Path) -> None:
    weights = model / "model.safetensors"
    with weights.open("rb+") as file:
        file.truncate(weights.stat().st_size - 1)
    bad = [finding for finding in doctor.check_model(model) if not finding.ok]
    assert [finding.check for finding in bad] == ["model weights"]
    assert "its header describes" in bad[0].detail


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_file_that_is_no_checkpoint(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    assert [f.check for f in doctor.check_model(model) if not f.ok] == ["model weights"]


def test_missing_model_files(model: Path, tmp_path: Path) -> None:
    [finding] = doctor.check_model(tmp_path / "nowhere")
    assert not finding.ok
    assert "--model" in finding.way_out
    (model / "model.safetensors").unlink()
    (model / "tokenizer.json").write_text("{")
    failed = [finding.check for finding in doctor.check_model(model) if not finding.ok]
    assert failed == ["model weights", "model tokenizer"]


def damage(model: Path, **values: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("values", "check", "message"),
    [
        ({"num_attention_heads": 7}, "model config", "num_attention_heads is 7"),
        ({"model_type": "llama"}, "model config", "model_type 'llama' is not served"),
        (
            {"n_routed_experts": 5},
            "model tensors",
            "gate.tid2eid has values from 0 to 15, config.json calls for 0 to 4",
        ),
    ],
)
def test_a_model_that_no_service_would_start_with(
    model: Path,
    values: dict[str, object],
    check: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "check_store", lambda url: iter(()))
    damage(model, **values)
    assert main(["doctor", "--model", str(model)]) == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if "FAIL" in line]
    assert check in line
    assert message in line


def test_a_config_that_is_no_object(model: Path) -> None:
    (model / "config.json").write_text("[]")
    failed = [finding for finding in doctor.check_model(model) if not finding.ok]
    assert "wanted a JSON object" in failed[0].detail


def test_without_the_engine_it_says_what_was_not_checked(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "cli.model_check", raising=False)
    monkeypatch.delattr(cli, "model_check", raising=False)
    monkeypatch.setitem(sys.modules, "engine.build", None)
    findings = {finding.check: finding for finding in doctor.check_model(model)}
    assert "only the engine can check more" in findings["model config"].detail
    assert "model tensors" not in findings


def test_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        loopback, finding = doctor.check_ports([port])
    assert loopback.ok
    assert not finding.ok
    assert str(port) in finding.detail
    assert not list(doctor.check_ports([70000]))[1].ok


def test_a_missing_package_is_a_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", (("no-such-distribution", "engine"),))
    [finding] = doctor.check_packages()
    assert finding.is_dependency
    assert finding.way_out == 'pip install "disagg[engine]"'


def test_a_missing_dependency_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_store(url: str | None):
        raise ModuleNotFoundError("no", name="redis")
        yield

    monkeypatch.setattr(doctor, "check_store", check_store)
    assert main(["doctor", "--model", str(MODEL)]) == 3
    assert "the package 'redis' is missing" in capsys.readouterr().out


def test_the_machine_itself() -> None:
    assert all(finding.ok for finding in doctor.check_python())
    found = {finding.check for finding in doctor.check_devices()}
    assert {"cores", "disk", "accelerators"} <= found
