"""How a process ends that cannot start."""

import gc

import pytest

from runtime.errors import ExitCode
from runtime.startup import exits, settle

CODES = {ValueError: ExitCode.CONFIGURATION, ConnectionError: ExitCode.DEPENDENCY}


class BadModel(ValueError):
    """A special case of bad configuration."""


def test_one_line_and_the_code_of_the_most_specific_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes = CODES | {BadModel: ExitCode.INTERNAL}
    with pytest.raises(SystemExit) as caught, exits("prefill_service", codes):
        raise BadModel("config.json lacks\nhidden_size")
    assert caught.value.code == 4
    assert capsys.readouterr().err == "prefill_service: config.json lacks hidden_size\n"


def test_a_subclass_has_the_code_of_its_base(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, exits("decode_service", CODES):
        raise ConnectionRefusedError("no store at unix:///x")
    assert caught.value.code == 3
    assert "no store at unix:///x" in capsys.readouterr().err


def test_what_is_not_listed_is_a_bug_and_passes() -> None:
    with pytest.raises(KeyError), exits("x", CODES):
        raise KeyError("typo")


def test_nothing_happens_without_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with exits("x", CODES):
        pass
    assert capsys.readouterr().err == ""


def test_what_the_start_left_is_collected_once_and_then_left_alone() -> None:
    before = gc.get_freeze_count()
    try:
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        settle()
        assert gc.get_freeze_count() > before
        assert gc.collect() == 0  # garbage was thrown away, not frozen, and nothing else is walked
    finally:
        gc.unfreeze()
