"""The store in Redis or Valkey, one server, a watched primary or a cluster.

Bytes go over RESP, scripts over redis-py.

Existence, values and their lives go through a `Wire`; the atomic steps are the scripts in
`kvstore/scripts`, sent by digest and reloaded when the server lost them. Each script touches one
slot and declares all its keys.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, cast

import redis
from redis.cluster import RedisCluster
from redis.commands.core import Script

from kvstore.backends.base import (
    BackendStatistics,
    Facts,
    HandoffKeys,
    LeaseEntry,
    LeaseGrant,
    LeaseOutcome,
    LeaseReply,
    OnBytes,
    OnValue,
    Place,
    PutItem,
    leaseless,
)
from kvstore.backends.control import (
    ClusterControl,
    open_control,
    refusal,
    require_no_cluster,
    translated,
)
from kvstore.backends.resp import Reply, ReplyError, encode_keys, encode_set
from kvstore.backends.sentinel import PrimaryFinder, SentinelWire
from kvstore.backends.wire import ClusterWire, Job, Keyed, SingleWire, Wire
from kvstore.config import MAX_PENDING_MS, KvStoreConfig, StoreUrl
from kvstore.headers import HEADER_BYTES
from kvstore.keys import LEASE_PREFIX, body_key, handoff_id_of_key, lease_key

_SMALL_DEPTH = 1024  # commands in flight when requests and replies are short
_GROUP = 64  # keys of one EXISTS; in one slot or on one node
_SCAN_COUNT = 2000
_SCRIPTS = (
    "abort",
    "attempt_fence",
    "commit",
    "handoff_remains",
    "index_cad",
    "index_put",
    "lease_acquire",
    "lease_expire",
    "lease_release",
    "lease_renew",
)


def load_script(name: str) -> str:
    """Source of one of the scripts."""
    return (files("kvstore") / "scripts" / f"{name}.lua").read_text("utf-8")


class RedisBackend:
    """All ports over a server or a cluster; thread-safe."""

    def __init__(self, url: StoreUrl, config: KvStoreConfig) -> None:
        self._address = url.address
        self._depth = config.pipeline_depth
        self._url, self._config = url, config
        self._is_cluster = url.scheme.endswith("+cluster")
        self._cluster = ClusterControl(url, config)
        self._primary = PrimaryFinder(url, config) if url.sentinels else None
        self._wire: Wire
        if self._is_cluster:
            self._wire = ClusterWire(url, config, self._cluster.slots)
        elif self._primary is not None:
            self._wire = SentinelWire(url, config, self._primary)
        else:
            self._wire = SingleWire(url, config)
        self._lock = threading.Lock()
        self._opened: redis.Redis | None = None
        self._scripts: dict[str, Script] = {}

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        if extend_ms:
            life = b"%d" % extend_ms
            self._run([Keyed(key, (b"PEXPIRE", key, life, b"GT")) for key in keys], _SMALL_DEPTH)
        # EXISTS counts: a group that is there as a whole, or not at all, needs one answer.
        # In a cluster the keys of a command share a slot, and those of a chain do not.
        size = 1 if self._is_cluster else _GROUP
        groups = [keys[start : start + size] for start in range(0, len(keys), size)]
        counts = self._run(
            [Keyed(group[0], encode_keys(b"EXISTS", group)) for group in groups], _SMALL_DEPTH
        )
        mixed = [
            key
            for group, count in zip(groups, counts, strict=True)
            if count not in (0, len(group))
            for key in group
        ]
        single = iter(self._run([Keyed(key, (b"EXISTS", key)) for key in mixed], _SMALL_DEPTH))
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

        def commands() -> Iterator[Keyed]:
            for item in items:
                keys.append(item.key)
                parts = (item.header, item.payload, item.trailer)
                yield Keyed(item.key, encode_set(item.key, parts, item.ttl_ms))

        replies = self._run(commands(), self._depth)
        heads: list[bytes | None] = [None] * len(keys)
        taken = [idx for idx, reply in enumerate(replies) if reply is None]
        stop = b"%d" % (HEADER_BYTES - 1)
        found = self._run(
            [Keyed(keys[idx], (b"GETRANGE", keys[idx], b"0", stop)) for idx in taken], _SMALL_DEPTH
        )
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
        place: Place | None = None,
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

        self._wire.run(
            [Keyed(key, encode_keys(b"GET", (key,))) for key in keys],
            Job(on_reply=on_reply, depth=self._depth, place=place, on_bytes=on_bytes),
        )
        if errors:
            raise refusal(self._address, str(errors[0]))

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """See `BlockStore`."""
        return bool(self._script("index_cad", [key], [header]))

    def statistics(self) -> BackendStatistics:
        """See `BlockStore`."""
        with self._translated():
            memories = self._of_nodes("INFO", "memory", "stats")
            num_keys = sum(map(int, self._of_nodes("DBSIZE")))
        limits = [int(memory.get("maxmemory", 0)) for memory in memories]
        return BackendStatistics(
            address=self._address,
            used_bytes=sum(int(memory.get("used_memory", 0)) for memory in memories),
            # A cluster with a node without a limit has none.
            max_bytes=sum(limits) if all(limits) else 0,
            num_keys=num_keys,
            evicts=all(
                memory.get("maxmemory_policy", "noeviction") != "noeviction" for memory in memories
            ),
            evicted_keys=sum(int(memory.get("evicted_keys", 0)) for memory in memories),
            expired_keys=sum(int(memory.get("expired_keys", 0)) for memory in memories),
        )

    def close(self) -> None:
        """See `BlockStore`."""
        self._wire.close()
        self._cluster.close()
        if self._primary is not None:
            self._primary.close()
        if self._opened is not None:
            self._opened.close()

    # LeaseStore

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int | None:
        """See `LeaseStore`."""
        newest = int(self._script("attempt_fence", [key], [attempt, ttl_ms]))
        return None if newest < 0 else newest

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
        names = [keys.body, keys.lease, *keys.tails]
        return bool(self._script("lease_expire", names, [MAX_PENDING_MS]))

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`."""
        with self._translated():
            leases = set(self._scan(b"dkv1:l:*"))
            bodies = {handoff_id_of_key(key) for key in self._scan(b"dkv1:h:*")}
            tails: dict[str, list[bytes]] = {}
            for key in self._scan(b"dkv1:*:t:*"):
                tails.setdefault(handoff_id_of_key(key), []).append(key)
            seconds, microseconds = self._of_nodes("TIME")[0]
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
            fields = {handoff_id_of_key(key): self._hash(key) for key in leases}
        entries = [
            _entry(name, found, name in bodies, tails.get(name, []), now_ms)
            if (found := fields.get(name, {}))
            else self._remains(name, tails.get(name, []))
            for name in sorted(bodies | set(tails) | set(fields))
        ]
        return [entry for entry in entries if entry is not None]

    def _remains(self, handoff_id: str, tails: list[bytes]) -> LeaseEntry | None:
        """A hand-off whose lease was not found, looked at once more; None if it is gone.

        The scans of an audit are no snapshot: a commit or release between them looks the same.
        """
        lease, body = lease_key(handoff_id), body_key(handoff_id)
        has_body, has_lease, num_bytes, life_ms = self._script(
            "handoff_remains", [body, lease, *tails], []
        )
        if has_lease:
            seconds, microseconds = self._of_nodes("TIME")[0]
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
            return _entry(handoff_id, self._hash(lease), bool(has_body), tails, now_ms)
        if not has_body and not num_bytes:
            return None
        return leaseless(
            handoff_id, has_body=bool(has_body), tails=tails, num_bytes=num_bytes, life_ms=life_ms
        )

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        with self._translated():
            # Keys of ours hold no character that means something in a pattern.
            yield from self._scan(prefix + b"*")

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`."""
        values = [key for key in keys if not key.startswith(LEASE_PREFIX)]
        replies = self._run([Keyed(key, (b"STRLEN", key)) for key in values], _SMALL_DEPTH)
        found = dict(zip(values, replies, strict=True))
        return [size if isinstance(size := found.get(key), int) else 0 for key in keys]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        replies = self._run([Keyed(key, (b"UNLINK", key)) for key in keys], _SMALL_DEPTH)
        return sum(reply for reply in replies if isinstance(reply, int))

    def facts(self) -> list[Facts]:
        """See `KeyStore`."""
        with self._translated():
            return self._of_nodes("INFO")

    # Helpers

    def _run(self, commands: Iterable[Keyed], depth: int) -> list[Reply]:
        """Replies of all commands; raises the first error reply once all were read."""
        if commands == []:
            return []
        replies: dict[int, Reply] = {}
        errors: list[ReplyError] = []

        def on_reply(idx: int, reply: Reply | ReplyError) -> None:
            if isinstance(reply, ReplyError):
                errors.append(reply)
            else:
                replies[idx] = reply

        self._wire.run(commands, Job(on_reply=on_reply, depth=depth))
        if errors:
            raise refusal(self._address, str(errors[0]))
        return [replies[idx] for idx in range(len(replies))]

    @property
    def _client(self) -> redis.Redis:
        """The control client, made at its first use; its scripts with it."""
        with self._lock:
            if self._opened is None:
                # A client of a cluster takes the same calls; redis-py gives them no common type.
                client = (
                    cast("redis.Redis", self._cluster.client())
                    if self._is_cluster
                    else open_control(self._url, self._config, self._primary)
                )
                if not self._is_cluster:
                    require_no_cluster(client, self._address)
                self._scripts = {
                    name: client.register_script(load_script(name)) for name in _SCRIPTS
                }
                self._opened = client
            return self._opened

    # Any: as the command.
    def _of_nodes(self, *command: str) -> list[Any]:
        """Replies of the server, or of each primary of the cluster."""
        client = self._client
        if not self._is_cluster:
            return [client.execute_command(*command)]  # type: ignore[no-untyped-call]
        found = client.execute_command(  # type: ignore[no-untyped-call]
            *command, target_nodes=RedisCluster.PRIMARIES
        )
        return list(found.values()) if isinstance(found, dict) else [found]

    # Any: what a script returns depends on the script.
    def _script(
        self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]
    ) -> Any:
        with self._translated():
            client = self._client
            return self._scripts[name](keys=list(keys), args=list(arguments), client=client)

    def _scan(self, pattern: bytes) -> Iterator[bytes]:
        yield from self._client.scan_iter(match=pattern, count=_SCAN_COUNT)

    def _hash(self, key: bytes) -> Mapping[bytes, bytes]:
        # The client is opened without decoding; its types allow for both.
        return cast("Mapping[bytes, bytes]", self._client.hgetall(key))

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._address)


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
        age_ms=now_ms - number(b"created_ms") if fields else None,
        remaining_ms=number(b"deadline_ms") - now_ms if fields else 0,
    )
