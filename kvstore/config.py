"""Settings of the store library and the form of a store URL.

Plain data: the edge of a process builds them from its own settings. Every duration carries its unit
in its name. Cross-field rules are checked once, in `KvStoreConfig`, and name both fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kvstore.errors import StoreUrlError
from kvstore.headers import MAX_SEGMENT_BYTES
from runtime.address import address_of

SCHEMES = (
    "memory",
    "unix",
    "file",
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)
_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379
_FILE_SETTINGS = (
    "password_file",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "integrity_key_file",
)
MAX_PENDING_MS = 60_000
"""Longest life of what is not committed. A tail that lives longer was committed once: this is how
the janitor tells one whose lease and body were evicted from one whose commit is on its way."""
INTEGRITIES = ("xxh3", "blake3-keyed")


_WAY_OUT = (
    "write / ? # @ [ ] in a password as %2F %3F %23 %40 %5B %5D, or name a file by ?password_file="
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStoreConfig:
    """How one process uses the store.

    Raises:
        ValueError: A value is out of its range or two values contradict each other.
    """

    block_tokens: int
    """Tokens of one block; part of the layout fingerprint."""
    owner: str = "unnamed"
    """Who holds leases and writes bodies: the member id of the process."""
    owner_rank: int = 0
    """dp rank of the writer, for the ticket body."""
    segment_bytes: int = 1 << 20
    """Payloads above this are split into segments of this size."""
    cache_ttl_s: float = 3600.0
    """Life of a shared block after its last release or use."""
    refresh_s: float = 60.0
    """A block in the cache class is refreshed at most once in this time."""
    handoff_ttl_s: float = 600.0
    """Life of blocks and of a ticket whose hand-off was not released yet."""
    discard_after_s: float = 30.0
    """Life of writes that are not committed: tails, and segments without an index; at most 60."""
    claim_ttl_s: float = 60.0
    """How long a committed hand-off waits for its first reader."""
    lease_s: float = 10.0
    """Life of a reader's lease; renewed at a third."""
    timeout_s: float = 5.0
    """Longest wait for one answer of the server, connecting included."""
    max_connections: int = 8
    """Data connections kept open to one server; more are opened and closed under load."""
    pipeline_depth: int = 16
    """Segments in flight on one connection."""

    password_file: str = ""
    """File with the password of the server; goes before the one in the URL."""
    tls_ca_file: str = ""
    """PEM file of the authority that signed the server's certificate; empty: the system's."""
    tls_cert_file: str = ""
    """PEM file of our certificate, for servers that ask for one."""
    tls_key_file: str = ""
    """PEM file of its key; empty: it is in `tls_cert_file`."""

    integrity: str = "xxh3"
    """`xxh3` finds accidents; `blake3-keyed` also finds whoever can write to the store."""
    integrity_key_file: str = ""
    """File with the secret of `blake3-keyed`, at least 32 bytes."""

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens is {self.block_tokens}, at least 1 is needed")
        if not 1 <= self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}, allowed are 1..{MAX_SEGMENT_BYTES}"
            )
        for name in ("cache_ttl_s", "handoff_ttl_s", "discard_after_s", "claim_ttl_s", "lease_s"):
            value: float = getattr(self, name)
            if not 0.001 <= value <= 86400.0 * 30:
                raise ValueError(f"{name} is {value}, allowed are 0.001 to 2592000 seconds")
        if self.discard_after_s * 1000 > MAX_PENDING_MS:
            raise ValueError(
                f"discard_after_s is {self.discard_after_s}, at most {MAX_PENDING_MS // 1000} is "
                "allowed: janitors take a tail that lives longer for one that was committed"
            )
        if self.lease_s > self.handoff_ttl_s or self.claim_ttl_s > self.handoff_ttl_s:
            raise ValueError(
                f"lease_s ({self.lease_s}) and claim_ttl_s ({self.claim_ttl_s}) must not exceed "
                f"handoff_ttl_s ({self.handoff_ttl_s}): raise handoff_ttl_s or lower the other"
            )
        if self.integrity not in INTEGRITIES:
            raise ValueError(
                f"integrity is {self.integrity!r}, allowed are {', '.join(INTEGRITIES)}"
            )
        if (self.integrity == "blake3-keyed") != bool(self.integrity_key_file):
            raise ValueError(
                f"integrity is {self.integrity!r} and integrity_key_file is "
                f"{self.integrity_key_file!r}: blake3-keyed needs a key file, xxh3 takes none"
            )
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}, it must be above 0")
        if self.max_connections < 1 or self.pipeline_depth < 1:
            raise ValueError(
                f"max_connections ({self.max_connections}) and pipeline_depth "
                f"({self.pipeline_depth}) must be at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """A store URL taken apart. `address` is fit for messages: it holds no secret."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinels: tuple[tuple[str, int], ...] = ()
    """Host and port of every sentinel; they know where the primary is."""
    service: str = ""
    """Name under which the sentinels watch the primary."""
    files: tuple[tuple[str, str], ...] = ()
    """Settings of `KvStoreConfig` that name files, from the query of the URL."""

    @property
    def address(self) -> str:
        """Where the store is, without credentials."""
        if self.scheme == "memory":
            return "memory"
        if self.scheme in ("unix", "file"):
            return self.path
        if self.sentinels:
            nodes = ",".join(address_of(host, port) for host, port in self.sentinels)
            return f"{self.service} by {nodes}"
        return address_of(self.host, self.port)


def parse_url(url: str) -> StoreUrl:
    """Takes a store URL apart.

    Forms: `memory://`, `unix:///path/to/socket[?db=N]`, `file:///directory`,
    `redis://[user:password@]host[:port][/N]`, `rediss://...` (TLS), `redis+cluster://...` or
    `rediss+cluster://...` with any node of a cluster, and
    `redis+sentinel://[user:password@]host[:port][,host[:port]...]/SERVICE[/N]` (or `rediss+...`)
    with the sentinels that watch the primary of that name.

    Every form takes `?password_file=PATH`, `tls_ca_file`, `tls_cert_file`, `tls_key_file` and
    `integrity_key_file`, joined by `&`, so that one URL says all that a part has to know.

    Raises:
        StoreUrlError: Unknown scheme, missing host or path, bad port or database.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may show the password
        raise StoreUrlError(
            f"store URL has a host that is none, or brackets in the wrong place; {_WAY_OUT}"
        ) from None
    if parts.scheme not in SCHEMES:
        raise StoreUrlError(
            f"store URL has scheme {parts.scheme!r}, known are {', '.join(SCHEMES)}; "
            "for example unix:///run/valkey.sock or redis://127.0.0.1:6379"
        )
    _require_whole(url, parts)
    files, number = _query(parts.query)
    if parts.scheme == "memory":
        return StoreUrl(scheme="memory", files=files)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise StoreUrlError("store URL file: needs an absolute path; write file:///directory")
        return StoreUrl(scheme="file", path=unquote(parts.path), files=files)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.scheme == "unix":
        if not parts.path or parts.path == "/":
            raise StoreUrlError("store URL unix:// has no path; write unix:///path/to/socket")
        return StoreUrl(
            scheme="unix",
            path=unquote(parts.path),
            database=_database(number),
            username=username,
            password=password,
            files=files,
        )
    if parts.scheme.endswith("+sentinel"):
        return _sentinel_url(parts, number, files)
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError as error:
        raise StoreUrlError(f"store URL has a bad port: {error}") from None
    if not parts.hostname:
        raise StoreUrlError(f"store URL {parts.scheme}:// has no host; write redis://host:port")
    return StoreUrl(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        database=_database(parts.path.strip("/") or number),
        username=username,
        password=password,
        files=files,
    )


def _require_whole(url: str, parts: SplitResult) -> None:
    """Refuses a URL whose parts are not what they seem, before a message shows one of them.

    A password with a `/`, `?` or `#` in it ends the host there, and the rest of it would stand in
    messages as a path or a database.
    """
    if "#" in url:
        raise StoreUrlError(f"store URL has a # in it, which means nothing here; {_WAY_OUT}")
    has_server = parts.scheme not in ("memory", "file", "unix")
    if has_server and "@" in parts.path + parts.query.partition("=")[0]:
        raise StoreUrlError(f"store URL has an @ behind its host; {_WAY_OUT}")


def with_files(config: KvStoreConfig, url: StoreUrl) -> KvStoreConfig:
    """The settings with the files that a URL names.

    Raises:
        StoreUrlError: They contradict each other.
    """
    files: dict[str, str] = dict(url.files)
    if "integrity_key_file" in files:
        files["integrity"] = "blake3-keyed"
    try:
        return replace(config, **files)  # type: ignore[arg-type]
    except ValueError as error:
        raise StoreUrlError(f"store URL: {error}") from error


def _sentinel_url(parts: SplitResult, number: str, files: tuple[tuple[str, str], ...]) -> StoreUrl:
    """The form with several hosts and a service name."""
    form = "write redis+sentinel://host:26379,host:26379/SERVICE"
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise StoreUrlError(f"store URL {parts.scheme}:// names no service; {form}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    sentinels = []
    for node in hosts.split(","):
        try:
            split = urlsplit(f"//{node}")
            host, port = split.hostname, split.port or _SENTINEL_PORT
        except ValueError as error:
            raise StoreUrlError(f"store URL has sentinel {node!r}: {error}; {form}") from None
        if not host:
            raise StoreUrlError(f"store URL {parts.scheme}:// has an empty host; {form}")
        sentinels.append((host, port))
    return StoreUrl(
        scheme=parts.scheme,
        database=_database(database or number),
        username=unquote(username),
        password=unquote(password),
        sentinels=tuple(sentinels),
        service=unquote(service),
        files=files,
    )


def _query(query: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Files named in a query, and the number of the database in it."""
    files: list[tuple[str, str]] = []
    number = "0"
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "db":
            number = value
        elif name in _FILE_SETTINGS and value:
            files.append((name, value))
        else:
            known = ", ".join(("db", *_FILE_SETTINGS))  # the value may be a secret
            what = "without a value" if name in _FILE_SETTINGS else "which is unknown"
            raise StoreUrlError(f"store URL says {name}=, {what}; known are {known}")
    return tuple(files), number


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise StoreUrlError(f"store URL has database {text!r}, a small number is needed")
    return int(text)
