"""TLS between the parts of the system: settings, certificate files, credentials of both sides.

    off     plaintext; for one machine, or a network that is trusted
    tls     servers show a certificate; clients verify it
    mtls    clients show one as well, and `peers` says whose

One certificate serves a process as server and as client. All files are read again when they change:
a server uses them for its next connection, clients open new channels.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
from pydantic import model_validator

from runtime.certificate import not_after
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.settings import Settings, setting
from runtime.watched import SecretError, Watched

_log = get_logger(__name__)


class TlsSettings(Settings):
    """TLS of all connections of a process, in and out; the store has its own in its URL."""

    mode: Literal["off", "tls", "mtls"] = setting(
        "off", help="off, tls (servers show a certificate) or mtls (clients as well)"
    )
    cert_file: Path | None = setting(None, help="certificate chain of this process, PEM")
    key_file: Path | None = setting(None, help="its private key, PEM")
    ca_file: Path | None = setting(None, help="authorities that peers are verified with, PEM")
    server_name: str = setting(
        "", help="name in the certificates of all parts, if their addresses are not in there"
    )
    peers: tuple[str, ...] = setting(
        (),
        help="names (SAN) in the certificates of parts of the system; with mtls only they may "
        "announce themselves and call members; empty: whoever the authorities signed",
    )
    health_port: int = setting(
        0,
        help="port of the plaintext health service while TLS is on, plus the rank; 0 picks one",
        ge=0,
        le=65535,
    )

    @model_validator(mode="after")
    def _complete(self) -> TlsSettings:
        if self.mode == "off":
            return self
        for name in ("cert_file", "key_file", "ca_file"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"mode {self.mode} needs {name}; name a PEM file (`disagg certs dev` makes "
                    "some), or set mode to off"
                )
        if self.peers and self.mode != "mtls":
            raise ValueError("peers needs mode mtls: without it clients show no certificate")
        return self


@dataclass(frozen=True, slots=True)
class _Pem:
    """Bytes of the files, and the files, which OpenSSL reads by itself."""

    certificate: bytes
    key: bytes
    authorities: bytes


class Identity:
    """The certificate of a process and what it trusts; belongs to one event loop.

    Args:
        settings: TLS that is not off.

    Raises:
        SecretError: A file is missing or broken, or certificate and key do not belong together.
    """

    def __init__(self, settings: TlsSettings, *, metrics: Metrics, role: str) -> None:
        assert settings.cert_file is not None
        assert settings.key_file is not None
        assert settings.ca_file is not None
        self._files = (settings.cert_file, settings.key_file, settings.ca_file)
        self._settings = settings
        self._metrics = metrics
        self._role = role
        self._contexts: list[ssl.SSLContext] = []
        self._watched = Watched("tls", self._files, self._read, metrics=metrics, role=role)

    @property
    def version(self) -> int:
        """Grows when the files change; channels of an older version should be opened anew."""
        return self._watched.version

    @property
    def server_name(self) -> str:
        """Name that certificates of peers have instead of their addresses; empty: none."""
        return self._settings.server_name

    def refresh(self) -> bool:
        """Reads the files again if they changed; see `Watched.refresh`."""
        is_new = self._watched.refresh()
        if is_new:
            for context in self._contexts:
                try:
                    self._load(context)
                except (OSError, SecretError) as error:
                    # Replaced once more since it was read: the next look takes both again.
                    _log.warning("tls.http_kept", error=str(error))
        return is_new

    def server(self) -> grpc.ServerCredentials:
        """Of a gRPC server; new connections get the files that are in force then."""
        seen = 0

        def current() -> grpc.ServerCertificateConfiguration | None:
            # Called in a thread of gRPC for each connection; reads one attribute.
            nonlocal seen
            if self.version == seen:
                return None
            seen = self.version
            return self._configuration()

        # The stubs do not know that the callable may return None for "as before".
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            current,  # type: ignore[arg-type]
            self._settings.mode == "mtls",
        )

    def client(self) -> grpc.ChannelCredentials:
        """Of a gRPC channel, from the files in force now."""
        pem = self._watched.value
        pair = (pem.key, pem.certificate) if self._settings.mode == "mtls" else (None, None)
        return grpc.ssl_channel_credentials(pem.authorities, *pair)

    def http(self) -> ssl.SSLContext:
        """Of an HTTP server, which asks for no certificate; follows the files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        self._contexts.append(context)
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pem = self._watched.value
        return grpc.ssl_server_certificate_configuration(
            [(pem.key, pem.certificate)], root_certificates=pem.authorities
        )

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key, _ = self._files

        def no_password() -> str:
            # OpenSSL would ask on the terminal, and wait.
            raise SecretError(f"tls.key_file {key} is encrypted; give the key without a password")

        context.load_cert_chain(certificate, key, password=no_password)

    def _read(self) -> _Pem:
        certificate, key, authorities = self._files
        pem = _Pem(certificate.read_bytes(), key.read_bytes(), authorities.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self._load(context)
        except ssl.SSLError as error:
            raise SecretError(
                f"tls.cert_file {certificate} and tls.key_file {key}: {error.reason or error}; "
                "give a PEM certificate and the private key that belongs to it"
            ) from error
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise SecretError(
                f"tls.ca_file {authorities}: {error.reason or error}; give certificates in PEM form"
            ) from error
        end = not_after(pem.certificate.decode("ascii", "replace"))
        self._metrics.set(
            "disagg_tls_cert_expiry_timestamp_seconds", end.timestamp(), role=self._role
        )
        return pem


def open_identity(settings: TlsSettings, *, metrics: Metrics, role: str) -> Identity | None:
    """The identity of a process; None if TLS is off.

    Raises:
        SecretError: See `Identity`.
    """
    return None if settings.mode == "off" else Identity(settings, metrics=metrics, role=role)
