"""What a process is built from."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from runtime.build import source_revision, tell_build
from runtime.metrics import Metrics


class Distribution:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


@pytest.mark.parametrize(
    ("text", "revision"),
    [
        (json.dumps({"vcs_info": {"commit_id": "abc"}}), "abc"),
        (json.dumps({"dir_info": {"editable": True}}), "unknown"),
        (None, "unknown"),
        ("{", "unknown"),
    ],
)
def test_the_revision_is_what_the_installer_recorded(
    monkeypatch: pytest.MonkeyPatch, text: str | None, revision: str
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution(text))
    assert source_revision() == revision


def test_a_tree_that_is_not_installed_has_none() -> None:
    assert source_revision("no-such-distribution-of-ours") == "unknown"


def test_the_build_is_told() -> None:
    metrics = Metrics()
    tell_build(metrics, role="decode", version="1.2.3", fingerprint="aa")
    assert metrics.value("disagg_build_info", version="1.2.3", fingerprint="aa") == 1
