"""Settings: order of sources, origins, refusals."""

import argparse
import json
from pathlib import Path

import pytest
from pydantic import SecretStr, model_validator

from runtime import settings as module
from runtime.settings import (
    Settings,
    SettingsError,
    environment_with,
    load,
    load_process,
    setting,
)


class Store(Settings):
    url: str = setting("unix:///default", help="where the store is", flag="--store")
    password: SecretStr = setting(SecretStr("none"), help="password")
    pool_size: int = setting(4, help="connections", ge=1, le=64)


class Drain(Settings):
    soft_s: float = setting(1.0, help="seconds")
    hard_s: float = setting(2.0, help="seconds")

    @model_validator(mode="after")
    def ordered(self) -> "Drain":
        if self.soft_s > self.hard_s:
            raise ValueError(
                f"soft_s {self.soft_s} is above hard_s {self.hard_s}: lower the former"
            )
        return self


class Tree(Settings):
    model: str = setting(help="directory", flag="--model")
    store: Store = Store()
    drain: Drain = Drain()
    peers: tuple[str, ...] = setting((), help="addresses")
    trace: bool = setting(False, help="trace")


GIVEN = {"model": "m"}


def test_defaults_carry_their_origin() -> None:
    loaded = load(Tree, flags=GIVEN, environment={})
    assert loaded.value.store.url == "unix:///default"
    assert loaded.origins["store.url"] == "default"
    assert loaded.origins["model"] == "flag --model"


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "disagg.toml"
    file.write_text(
        'model = "file"\n[store]\nurl = "file"\npool_size = 7\n[drain]\nhard_s = 9\n', "utf-8"
    )
    environment = {"DISAGG_STORE__URL": "environment", "DISAGG_MODEL": "environment"}
    loaded = load(Tree, flags={"model": "flag"}, file=file, environment=environment)
    assert loaded.value.model == "flag"
    assert loaded.value.store.url == "environment"
    assert loaded.value.store.pool_size == 7
    assert loaded.value.drain == Drain(hard_s=9)
    assert loaded.origins == {
        "model": "flag --model",
        "store.url": "environment DISAGG_STORE__URL",
        "store.password": "default",
        "store.pool_size": f"file {file}",
        "drain.soft_s": "default",
        "drain.hard_s": f"file {file}",
        "peers": "default",
        "trace": "default",
    }


def test_the_environment_names_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "disagg.json"
    file.write_text(json.dumps({"model": "x", "trace": True}), "utf-8")
    loaded = load(Tree, environment={"DISAGG_CONFIG": str(file), "HOME": "/nowhere"})
    assert loaded.value.trace is True


@pytest.mark.parametrize("text", ["a:1,b:2", '["a:1", "b:2"]', " a:1 , b:2,"])
def test_lists_are_json_or_commas(text: str) -> None:
    loaded = load(Tree, flags=GIVEN, environment={"DISAGG_PEERS": text})
    assert loaded.value.peers == ("a:1", "b:2")


@pytest.mark.parametrize("text", ["[::1]:1,b:2", '["[::1]:1", "b:2"]', "[::1]:1 , b:2"])
def test_an_address_of_ipv6_begins_no_json(text: str) -> None:
    loaded = load(Tree, flags=GIVEN, environment={"DISAGG_PEERS": text})
    assert loaded.value.peers == ("[::1]:1", "b:2")


def test_text_that_looks_like_a_list_stays_text() -> None:
    loaded = load(Tree, flags=GIVEN, environment={"DISAGG_STORE__URL": "[::1]:6379"})
    assert loaded.value.store.url == "[::1]:6379"


def test_unknown_keys_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[store]\npool_sise = 3\n", "utf-8")
    with pytest.raises(SettingsError) as caught:
        load(Tree, flags=GIVEN, file=file, environment={"DISAGG_STOR__URL": "x"})
    assert caught.value.problems == (
        f"file {file}: unknown setting store.pool_sise; did you mean store.pool_size?",
        "environment DISAGG_STOR__URL: unknown setting stor.url; did you mean store.url?",
    )


def test_sections_of_other_parts_may_stand_beside() -> None:
    environment = {"DISAGG_BALANCER__POLICY": "least"}
    load(Tree, flags=GIVEN, environment=environment, foreign_sections=("balancer",))
    with pytest.raises(SettingsError, match=r"unknown setting balancer\.policy"):
        load(Tree, flags=GIVEN, environment=environment)


