"""Certificates of the development authority, made once for a run."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from cli.certs import write_dev_certificates


@functools.cache
def dev_certificates() -> Path:
    """A directory as `disagg certs dev` leaves it; read it, or copy from it."""
    directory = Path(tempfile.mkdtemp(prefix="disagg-certs-"))
    write_dev_certificates(directory)
    return directory


def tls_section(directory: Path, mode: str = "mtls", **more: object) -> dict[str, object]:
    """A section of settings with these files."""
    return {
        "mode": mode,
        "cert_file": str(directory / "tls.crt"),
        "key_file": str(directory / "tls.key"),
        "ca_file": str(directory / "ca.crt"),
        **more,
    }
