"""The store in a Redis or Valkey server (one node): block bytes over RESP, scripts over redis-py.

Existence, values and their lives go through `resp.RespPool`; the atomic steps are the scripts in
`kvstore/scripts`, sent by digest and reloaded when the server lost them. Each script touches one
slot and declares all its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvstore.backends.base import (
    Allocate,
    BackendStatistics,
    HandoffKeys,
    LeaseEntry,
    LeaseGrant,
    LeaseOutcome,
    LeaseReply,
    OnBytes,
    OnValue,
    PutItem,
)
from kvstore.backends.pool import RespPool
from kvstore.backends.resp import Command, Reply, ReplyError, encode_keys
from kvstore.config import KvStoreConfig, StoreUrl
from kvstore.errors import KvStoreError, StoreDown, StoreFull, StoreRefused
from kvstore.keys import HEADER_BYTES, LEASE_PREFIX, handoff_id_of_key

_SMALL_DEPTH = 1024  # commands in flight when requests and replies are short
_GROUP = 64  # keys of one EXISTS; in one slot or on one node
_SCAN_COUNT = 2000
_SCRIPTS = (
    "abort",
    "attempt_fence",
    "commit",
    "index_cad",
    "index_put",
    "lease_acquire",
    "lease_expire",
    "lease_release",
    "lease_renew",
)
_TRANSIENT = ("LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "BUSY")


def load_script(name: str) -> str:
    """Source of one of the scripts."""
    return (files("kvstore") / "scripts" / f"{name}.lua").read_text("utf-8")


class RedisBackend:
    """Both ports over one server; thread-safe."""

    def __init__(self, url: StoreUrl, config: KvStoreConfig) -> None:
        self._address = url.address
        self._depth = config.pipeline_depth
        self._pool = RespPool(url, timeout_s=config.timeout_s, max_idle=config.max_connections)
        self._client = _control_client(url, config)
        self._scripts = {name: self._client.register_script(load_script(name)) for name in _SCRIPTS}

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        if extend_ms:
            life = b"%d" % extend_ms
            self._run([(b"PEXPIRE", key, life, b"GT") for key in keys], _SMALL_DEPTH)
        # EXISTS counts: a group that is there as a whole, or not at all, needs one answer.
        groups = [keys[start : start + _GROUP] for start in range(0, len(keys), _GROUP)]
        counts = self._run([encode_keys(b"EXISTS", group) for group in groups], _SMALL_DEPTH)
        mixed = [
            key
            for group, count in zip(groups, counts, strict=True)
            if count not in (0, len(group))
            for key in group
        ]
        single = iter(self._run([(b"EXISTS", key) for key in mixed], _SMALL_DEPTH))
        present: list[bool] = []
        for group, count in zip(groups, counts, strict=True):
            if count in (0, len(group)):
                present += [count != 0] * len(group)
            else:
                present += [next(single) == 1 for _ in group]
        return present

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """See `BlockStore`."""
        keys: list[bytes] = []

        def commands() -> Iterator[Command]:
            for item in items:
                keys.append(item.key)
                life = b"%d" % item.ttl_ms
                yield (b"SET", item.key, (item.header, item.payload), b"NX", b"PX", life)

        replies = self._run(commands(), self._depth)
        heads: list[bytes | None] = [None] * len(keys)
        taken = [idx for idx, reply in enumerate(replies) if reply is None]
        stop = b"%d" % (HEADER_BYTES - 1)
        found = self._run([(b"GETRANGE", keys[idx], b"0", stop) for idx in taken], _SMALL_DEPTH)
        for idx, head in zip(taken, found, strict=True):
            # Empty when the value went away in between; the caller then writes it again.
            heads[idx] = bytes(head) if isinstance(head, memoryview) else b""
        return heads

    def put_index(
        self, key: bytes, segments: Sequence[bytes], expected: bytes, value: bytes, ttl_ms: int
    ) -> bool:
        """See `BlockStore`."""
        return bool(self._script("index_put", [key, *segments], [expected, value, ttl_ms]))

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        allocate: Allocate,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """See `BlockStore`."""
        if not keys:
            return
        errors: list[ReplyError] = []

        def on_reply(idx: int, reply: Reply | ReplyError) -> None:
            if isinstance(reply, ReplyError):
                errors.append(reply)
            elif not errors:
                on_value(idx, reply if isinstance(reply, memoryview) else None)

        commands: list[Command] = [encode_keys(b"GET", (key,)) for key in keys]
        self._pool.run(commands, on_reply, allocate=allocate, depth=self._depth, on_bytes=on_bytes)
        if errors:
            raise self._refusal(str(errors[0]))

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """See `BlockStore`."""
        return bool(self._script("index_cad", [key], [header]))

    def statistics(self) -> BackendStatistics:
        """See `BlockStore`."""
        with self._translated():
            memory: Mapping[str, Any] = self._client.info("memory")
            num_keys = int(self._client.dbsize())
        return BackendStatistics(
            address=self._address,
            used_bytes=int(memory.get("used_memory", 0)),
            max_bytes=int(memory.get("maxmemory", 0)),
            num_keys=num_keys,
        )

    def close(self) -> None:
        """See `BlockStore`."""
        self._pool.close()
        self._client.close()

    # LeaseStore

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int:
        """See `LeaseStore`."""
        return int(self._script("attempt_fence", [key], [attempt, ttl_ms]))

    def commit(self, keys: HandoffKeys, body: bytes, grant: LeaseGrant) -> LeaseReply:
        """See `LeaseStore`."""
        arguments: list[bytes | str | int] = [
            body,
            grant.ttl_ms,
            grant.lease_ms,
            grant.owner,
            grant.request_id,
            grant.attempt,
            grant.num_bytes,
        ]
        reply = self._script("commit", [keys.body, keys.lease, *keys.tails], arguments)
        if _outcome(reply) is LeaseOutcome.INCOMPLETE:
            return LeaseReply(outcome=LeaseOutcome.INCOMPLETE, part_idx=int(reply[1]))
        return _lease_reply(reply)

    def acquire(self, keys: HandoffKeys, grant: LeaseGrant, fencing_token: int) -> LeaseReply:
        """See `LeaseStore`."""
        arguments: list[bytes | str | int] = [
            grant.owner,
            grant.attempt,
            fencing_token,
            grant.lease_ms,
            grant.ttl_ms,
        ]
        return _lease_reply(self._script("lease_acquire", [keys.body, keys.lease], arguments))

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        """See `LeaseStore`."""
        return _lease_reply(
            self._script("lease_renew", [keys.body, keys.lease], [fencing_token, lease_ms])
        )

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        """See `LeaseStore`."""
        names = [keys.body, keys.lease, *keys.tails]
        if fencing_token is None:
            return _lease_reply(self._script("abort", names, []))
        return _lease_reply(self._script("lease_release", names, [fencing_token]))

    def expire(self, keys: HandoffKeys) -> bool:
        """See `LeaseStore`."""
        return bool(self._script("lease_expire", [keys.body, keys.lease, *keys.tails], []))

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`."""
        with self._translated():
            leases = set(self._scan(b"dkv1:l:*"))
            bodies = {handoff_id_of_key(key) for key in self._scan(b"dkv1:h:*")}
            tails: dict[str, list[bytes]] = {}
            for key in self._scan(b"dkv1:*:t:*"):
                tails.setdefault(handoff_id_of_key(key), []).append(key)
            seconds, microseconds = self._client.time()
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
            fields = {handoff_id_of_key(key): self._hash(key) for key in leases}
        return [
            _entry(name, fields.get(name, {}), name in bodies, tails.get(name, []), now_ms)
            for name in sorted(bodies | set(tails) | set(fields))
        ]

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        with self._translated():
            # Keys of ours hold no character that means something in a pattern.
            yield from self._scan(prefix + b"*")

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`."""
        values = [key for key in keys if not key.startswith(LEASE_PREFIX)]
        replies = self._run([encode_keys(b"STRLEN", (key,)) for key in values], _SMALL_DEPTH)
        found = dict(zip(values, replies, strict=True))
        return [size if isinstance(size := found.get(key), int) else 0 for key in keys]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        replies = self._run([encode_keys(b"UNLINK", (key,)) for key in keys], _SMALL_DEPTH)
        return sum(reply for reply in replies if isinstance(reply, int))

    # Helpers

    def _run(self, commands: Iterable[Command], depth: int) -> list[Reply]:
        """Replies of all commands; raises the first error reply once all were read."""
        if commands == []:
            return []
        replies: list[Reply] = []
        errors: list[ReplyError] = []

        def on_reply(_idx: int, reply: Reply | ReplyError) -> None:
            if isinstance(reply, ReplyError):
                errors.append(reply)
            else:
                replies.append(reply)

        self._pool.run(commands, on_reply, depth=depth)
        if errors:
            raise self._refusal(str(errors[0]))
        return replies

    # Any: what a script returns depends on the script.
    def _script(
        self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]
    ) -> Any:
        with self._translated():
            return self._scripts[name](keys=list(keys), args=list(arguments))

    def _scan(self, pattern: bytes) -> Iterator[bytes]:
        yield from self._client.scan_iter(match=pattern, count=_SCAN_COUNT)

    def _hash(self, key: bytes) -> Mapping[bytes, bytes]:
        # The client is opened without decoding; its types allow for both.
        return cast("Mapping[bytes, bytes]", self._client.hgetall(key))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise StoreDown(self._address, str(error)) from error
        except redis.RedisError as error:
            raise self._refusal(str(error), type(error)) from error

    def _refusal(self, text: str, kind: type[Exception] | None = None) -> KvStoreError:
        if text.startswith("OOM") or kind is redis.OutOfMemoryError:
            return StoreFull(self._address, text)
        if text.startswith(_TRANSIENT):
            return StoreDown(self._address, text)
        return StoreRefused(self._address, text)


def _control_client(url: StoreUrl, config: KvStoreConfig) -> redis.Redis:
    """Client for scripts and administration; its own pool, so that block replies never delay it."""
    options: dict[str, Any] = {
        "db": url.database,
        "username": url.username or None,
        "password": url.password or None,
        "socket_timeout": config.timeout_s,
        "socket_connect_timeout": config.timeout_s,
        "decode_responses": False,
        # One more attempt: a kept connection may have died with a restarted server.
        "retry": Retry(NoBackoff(), 1),
        "retry_on_error": [redis.ConnectionError],
    }
    if url.scheme == "unix":
        return redis.Redis(unix_socket_path=url.path, **options)
    return redis.Redis(host=url.host, port=url.port, ssl=url.scheme == "rediss", **options)


def _outcome(reply: Sequence[Any]) -> LeaseOutcome:
    name = reply[0]
    return LeaseOutcome(name.decode() if isinstance(name, bytes) else name)


def _lease_reply(reply: Sequence[Any]) -> LeaseReply:
    return LeaseReply(
        outcome=_outcome(reply), fencing_token=int(reply[1]), remaining_ms=int(reply[2])
    )


def _entry(
    handoff_id: str,
    fields: Mapping[bytes, bytes],
    has_body: bool,
    tails: list[bytes],
    now_ms: int,
) -> LeaseEntry:
    def number(name: bytes) -> int:
        return int(fields.get(name, b"0"))

    return LeaseEntry(
        handoff_id=handoff_id,
        has_lease=bool(fields),
        has_body=has_body,
        tails=tuple(sorted(tails)),
        owner=fields.get(b"owner", b"").decode("utf-8", "replace"),
        state=fields.get(b"state", b"").decode("ascii", "replace"),
        request_id=fields.get(b"request_id", b"").decode("utf-8", "replace"),
        attempt=number(b"attempt"),
        fencing_token=number(b"fence"),
        num_bytes=number(b"num_bytes"),
        age_ms=now_ms - number(b"created_ms") if fields else 0,
        remaining_ms=number(b"deadline_ms") - now_ms if fields else 0,
    )
