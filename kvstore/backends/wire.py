"""Where commands go: to the one server, or to the node of a cluster that holds their key.

Both ways take commands with their key and give replies back by position. A cluster's answer that a
key is elsewhere (MOVED, ASK) is followed and remembered; a node that is down is an error of this
call, and the map is asked for again at the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Protocol

from redis.crc import key_slot

from kvstore.backends.base import OnBytes, Place
from kvstore.backends.pool import RespPool
from kvstore.backends.resp import Command, OnReply, Reply, ReplyError
from kvstore.buffers import Buffer, new_buffer
from kvstore.config import KvStoreConfig, StoreUrl
from kvstore.errors import StoreDown

_MAX_REDIRECTS = 5
_NOBODY = -1  # position of a reply that nobody waits for
_CHUNK = 64  # commands that are sorted by node at once while the caller still prepares others

Node = tuple[str, int]
"""Host and port."""


class Keyed(NamedTuple):
    """A command and the key that decides where it goes."""

    key: bytes
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a caller wants of a batch of commands.

    Attributes:
        on_reply: Called with the position of a command and its reply.
        depth: Commands in flight on one connection.
        place: Memory for bulk replies by position; fresh memory if None.
        on_bytes: Told how much of a long bulk reply has arrived.
    """

    on_reply: OnReply
    depth: int
    place: Place | None = None
    on_bytes: OnBytes | None = None


class Wire(Protocol):
    """Runs commands. Thread-safe."""

    def run(self, commands: Iterable[Keyed], job: Job) -> None:
        """Replies to keys of one slot come in their order, others in any. Raises StoreDown."""
        ...

    def close(self) -> None:
        """Drops all connections."""
        ...


class SingleWire:
    """One server."""

    def __init__(self, url: StoreUrl, config: KvStoreConfig) -> None:
        self._pool = RespPool(url, config)

    def run(self, commands: Iterable[Keyed], job: Job) -> None:
        """See `Wire`."""
        run_on(self._pool, (item.command for item in commands), None, job)

    def close(self) -> None:
        """See `Wire`."""
        self._pool.close()


class ClusterWire:
    """The primaries of a cluster, one after another.

    Args:
        url: Any node; scheme and credentials hold for all.
        config: Settings.
        load_slots: Asks the cluster which node holds each slot. Raises StoreDown.
    """

    def __init__(
        self, url: StoreUrl, config: KvStoreConfig, load_slots: Callable[[], Sequence[Node]]
    ) -> None:
        self._url = url
        self._config = config
        self._load_slots = load_slots
        self._lock = threading.Lock()
        self._slots: list[Node] = []
        self._pools: dict[Node, RespPool] = {}

    def run(self, commands: Iterable[Keyed], job: Job) -> None:
        """See `Wire`."""
        source = enumerate(commands)
        # A list is there as a whole: then every node gets all it has to do at once.
        size = len(commands) if isinstance(commands, Sequence) else _CHUNK
        while chunk := list(islice(source, size)):
            waiting: dict[_Target, list[tuple[int, Keyed]]] = {}
            for idx, item in chunk:
                waiting.setdefault(_Target(self._node_of(item.key)), []).append((idx, item))
            for _ in range(_MAX_REDIRECTS):
                if not waiting:
                    break
                waiting = self._run_round(waiting, job)
            if waiting:
                raise StoreDown(self._url.address, "the cluster sends a key from node to node")

    def close(self) -> None:
        """See `Wire`."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    def _run_round(
        self, waiting: dict[_Target, list[tuple[int, Keyed]]], job: Job
    ) -> dict[_Target, list[tuple[int, Keyed]]]:
        """Runs what waits for each node; what was sent elsewhere."""
        elsewhere: dict[_Target, list[tuple[int, Keyed]]] = {}
        for target, items in waiting.items():
            keys = dict(items)

            def take(
                idx: int,
                reply: Reply | ReplyError,
                node: Node = target.node,
                keys: dict[int, Keyed] = keys,
            ) -> None:
                other = _redirection(reply, node) if isinstance(reply, ReplyError) else None
                if other is None:
                    job.on_reply(idx, reply)
                    return
                elsewhere.setdefault(other, []).append((idx, keys[idx]))
                if not other.is_asked_only:
                    self._moved(keys[idx].key, other.node)

            commands: list[Command] = []
            positions: list[int] = []
            for idx, item in items:
                if target.is_asked_only:
                    commands.append((b"ASKING",))
                    positions.append(_NOBODY)
                commands.append(item.command)
                positions.append(idx)
            try:
                run_on(self._pool(target.node), commands, positions, replace(job, on_reply=take))
            except StoreDown:
                with self._lock:
                    self._slots = []
                raise
        return elsewhere

    def _node_of(self, key: bytes) -> Node:
        with self._lock:
            slots = self._slots
        if not slots:
            slots = list(self._load_slots())
            with self._lock:
                self._slots = slots
        return slots[key_slot(key)]

    def _moved(self, key: bytes, node: Node) -> None:
        with self._lock:
            if self._slots:
                self._slots[key_slot(key)] = node

    def _pool(self, node: Node) -> RespPool:
        with self._lock:
            if node not in self._pools:
                scheme = self._url.scheme.removesuffix("+cluster")
                url = replace(self._url, scheme=scheme, host=node[0], port=node[1])
                self._pools[node] = RespPool(url, self._config)
            return self._pools[node]


class _Target(NamedTuple):
    """A node, and whether it takes the command only after ASKING."""

    node: Node
    is_asked_only: bool = False


def run_on(
    pool: RespPool, commands: Iterable[Command], positions: Sequence[int] | None, job: Job
) -> None:
    """Runs commands on one server; reply i belongs to `positions[i]` (None: to i)."""
    if positions is None:
        pool.run(commands, job.on_reply, place=job.place, depth=job.depth, on_bytes=job.on_bytes)
        return

    def place(number: int, size: int) -> Buffer:
        idx = positions[number]
        return job.place(idx, size) if job.place and idx != _NOBODY else new_buffer(size)

    def on_reply(number: int, reply: Reply | ReplyError) -> None:
        idx = positions[number]
        if idx != _NOBODY:
            job.on_reply(idx, reply)

    pool.run(commands, on_reply, place=place, depth=job.depth, on_bytes=job.on_bytes)


def _redirection(error: ReplyError, node: Node) -> _Target | None:
    """Where an error reply sends a command; None if it does not."""
    words = str(error).split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    if not port.isdigit():
        return None
    # An empty host means the one that was asked.
    return _Target((host or node[0], int(port)), words[0] == "ASK")
