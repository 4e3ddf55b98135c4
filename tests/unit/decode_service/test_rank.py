"""What the decode role is made of; what refuses a start is tested with `serving.rank`."""

from __future__ import annotations

import importlib

import pytest

from decode_service.config import DecodeSettings
from decode_service.rank import ROLE, main
from runtime.errors import ExitCode
from runtime.settings import load


def test_the_entry_of_a_rank_process_can_be_imported() -> None:
    module, _, function = ROLE.entry.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert (ROLE.name, ROLE.prog) == ("decode", "decode_service")


def test_threads_follow_the_settings() -> None:
    given = {"store.url": "memory://", "fetch.readers": "3"}
    settings = load(DecodeSettings, flags=given, environment={}).value
    assert dict(ROLE.threads(settings)) == {"read": 3}


def test_a_shared_file_may_hold_the_sections_of_other_roles() -> None:
    own = set(DecodeSettings.model_fields)
    assert "publish" in ROLE.foreign_sections
    assert not own & set(ROLE.foreign_sections)


def test_no_store_was_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == "decode_service: store.url is required and was not given\n"
