"""`disagg certs dev`: an authority and a certificate for trying TLS; not for production."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError, usage
from cli.output import show, show_json
from runtime.clock import SystemClock
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PEER_NAME = "disagg.internal"
"""Name that the certificate of parts of the system has besides its addresses."""

_DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
_MAX_DAYS = 3650


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "certs",
        help="make certificates for trying TLS",
        description="Makes certificates; `dev` is the only kind.",
        epilog="example:  disagg certs dev --directory certs",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    dev = kinds.add_parser(
        "dev",
        help="an authority, a certificate of parts of the system, and one of a client",
        description="Writes ca.crt, tls.crt and tls.key (parts of the system, both sides) and "
        "client.crt and client.key (callers). Keys are not encrypted: for development only.",
        epilog="example:  disagg certs dev --directory certs --name 10.0.0.5",
        allow_abbrev=False,
    )
    dev.add_argument(
        "--directory", type=Path, default=Path("certs"), metavar="DIR", help="default certs"
    )
    dev.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help=f"further host name or address (always: {', '.join(_DEFAULT_NAMES)}, {PEER_NAME})",
    )
    dev.add_argument("--days", type=int, default=30, metavar="N", help="validity (default 30)")
    dev.add_argument("--force", action="store_true", help="replace files that are there")
    dev.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    if not 1 <= options.days <= _MAX_DAYS:
        raise usage(f"--days {options.days}: give 1 to {_MAX_DAYS}")
    names = (*_DEFAULT_NAMES, *options.name)
    files = write_dev_certificates(
        options.directory, names=names, days=options.days, force=options.force
    )
    if options.json:
        show_json({name: str(path) for name, path in files.items()})
        return ExitCode.OK
    for path in files.values():
        show(str(path))
    show()
    show("settings of every part:")
    for key, name in (("cert_file", "tls.crt"), ("key_file", "tls.key"), ("ca_file", "ca.crt")):
        show(f"  DISAGG_TLS__{key.upper()}={options.directory.resolve() / name}")
    show("  DISAGG_TLS__MODE=mtls")
    show(f"  DISAGG_TLS__PEERS={PEER_NAME}")
    return ExitCode.OK


def write_dev_certificates(
    directory: Path, *, names: tuple[str, ...] = _DEFAULT_NAMES, days: int = 30, force: bool = False
) -> dict[str, Path]:
    """Makes an authority and two certificates; returns the files by name.

    Raises:
        CommandError: Files are there already, the directory cannot be written, or the package that
            makes certificates is missing.
    """
    try:
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError as error:
        raise CommandError(
            "the package 'cryptography' is missing; install disagg[certs], or make the files with "
            "openssl",
            ExitCode.DEPENDENCY,
        ) from error
    wanted = ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")
    files = {name: directory / name for name in wanted}
    for path in files.values():
        if path.exists() and not force:
            raise usage(f"{path} is there already; give --force to replace it, or --directory")
    authority = _Authority(days)
    content = {"ca.crt": authority.certificate.public_bytes(serialization.Encoding.PEM)}
    for stem, sans in (("tls", (*names, PEER_NAME)), ("client", ("client",))):
        certificate, key = authority.issue(sans)
        content[f"{stem}.crt"] = certificate.public_bytes(serialization.Encoding.PEM)
        content[f"{stem}.key"] = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            _write(files[name], data, is_secret=name.endswith(".key"))
    except OSError as error:
        raise usage(f"{error.filename}: cannot be written: {error.strerror}") from error
    return files


class _Authority:
    """Signs; its key is forgotten at the end."""

    def __init__(self, days: int) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed("disagg development authority", self._key, (), is_ca=True)

    def issue(self, sans: tuple[str, ...]) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        return self._signed(sans[0], key, sans, is_ca=False), key

    def _signed(
        self, name: str, key: EllipticCurvePrivateKey, sans: tuple[str, ...], *, is_ca: bool
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        now = datetime.datetime.fromtimestamp(SystemClock().wall(), datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if is_ca else self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=self._days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if sans:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(san) for san in sans]), critical=False
            ).add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, data: bytes, *, is_secret: bool) -> None:
    # Never readable by others, not even for a moment.
    mode = 0o600 if is_secret else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # a file that was there keeps its mode otherwise
        file.write(data)
