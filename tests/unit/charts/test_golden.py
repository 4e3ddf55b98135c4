"""Golden renders are written, compared, and named when they differ; Helm's word comes through."""

from __future__ import annotations

from pathlib import Path

import pytest

from charts import golden
from charts.fetch_helm import Unavailable
from charts.golden import RenderError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A helm that prints its arguments, and a place for renders."""
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    helm.chmod(0o755)
    monkeypatch.setattr(golden, "helm_path", lambda: helm)
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    monkeypatch.setattr(golden, "GOLDEN", tmp_path / "golden")
    return helm


def test_every_preset_has_a_committed_render() -> None:
    assert golden.presets()
    assert all(golden.golden_of(preset).is_file() for preset in golden.presets())
    assert len(list(golden.GOLDEN.glob("*.yaml"))) == len(golden.presets())


@pytest.mark.medium
def test_a_difference_is_reported_and_written(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden.main(["--check"]) == 1
    assert "differs from a fresh one" in capsys.readouterr().out
    assert not (tmp_path / "golden").exists()
    assert golden.main([]) == 0
    assert golden.main(["--check"]) == 0


def test_arguments_reach_helm(fake: Path) -> None:
    said = golden.render(fake, "--set", "a=b", release="r", apis=("x/v1",)).split()
    assert said[:2] == ["template", "r"]
    assert said[-4:] == ["--api-versions", "x/v1", "--set", "a=b"]


def test_the_word_of_helm_is_the_error(tmp_path: Path) -> None:
    helm = tmp_path / "helm"
    helm.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n", encoding="utf-8")
    helm.chmod(0o755)
    with pytest.raises(RenderError, match="no such thing"):
        golden.run(helm, "lint")


def test_without_helm_the_exit_code_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> Path:
        raise Unavailable("no index")

    monkeypatch.setattr(golden, "helm_path", nowhere)
    assert golden.main([]) == 3
    assert "no index" in capsys.readouterr().err