def test_a_wrong_value_names_key_value_and_origin() -> None:
    with pytest.raises(SettingsError) as caught:
        load(Tree, flags=GIVEN, environment={"DISAGG_STORE__POOL_SIZE": "99"})
    (problem,) = caught.value.problems
    assert problem.startswith("store.pool_size = 99 (environment DISAGG_STORE__POOL_SIZE): ")
    assert "64" in problem


def test_a_missing_value_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^model is required and was not given$"):
        load(Tree, environment={})


def test_a_broken_rule_between_fields_is_told_with_both() -> None:
    with pytest.raises(SettingsError) as caught:
        load(Tree, flags=GIVEN, environment={"DISAGG_DRAIN__SOFT_S": "5"})
    assert caught.value.problems == ("drain: soft_s 5.0 is above hard_s 2.0: lower the former",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", "model = ", "not valid .toml"),
        ("c.json", "[1]", "a table of sections"),
        ("c.json", "{", "not valid .json"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=message):
        load(Tree, file=file, environment={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(Tree, file=tmp_path / "none.toml", environment={})


def test_rows_mask_secrets() -> None:
    environment = {
        "DISAGG_STORE__PASSWORD": "hunter2",
        "DISAGG_STORE__URL": "redis://user:hunter2@host:6379/0",
    }
    loaded = load(Tree, flags=GIVEN, environment=environment)
    rows = {key: value for key, value, _origin in loaded.rows()}
    assert "hunter2" not in repr(rows)
    assert rows["store.url"] == "redis://user:***@host:6379/0"


def test_messages_mask_secrets() -> None:
    class Key(Settings):
        secret: SecretStr = setting(SecretStr("a long default"), help="key", min_length=8)

    with pytest.raises(SettingsError) as caught:
        load(Key, environment={"DISAGG_SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "secret = ***" in str(caught.value)


def test_settings_are_frozen() -> None:
    loaded = load(Tree, flags=GIVEN, environment={})
    with pytest.raises(ValueError, match="frozen"):
        loaded.value.trace = True  # type: ignore[misc]


def test_flags_come_from_the_tree() -> None:
    parser = argparse.ArgumentParser()
    module.add_flags(parser, Tree)
    namespace = parser.parse_args(
        ["--model", "m", "--store", "s", "--store-pool-size", "3", "--trace", "--peers", "a,b"]
    )
    value = load(Tree, flags=module.flag_values(namespace, Tree), environment={}).value
    assert (value.model, value.store.url, value.store.pool_size) == ("m", "s", 3)
    assert (value.trace, value.peers) == (True, ("a", "b"))


def test_a_process_with_bad_settings_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_process(
            Tree, ["--model", "m", "--store-pool-size", "0"], prog="decode", environment={}
        )
    assert caught.value.code == 2
    assert "decode: store.pool_size = 0 (flag --store-pool-size): " in capsys.readouterr().err


def test_unknown_flags_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_process(Tree, ["--modell", "m"], prog="decode", environment={})
    assert caught.value.code == 2
    assert "--modell" in capsys.readouterr().err


def test_check_config_exits_0() -> None:
    with pytest.raises(SystemExit) as caught:
        load_process(Tree, ["--model", "m", "--check-config"], prog="decode", environment={})
    assert caught.value.code == 0


def test_check_config_asks_what_the_process_would(capsys: pytest.CaptureFixture[str]) -> None:
    def check(_tree: Tree) -> None:
        raise SettingsError(["environment X = 'y': give z"])

    arguments = ["--model", "m", "--check-config"]
    with pytest.raises(SystemExit) as caught:
        load_process(Tree, arguments, prog="decode", environment={}, check=check)
    assert caught.value.code == 2
    assert capsys.readouterr().err == "decode: environment X = 'y': give z\n"


def test_help_tells_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_process(Tree, ["--help"], prog="decode", example="decode --model DIR", environment={})
    text = " ".join(capsys.readouterr().out.split())
    assert "connections (default 4)" in text
    assert "directory (required)" in text
    assert text.endswith("example: decode --model DIR")


def test_a_child_gets_what_this_process_has_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_STORE__URL", "unix:///mine")
    monkeypatch.setenv("OTHER", "kept")
    found = environment_with({"DISAGG_STORE__URL": "unix:///its"})
    assert (found["DISAGG_STORE__URL"], found["OTHER"]) == ("unix:///its", "kept")
