"""Where commands go: redirections of a cluster are followed, remembered and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from kvstore.backends.resp import Reply, ReplyError
from kvstore.backends.wire import ClusterWire, Job, Keyed, Node, _redirection
from kvstore.config import parse_url
from kvstore.errors import StoreDown
from tests.fakes.servers import raw_cluster
from tests.fakes.stores import RawRedis, small_config

KEYS = [b"k{%d}" % number for number in range(60)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RawRedis]:
    with raw_cluster() as raw:
        yield raw


@pytest.fixture
def first(cluster: RawRedis) -> Node:
    url = parse_url(cluster.url)
    return url.host, url.port


def wire_of(cluster: RawRedis, slots: list[Node]) -> ClusterWire:
    return ClusterWire(parse_url(cluster.url), small_config(), lambda: slots)


def run(wire: ClusterWire, commands: Any) -> dict[int, Reply | ReplyError]:
    replies: dict[int, Reply | ReplyError] = {}
    wire.run(commands, Job(on_reply=replies.__setitem__, depth=4))
    return replies


@pytest.mark.medium
def test_moved_keys_are_followed_and_remembered(cluster: RawRedis, first: Node) -> None:
    wire = wire_of(cluster, [first] * 16384)
    sets = (Keyed(key, (b"SET", key, b"v" + key)) for key in KEYS)
    assert set(run(wire, sets).values()) == {b"OK"}
    assert len({wire._node_of(key) for key in KEYS}) == 3
    places: dict[int, int] = {}

    def place(idx: int, size: int) -> bytearray:
        places[idx] = size
        return bytearray(size)

    found: dict[int, bytes] = {}
    wire.run(
        [Keyed(key, (b"GET", key)) for key in KEYS],
        Job(on_reply=lambda idx, reply: found.update({idx: bytes(reply)}), depth=4, place=place),  # type: ignore[arg-type]
    )
    assert [found[idx] for idx in range(len(KEYS))] == [b"v" + key for key in KEYS]
    assert places == {idx: len(key) + 1 for idx, key in enumerate(KEYS)}
    wire.close()


@pytest.mark.medium
def test_a_slot_on_its_way_is_asked_for(cluster: RawRedis, first: Node) -> None:
    """ASK: the key is with the importing node already, and its slot is not."""
    client = cluster.client
    key = next(key for key in KEYS if client.get_node_from_key(key).port == first[1])
    source = client.get_node_from_key(key)
    target = next(node for node in client.get_primaries() if node.port != source.port)
    slot = key_slot(key)

    def tell(node: Any, *words: object) -> None:
        client.execute_command("CLUSTER SETSLOT", slot, *words, target_nodes=node)

    def id_of(node: Any) -> str:
        found = client.execute_command("CLUSTER MYID", target_nodes=node)
        return found.decode() if isinstance(found, bytes) else str(found)

    source_id, target_id = id_of(source), id_of(target)
    client.delete(key)
    tell(target, "IMPORTING", source_id)
    tell(source, "MIGRATING", target_id)
    wire = wire_of(cluster, [first] * 16384)
    try:
        assert run(wire, [Keyed(key, (b"SET", key, b"1"))]) == {0: b"OK"}
        (reply,) = run(wire, [Keyed(key, (b"GET", key))]).values()
        assert reply == b"1"
        assert wire._node_of(key) == first  # asked once, not moved
    finally:
        wire.close()
        tell(target, "STABLE")
        tell(source, "STABLE")


@pytest.mark.medium
def test_a_node_that_is_down_is_an_error_and_the_map_is_asked_for_again(
    cluster: RawRedis, first: Node
) -> None:
    maps = [[("127.0.0.1", 1)] * 16384, [first] * 16384]
    wire = ClusterWire(parse_url(cluster.url), small_config(), lambda: maps.pop(0))
    with pytest.raises(StoreDown):
        run(wire, [Keyed(b"k", (b"GET", b"k"))])
    assert set(run(wire, [Keyed(b"k", (b"GET", b"k"))]).values()) == {None}
    wire.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("MOVED 3999 10.0.0.1:6381", (("10.0.0.1", 6381), False)),
        ("ASK 3999 10.0.0.1:6381", (("10.0.0.1", 6381), True)),
        ("MOVED 3999 :6381", (("here", 6381), False)),
        ("MOVED 3999 fe80::1:6381", (("fe80::1", 6381), False)),
        ("MOVED 3999 nowhere", None),
        ("ERR unknown", None),
    ],
)
def test_redirections_are_read(text: str, wanted: object) -> None:
    assert _redirection(ReplyError(text), ("here", 1)) == wanted


def test_a_key_that_is_sent_around_ends() -> None:
    class Round(ClusterWire):
        def _run_round(self, waiting: Any, job: Any) -> Any:
            return waiting

    wire = Round(parse_url("redis+cluster://h:1"), small_config(), lambda: [("h", 1)] * 16384)
    with pytest.raises(StoreDown, match="node to node"):
        run(wire, [Keyed(b"k", (b"GET", b"k"))])
