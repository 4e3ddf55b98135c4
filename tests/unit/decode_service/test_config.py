"""Settings of a decode process: flags, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from decode_service.config import DecodeSettings
from runtime.settings import SettingsError, leaves, load, load_process


def test_the_flags_of_the_command_line() -> None:
    settings = load_process(
        DecodeSettings,
        [
            *("--model", "models/x", "--ranks", "4", "--store", "unix:///s", "--port", "7000"),
            *("--host", "0.0.0.0", "--balancer", "b:1,c:2", "--fetch-credit-ttl-s", "9"),
        ],
        prog="decode_service",
        environment={},
    ).value
    assert settings.model.path == Path("models/x")
    assert settings.group.ranks == 4
    assert settings.store.url == "unix:///s"
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 7000)
    assert settings.announce.balancers == ("b:1", "c:2")
    assert settings.fetch.credit_ttl_s == 9.0


def test_the_documented_defaults() -> None:
    settings = load(DecodeSettings, flags={"store.url": "memory://"}, environment={}).value
    assert settings.model.path == Path("models/tiny-v4")
    assert (settings.group.ranks, settings.listen.port) == (1, 0)
    assert settings.engine.batch_invariant
    assert settings.store.lease_s == 10.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "store.url is required"),
        ({"group.ranks": "0"}, "group.ranks = 0"),
        ({"group.backend": "mpi"}, "group.backend = mpi"),
        ({"fetch.credit_ttl_s": "0"}, "fetch.credit_ttl_s = 0"),
        ({"fetch.reader": "3"}, "did you mean fetch.readers"),
    ],
)
def test_bad_settings_are_named(flags: dict[str, str], message: str) -> None:
    given = flags if not flags else {"store.url": "memory://", **flags}
    with pytest.raises(SettingsError, match=message):
        load(DecodeSettings, flags=given, environment={})


def test_settings_survive_the_way_to_a_rank() -> None:
    settings = load(DecodeSettings, flags={"store.url": "unix:///s"}, environment={}).value
    assert DecodeSettings.model_validate_json(settings.model_dump_json()) == settings


def test_every_setting_says_what_it_is() -> None:
    assert all(leaf.field.description for leaf in leaves(DecodeSettings))
