"""Starting a group of either role: what is refused before a process starts, and how it is said."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import decode_service.rank
import prefill_service.rank
from engine.build import kv_layout
from engine.config import EngineRole
from kvstore.errors import StoreDown
from prefill_service.config import PrefillSettings
from runtime.errors import ExitCode
from runtime.settings import load
from serving import rank
from serving.role import Role

MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"


@pytest.fixture(autouse=True)
def _logs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "configure_logging", lambda **_: None)


@pytest.fixture(
    params=[prefill_service.rank.ROLE, decode_service.rank.ROLE], ids=lambda role: role.name
)
def role(request: pytest.FixtureRequest) -> Role[Any]:
    return cast("Role[Any]", request.param)


def settings(model: Path = MODEL, store: str = "memory://", **flags: str) -> PrefillSettings:
    given = {"model.path": str(model), "store.url": store, **flags}
    return load(PrefillSettings, flags=given, environment={}).value


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    return lines[0]


def test_a_good_model_and_a_store_pass() -> None:
    rank.preflight(settings(), EngineRole.PREFILL)


def test_no_model_directory(
    role: Role[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "no-model"
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(missing), "--store", "memory://"])
    assert caught.value.code == ExitCode.CONFIGURATION
    line = only_line(capsys)
    assert line.startswith(f"{role.name}_service: ")
    assert str(missing) in line


def test_a_config_that_is_not_servable(
    role: Role[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    del config["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(tmp_path), "--store", "memory://"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "hidden_size" in only_line(capsys)


def test_a_checkpoint_that_is_cut_short(
    role: Role[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        data = (MODEL / name).read_bytes()
        (tmp_path / name).write_bytes(data if name == "config.json" else data[: len(data) // 2])
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(tmp_path), "--store", "memory://"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "model.safetensors is not a complete safetensors file" in only_line(capsys)


def test_a_block_size_the_model_cannot_have(
    role: Role[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        rank.supervise(
            role, ["--model", str(MODEL), "--store", "memory://", "--engine-block-tokens", "33"]
        )
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "block_tokens is 33" in only_line(capsys)


def test_no_store(role: Role[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(MODEL), "--store", url])
    assert caught.value.code == ExitCode.DEPENDENCY
    assert f"{tmp_path}/none.sock cannot be reached" in only_line(capsys)
    with pytest.raises(StoreDown):
        rank.preflight(settings(store=url), EngineRole.PREFILL)


def test_a_port_of_a_later_rank_is_taken(
    role: Role[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        arguments = ["--model", str(MODEL), "--store", "memory://", "--ranks", "2"]
        with pytest.raises(SystemExit) as caught:
            rank.supervise(role, [*arguments, "--port", str(taken - 1)])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert f"cannot listen on 127.0.0.1:{taken}" in only_line(capsys)


def test_a_store_url_that_names_no_store(
    role: Role[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(MODEL), "--store", "ftp://x"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "store URL has scheme 'ftp'" in only_line(capsys)


def test_no_store_was_named(role: Role[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, [])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "store.url is required" in capsys.readouterr().err


def test_the_fingerprint_does_not_depend_on_the_place_of_the_model(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, tmp_path / name)
    assert kv_layout(tmp_path).fingerprint == kv_layout(MODEL).fingerprint


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("dp=2,tp=2", "'tp=2' is not one of dp, cp, ep, enp, attn_tp, path"),
        ("dp=3,ep=2", "ep 2 does not divide dp * cp = 3 * 1 = 3"),
        ("attn_tp=16", "attn_tp 16 does not divide both the"),
        ("dp=2,cp=2,attn_tp=2", "cp 2 and attn_tp 2 both decide"),
    ],
)
def test_a_layout_that_cannot_be(
    role: Role[Any], capsys: pytest.CaptureFixture[str], layout: str, words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(MODEL), "--store", "memory://", "--layout", layout])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert words in only_line(capsys)


def test_decode_never_shares_tokens_of_a_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(MODEL), "--store", "memory://", "--layout", "dp=2,cp=2"]
    with pytest.raises(SystemExit) as caught:
        rank.supervise(decode_service.rank.ROLE, arguments)
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "cp 2 with a decode engine" in only_line(capsys)
    rank.preflight(settings(**{"group.layout": "dp=2,cp=2"}), EngineRole.PREFILL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "memory://", "--layout", "dp=2,banana=7"], "'banana=7' is not one of dp"),
        (["--store", "memory://", "--layout", "dp=2", "--ranks", "3"], "group.ranks is 3, but"),
        (["--store", "redis://kv:99999999"], "store URL has a bad port"),
        (["--store", "redis+sentinel://s1:26379"], "/SERVICE"),
    ],
)
def test_a_check_of_settings_says_what_a_start_would(
    role: Role[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, ["--model", str(MODEL), *arguments, "--check-config"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert words in only_line(capsys)


def test_a_check_of_good_settings_asks_nobody(role: Role[Any]) -> None:
    arguments = ["--model", "nowhere", "--store", "redis://nowhere:1", "--layout", "dp=2"]
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, [*arguments, "--check-config"])
    assert caught.value.code == ExitCode.OK


def test_ranks_that_contradict_the_layout(
    role: Role[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(MODEL), "--store", "memory://", "--ranks", "3"]
    with pytest.raises(SystemExit) as caught:
        rank.supervise(role, [*arguments, "--layout", "dp=2"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "group.ranks is 3, but layout dp=2,ep=2 has 2 ranks" in only_line(capsys)


def test_without_a_layout_every_rank_is_an_engine() -> None:
    assert str(rank.run_layout(settings(**{"group.ranks": "4"}))) == "dp=4,ep=4"
    assert str(rank.run_layout(settings(**{"group.layout": "ep=4,cp=2"}))) == "dp=2,cp=2,ep=4"


def test_a_follower_can_be_scraped_while_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, object]] = []
    pages: list[str] = []
    monkeypatch.setattr(rank._log, "info", lambda event, **facts: told.append(facts))
    monkeypatch.setattr(rank.signal, "signal", lambda *_: None)

    def follow() -> None:
        with urllib.request.urlopen(f"http://{told[0]['metrics']}/metrics", timeout=5) as answer:
            pages.append(answer.read().decode())

    layout = SimpleNamespace(leader_of=lambda _rank: 0)
    built = SimpleNamespace(
        ports=SimpleNamespace(run=SimpleNamespace(layout=layout)),
        follower=SimpleNamespace(follow=follow),
    )
    context = SimpleNamespace(rank=1, group_name="prefill-0")
    given = settings(**{"metrics.port": "0"})
    rank._follow(prefill_service.rank.ROLE, cast(Any, context), given, cast(Any, built))
    assert told[0]["leader"] == 0
    assert 'disagg_build_info{fingerprint="",revision=' in pages[0]
