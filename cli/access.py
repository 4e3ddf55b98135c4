"""How commands are let in: an API key from a file, and the TLS settings of the environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import usage
from runtime.sections import foreign_to
from runtime.settings import Settings, SettingsError, load
from runtime.tls import TlsSettings

if TYPE_CHECKING:
    from client.transport import Access


class _CallerSettings(Settings):
    """What a caller takes from the environment or the settings file of the system."""

    tls: TlsSettings = TlsSettings()


def add_access_flags(parser: argparse.ArgumentParser) -> None:
    """The flag of a command that calls a balancer; TLS comes from DISAGG_TLS__MODE and so on."""
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with your API key; TLS comes from the settings tls.*, as for the processes",
    )


def access_of(options: argparse.Namespace | None = None) -> Access:
    """What the flags and the environment give.

    Raises:
        CommandError: A file cannot be read, or settings cannot be.
    """
    from client.errors import InvalidArgument
    from client.transport import Access

    path: Path | None = getattr(options, "api_key_file", None)
    key = "" if path is None else _key(path)
    tls = tls_settings()
    try:
        if tls.mode == "off":
            return Access(api_key=key)
        is_mutual = tls.mode == "mtls"
        return Access(
            api_key=key,
            ca_file=tls.ca_file,
            cert_file=tls.cert_file if is_mutual else None,
            key_file=tls.key_file if is_mutual else None,
            server_name=tls.server_name,
        )
    except InvalidArgument as error:
        is_of_key = "api_key" in error.fields
        raise usage(f"--api-key-file {path}: {error}" if is_of_key else f"tls.{error}") from error


def tls_settings() -> TlsSettings:
    """TLS as the environment or the settings file of the system has it.

    Raises:
        CommandError: It cannot be.
    """
    try:
        return load(_CallerSettings, foreign_sections=foreign_to(_CallerSettings)).value.tls
    except SettingsError as error:
        raise usage(str(error)) from error


def _key(path: Path) -> str:
    """The one key of a file, which may name its tenant before it as the balancer's file does."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"--api-key-file {path}: cannot be read: {error}") from error
    found = [words for line in lines if (words := line.partition("#")[0].split())]
    if not found:
        raise usage(f"--api-key-file {path}: there is no key in it; write yours into it")
    if len(found) > 1 or len(found[0]) > 2:
        what = f"{len(found)} keys" if len(found) > 1 else f"a line of {len(found[0])} words"
        raise usage(
            f"--api-key-file {path}: it has {what}; leave one line in it, `KEY` or `TENANT KEY`"
        )
    return found[0][-1]
