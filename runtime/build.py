"""What a process is built from, for its metrics and the people who compare two of them."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

from runtime.metrics import Metrics


def source_revision(distribution: str = "disagg") -> str:
    """Revision the distribution was installed from, if the installer recorded one (PEP 610)."""
    try:
        text = metadata.distribution(distribution).read_text("direct_url.json")
        return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", "unknown"))
    except (metadata.PackageNotFoundError, ValueError):
        return "unknown"


def software_version(distribution: str = "disagg") -> str:
    """Version of the installed distribution; of a source tree, its version with `+source`.

    `unknown` where neither is there.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pass
    try:
        text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        return f"{project['version']}+source" if project["name"] == distribution else "unknown"
    except (OSError, ValueError, KeyError):
        return "unknown"


def tell_build(metrics: Metrics, *, role: str, version: str, fingerprint: str = "") -> None:
    """Sets `disagg_build_info`.

    Args:
        fingerprint: KV layout, hexadecimal; empty where there is none.
    """
    metrics.set(
        "disagg_build_info",
        1,
        role=role,
        version=version,
        revision=source_revision(),
        fingerprint=fingerprint,
    )
