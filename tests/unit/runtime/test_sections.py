"""Every part takes a file that serves all parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.__main__ import main as balancer
from balancer.config import BalancerSettings
from decode_service.config import DecodeSettings
from decode_service.rank import main as decode
from kvstore.upkeep import UpkeepSettings
from kvstore.upkeep import main as store
from prefill_service.config import PrefillSettings
from prefill_service.rank import main as prefill
from runtime.sections import SECTIONS, foreign_to
from runtime.settings import Settings

PARTS: tuple[type[Settings], ...] = (
    BalancerSettings,
    PrefillSettings,
    DecodeSettings,
    UpkeepSettings,
)


def test_they_are_those_of_the_parts() -> None:
    assert frozenset().union(*(part.model_fields for part in PARTS)) == SECTIONS
    for part in PARTS:
        assert not set(foreign_to(part)) & set(part.model_fields)


SHARED = """
[store]
url = "unix:///s"
[group]
name = "g"
[http]
port = 8000
[facade]
kv_connector = "c"
[server]
max_memory_bytes = 2000000
[janitor]
interval_s = 1.0
[fetch]
readers = 1
[publish]
writers = 1
[log]
level = "debug"
"""


@pytest.mark.parametrize("main", [balancer, prefill, decode, store])
def test_one_file_serves_all_parts(
    main: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "all.toml"
    monkeypatch.setattr(sys, "argv", ["part", "--config", str(file), "--check-config"])
    for more, code in (("", 0), ("[htpp]\nport = 1\n", 2)):
        file.write_text(SHARED + more)
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code, capsys.readouterr().err
    assert "unknown setting htpp.port" in capsys.readouterr().err


@pytest.mark.parametrize("main", [balancer, prefill, decode, store])
@pytest.mark.parametrize("url", ["redis://kv:99999999", "redis+sentinel://s1:26379"])
def test_no_part_passes_a_store_that_is_none(
    main: Callable[[], int],
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["part", "--store", url, "--check-config"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert ": store URL " in capsys.readouterr().err
