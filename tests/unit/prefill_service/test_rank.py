"""What the prefill role is made of; what refuses a start is tested with `serving.rank`."""

from __future__ import annotations

import importlib

import pytest

from prefill_service.config import PrefillSettings
from prefill_service.rank import ROLE, main
from runtime.errors import ExitCode
from runtime.settings import load


def test_the_entry_of_a_rank_process_can_be_imported() -> None:
    module, _, function = ROLE.entry.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert (ROLE.name, ROLE.prog) == ("prefill", "prefill_service")


def test_threads_follow_the_settings() -> None:
    given = {"store.url": "memory://", "publish.writers": "3"}
    settings = load(PrefillSettings, flags=given, environment={}).value
    assert dict(ROLE.threads(settings)) == {"write": 3, "read": 2}


def test_a_shared_file_may_hold_the_sections_of_other_roles() -> None:
    own = set(PrefillSettings.model_fields)
    assert "fetch" in ROLE.foreign_sections
    assert not own & set(ROLE.foreign_sections)


def test_no_store_was_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == "prefill_service: store.url is required and was not given\n"
