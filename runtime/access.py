"""Who may call what: users by an API key, parts of the system by their certificate.

The file of keys has a line `TENANT KEY`, or `KEY` alone, for each that is valid; `#` begins a
comment. A tenant is whom blocks in the store and shares of the queue belong to: its name becomes
part of the salt of its prompts, so that no other tenant can meet them. Keys are compared as digests
in constant time, and every one of them each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from runtime.errors import Denied, Forbidden, Reason
from runtime.interceptors import MAX_REQUEST_ID_CHARS, Behaviour, Context, Surround
from runtime.metrics import Metrics
from runtime.settings import Settings, setting
from runtime.watched import SecretError, Watched

OPEN_SERVICES = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
"""For probes and tools; they tell nothing about requests."""

TICKET_METHODS = frozenset({"/disagg.v1.DecodeService/Decode"})
"""For whoever has been given what the call needs; `is_guest` tells the servicer to ask for it."""

MIN_KEY_CHARS = 16
_SAN = "x509_subject_alternative_name"
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
_guest: ContextVar[bool] = ContextVar("guest", default=False)


class AuthSettings(Settings):
    """Who may use the front door."""

    keys_file: Path | None = setting(
        None, help="file of API keys, a line `TENANT KEY` or `KEY` each; empty: anybody may call"
    )


class ApiKeys:
    """The keys that are valid; belongs to one event loop.

    Raises:
        SecretError: The file is missing or broken.
    """

    def __init__(self, path: Path, *, metrics: Metrics, role: str) -> None:
        self._watched = Watched(
            "api_keys", [path], lambda: read_keys(path), metrics=metrics, role=role
        )

    def refresh(self) -> bool:
        """Reads the file again if it changed; see `Watched.refresh`."""
        return self._watched.refresh()

    def tenant_of(self, authorization: str) -> str:
        """Whose key a header `Bearer KEY` holds; empty for a key without a tenant.

        Raises:
            Denied: It holds none that is valid.
        """
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Denied(
                "no API key: send the header `authorization: Bearer KEY`",
                reason=Reason.NOT_AUTHENTICATED,
            )
        digest = _digest(key.strip())
        found: str | None = None
        for known, tenant in self._watched.value.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise Denied(
                "the API key is not valid (any more); ask for another",
                reason=Reason.NOT_AUTHENTICATED,
            )
        return found


def read_keys(path: Path) -> Mapping[bytes, str]:
    """Tenants by the digests of their keys.

    Raises:
        SecretError: A line is neither `TENANT KEY` nor `KEY`; the message names its number.
    """
    keys: dict[bytes, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        tenant, key = words if len(words) == 2 else ("", words[0])
        where = f"{path}, line {number}"
        if len(words) > 2:
            raise SecretError(f"{where}: {len(words)} words; write `TENANT KEY` or `KEY`")
        if tenant and not _TENANT.fullmatch(tenant):
            raise SecretError(f"{where}: tenant {tenant!r}; use up to 64 of A-Z a-z 0-9 . _ -")
        if len(key) < MIN_KEY_CHARS:
            raise SecretError(
                f"{where}: the key has {len(key)} characters, fewer than {MIN_KEY_CHARS}; make "
                "one with `openssl rand -hex 32`"
            )
        if keys.setdefault(_digest(key), tenant) != tenant:
            raise SecretError(f"{where}: the key is that of another tenant above")
    if not keys:
        raise SecretError(f"{path}: there is no key in it; nobody could call")
    return keys


def open_keys(settings: AuthSettings, *, metrics: Metrics, role: str) -> ApiKeys | None:
    """The keys of the settings; None if anybody may call.

    Raises:
        SecretError: See `ApiKeys`.
    """
    if settings.keys_file is None:
        return None
    return ApiKeys(settings.keys_file, metrics=metrics, role=role)


def current_tenant() -> str | None:
    """Whose call this is: its tenant, empty for a key without one, None where there are no keys."""
    return _tenant.get()


@contextlib.contextmanager
def tenant_scope(tenant: str | None) -> Iterator[None]:
    """The body runs for a tenant."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


def is_guest() -> bool:
    """Whether the caller is no part of the system, in a method of `TICKET_METHODS`."""
    return _guest.get()


@contextlib.contextmanager
def guest_scope() -> Iterator[None]:
    """The body runs for a caller who has nothing but its ticket."""
    token = _guest.set(True)
    try:
        yield
    finally:
        _guest.reset(token)


def salt_of(tenant: str | None, salt: str) -> str:
    """The salt of a caller's blocks: within its tenant, whatever salt it names itself."""
    if tenant is None:
        return salt
    return f"{tenant}/{salt}" if salt else tenant


def scoped_id(tenant: str | None, request_id: str) -> str:
    """The id under which a caller's request is known inside: no two tenants share one.

    The form of an id stays that of `disagg.wire.REQUEST_ID`. Names of tenants hold no colon, so
    what stands before the first one is the tenant; ids without a tenant stay as they are unless
    they hold one themselves.
    """
    if tenant is None or (not tenant and ":" not in request_id):
        return request_id
    scoped = f"{tenant}:{request_id}"
    if len(scoped) <= MAX_REQUEST_ID_CHARS:
        return scoped
    return f"{tenant}:{hashlib.sha256(request_id.encode('utf-8')).hexdigest()[:48]}"


def visible_ids(request_id: str, *, overseer: str = "") -> tuple[str, ...]:
    """Inside ids that the caller may mean: of its own tenant, or of all if it sees all.

    Args:
        overseer: Tenant whose keys see the requests of all; parts of the system do anyway.
    """
    tenant = current_tenant()
    own = scoped_id(tenant, request_id)
    return (own, request_id) if tenant in (None, overseer) and own != request_id else (own,)


def keys_of(tenant: str) -> str:
    """Words for the keys of a tenant, of none if it is empty."""
    return f"keys of the tenant {tenant}" if tenant else "keys without a tenant"


def guard(
    *, peers: frozenset[str], keys: ApiKeys | None = None, for_users: frozenset[str] = frozenset()
) -> Surround:
    """The interceptor that lets calls in.

    Args:
        peers: Names in certificates of parts of the system; empty: certificates decide nothing.
        keys: Of users; None: they need none.
        for_users: Full names of the services that take keys; the others are for peers alone.
    """

    async def around(method: str, inner: Behaviour, request: Any, context: Context) -> Any:
        service = method.strip("/").rpartition("/")[0]
        if service in OPEN_SERVICES or _is_peer(context, peers):
            return await inner(request, context)
        if service not in for_users:
            if peers and method in TICKET_METHODS:
                with guest_scope():
                    return await inner(request, context)
            if peers:
                raise Forbidden(
                    f"{service} is for parts of the system; the caller's certificate names none "
                    "of tls.peers",
                    reason=Reason.NOT_ALLOWED,
                )
            return await inner(request, context)
        if keys is None:
            return await inner(request, context)
        with tenant_scope(keys.tenant_of(_authorization(context))):
            return await inner(request, context)

    return Surround(around)


def _is_peer(context: Context, peers: frozenset[str]) -> bool:
    if not peers:
        return False
    names = context.auth_context().get(_SAN, ())
    return any(name.decode("utf-8", "replace") in peers for name in names)


def _authorization(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8")).digest()
