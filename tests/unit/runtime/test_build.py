"""What a process is built from."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from runtime.build import software_version, source_revision, tell_build
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


def test_a_source_tree_tells_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software_version("grpcio").count(".") == 2  # installed

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert software_version() == f"{project['version']}+source"
    assert software_version("another") == "unknown"
    monkeypatch.setattr(metadata, "version", lambda _name: "1.2.3")
    assert software_version() == "1.2.3"
