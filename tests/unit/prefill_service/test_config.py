"""Settings of a prefill process: flags, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefill_service.config import PrefillSettings
from runtime.settings import SettingsError, leaves, load, load_process


def test_the_flags_of_the_command_line() -> None:
    settings = load_process(
        PrefillSettings,
        [
            *("--model", "models/x", "--ranks", "2", "--store", "unix:///s", "--port", "7000"),
            *("--host", "0.0.0.0", "--balancer", "b:1,c:2", "--publish-boundary-states", "every:4"),
        ],
        prog="prefill_service",
        environment={},
    ).value
    assert settings.model.path == Path("models/x")
    assert settings.group.ranks == 2
    assert settings.store.url == "unix:///s"
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 7000)
    assert settings.announce.balancers == ("b:1", "c:2")
    assert settings.publish.boundary_states == "every:4"


def test_the_documented_defaults() -> None:
    settings = load(PrefillSettings, flags={"store.url": "memory://"}, environment={}).value
    assert settings.model.path == Path("models/tiny-v4")
    assert (settings.group.ranks, settings.listen.port) == (1, 0)
    assert settings.publish.boundary_states == "every:8"
    assert settings.engine.batch_invariant
    assert settings.model.kv_quantisers == "auto"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "store.url is required"),
        ({"publish.boundary_states": "every:0"}, "write every, every:K"),
        ({"publish.boundary_states": "sometimes"}, "write every, every:K"),
        ({"group.ranks": "0"}, "group.ranks = 0"),
        ({"listen.port": "70000"}, "listen.port = 70000"),
        ({"model.kv_quantisers": "maybe"}, "model.kv_quantisers = maybe"),
        ({"publish.max_bytes_in_flight": "-1"}, "publish.max_bytes_in_flight = -1"),
        ({"publish.writerz": "3"}, "did you mean publish.writers"),
    ],
)
def test_bad_settings_are_named(flags: dict[str, str], message: str) -> None:
    given = flags if not flags else {"store.url": "memory://", **flags}
    with pytest.raises(SettingsError, match=message):
        load(PrefillSettings, flags=given, environment={})


def test_settings_survive_the_way_to_a_rank() -> None:
    settings = load(PrefillSettings, flags={"store.url": "unix:///s"}, environment={}).value
    assert PrefillSettings.model_validate_json(settings.model_dump_json()) == settings


def test_every_setting_says_what_it_is() -> None:
    assert all(leaf.field.description for leaf in leaves(PrefillSettings))
