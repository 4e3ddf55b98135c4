"""Who a process is, whom it lets in, and how it reaches the others: TLS and keys as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from runtime.access import ApiKeys, AuthSettings, guard, open_keys
from runtime.channel import open_channel
from runtime.metrics import Metrics
from runtime.tls import Identity, TlsSettings, open_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the settings of a process say.

    Attributes:
        identity: Its certificate; None: plaintext.
        keys: Of users; None: they need none.
        peers: Names in the certificates of parts of the system; empty: certificates decide nothing.
        health_port: Of the plaintext health service while there is an identity; 0 picks one.
    """

    identity: Identity | None = None
    keys: ApiKeys | None = None
    peers: frozenset[str] = frozenset()
    health_port: int = 0

    @property
    def version(self) -> int:
        """Grows when channels should be opened anew."""
        return 0 if self.identity is None else self.identity.version

    def refresh(self) -> None:
        """Reads files that changed again."""
        for secret in (self.identity, self.keys):
            if secret is not None:
                secret.refresh()

    def guards(self, for_users: frozenset[str]) -> Sequence[grpc.aio.ServerInterceptor]:
        """Interceptors that let calls in; see `runtime.access.guard`."""
        if self.keys is None and not self.peers:
            return ()
        return (guard(peers=self.peers, keys=self.keys, for_users=for_users),)

    def channel(self, address: str, *, server_name: str = "") -> grpc.aio.Channel:
        """A channel to another part of the system; see `open_channel`."""
        return open_channel(address, identity=self.identity, server_name=server_name)

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Lets a server listen; returns the port.

        Raises:
            RuntimeError: The address is taken or not of this machine.
        """
        if self.identity is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self.identity.server())


NO_SECURITY = Security()
"""Plaintext, and everybody may call."""


def open_security(
    tls: TlsSettings,
    auth: AuthSettings | None = None,
    *,
    role: str,
    metrics: Metrics,
    rank: int = 0,
) -> Security:
    """What the settings of a process say, with all files read.

    Args:
        auth: Of a front door; None for members, which have no users.
        role: Label of metrics.
        rank: Added to the health port unless that is 0.

    Raises:
        SecretError: A file cannot be used.
    """
    return Security(
        identity=open_identity(tls, metrics=metrics, role=role),
        keys=None if auth is None else open_keys(auth, metrics=metrics, role=role),
        peers=frozenset(tls.peers),
        health_port=tls.health_port and tls.health_port + rank,
    )
