"""Renders every preset of `disagg/ci` and compares it with, or writes, `tests/charts/golden`.

    python -m charts.golden            write
    python -m charts.golden --check    exit 1 if a committed render differs from a fresh one

A golden render is for people: its difference in a review is what a change of the chart does to a
cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from charts.fetch_helm import ROOT, Differs, Unavailable, helm_path

CHART = ROOT / "charts" / "disagg"
GOLDEN = ROOT / "tests" / "charts" / "golden"
RELEASE, NAMESPACE = "demo", "llm"
APIS = (
    "gateway.networking.k8s.io/v1",
    "inference.networking.k8s.io/v1",
    "leaderworkerset.x-k8s.io/v1",
    "monitoring.coreos.com/v1",
)
"""APIs of extensions that a render is told the cluster serves."""


class RenderError(Exception):
    """Helm refused; the text is Helm's."""


def presets() -> list[Path]:
    """The values files of all presets."""
    return sorted((CHART / "ci").glob("*-values.yaml"))


def render(
    helm: Path,
    *arguments: str,
    chart: Path = CHART,
    release: str = RELEASE,
    apis: Sequence[str] = APIS,
) -> str:
    """What `helm template` writes.

    Raises:
        RenderError: Helm refused.
    """
    return run(
        helm,
        *("template", release, str(chart), "--namespace", NAMESPACE),
        *(word for api in apis for word in ("--api-versions", api)),
        *arguments,
    )


def run(helm: Path, *arguments: str) -> str:
    """The standard output of Helm.

    Raises:
        RenderError: It did not exit with 0.
    """
    done = subprocess.run([str(helm), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr + done.stdout)
    return done.stdout


def golden_of(preset: Path) -> Path:
    """The committed render of a preset."""
    return GOLDEN / preset.name.replace("-values", "")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="golden", description="Golden renders of the chart.")
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args(arguments).check
    try:
        helm = helm_path()
    except (Unavailable, Differs) as error:
        sys.stderr.write(f"golden: {error}\n")
        return 3
    stale = False
    for preset in presets():
        fresh, path = render(helm, "--values", str(preset)), golden_of(preset)
        if path.exists() and path.read_text(encoding="utf-8") == fresh:
            continue
        stale = True
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fresh, encoding="utf-8")
        what = "differs from a fresh one; look at it, then run `make chart`"
        sys.stdout.write(f"{path.relative_to(ROOT)}: {what if check else 'written'}\n")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
