"""What a rank's store does reaches subscribers, at addresses of its own; off unless configured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import msgpack
import pytest

from kvstore import KvStore
from kvstore.backends.memory import MemoryBackend
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from runtime.serve import ListenError
from serving.events import EventsSettings, at_rank, publish_events
from tests.fakes.stores import FINGERPRINT, Prompt, small_config

LOCAL = "tcp://127.0.0.1:0"
PROMPT = Prompt("r", tuple(range(14)))


@pytest.fixture
def store() -> Iterator[KvStore]:
    clock = ManualClock()
    opened = KvStore(
        MemoryBackend(clock.now), small_config(), fingerprint=FINGERPRINT, clock=clock.now
    )
    yield opened
    opened.close()
    opened.close()


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://127.0.0.1:0", 3, "tcp://127.0.0.1:0"),
        ("tcp://127.0.0.1:*", 3, "tcp://127.0.0.1:*"),
        ("ipc:///run/kv", 0, "ipc:///run/kv"),
        ("ipc:///run/kv", 2, "ipc:///run/kv-2"),
    ],
)
def test_each_rank_has_addresses_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert at_rank(endpoint, rank) == expected


def test_nothing_is_bound_unless_an_address_is_configured(store: KvStore) -> None:
    publish_events(EventsSettings(), store, ManualClock(), Metrics())
    PROMPT.hand_over(store)
    assert store._listener.listener is None


def test_a_missing_library_is_named_with_the_way_out(
    store: KvStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvstore.events.publisher", raising=False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ListenError, match="install the extra `events`"):
        publish_events(EventsSettings(endpoint=LOCAL), store, ManualClock(), Metrics())


def test_an_address_that_cannot_be_bound_is_named(store: KvStore) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed (extra: events)")
    with pytest.raises(ListenError, match=r"tcp://203.0.113.7:1.*choose other addresses"):
        publish_events(
            EventsSettings(endpoint="tcp://203.0.113.7:1"), store, ManualClock(), Metrics()
        )


def test_default_ports_of_many_ranks_do_not_meet() -> None:
    settings = EventsSettings(endpoint="tcp://*:5557")
    ports = [
        at_rank(address, rank)
        for address in (settings.endpoint, settings.replay_endpoint)
        for rank in range(64)
    ]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("pair", [(5557, 5558), (5558, 5557), (5557, 5557)])
def test_a_replay_port_that_is_another_ranks_stream_is_named(
    store: KvStore, pair: tuple[int, int]
) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed (extra: events)")
    second = KvStore(
        MemoryBackend(lambda: 0.0),
        replace(store.config, owner_rank=1),
        fingerprint=FINGERPRINT,
        clock=lambda: 0.0,
    )
    settings = EventsSettings(
        endpoint=f"tcp://127.0.0.1:{pair[0]}", replay_endpoint=f"tcp://127.0.0.1:{pair[1]}"
    )
    with pytest.raises(ListenError, match=r"events\.replay_endpoint is .*as many ports"):
        publish_events(settings, second, ManualClock(), Metrics())


@pytest.mark.medium
def test_commits_are_published_until_the_store_is_closed(store: KvStore) -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra: events)")
    settings = EventsSettings(endpoint=LOCAL, replay_endpoint=LOCAL, token_ids=False)
    metrics = Metrics()
    publish_events(settings, store, ManualClock(), metrics)
    PROMPT.hand_over(store)
    publisher = store._listener.listener._end.__self__  # type: ignore[union-attr]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, 5000
        socket.connect(publisher.replay_endpoint)
        socket.send_multipart((b"", bytes(8)))
        _, number, batch = socket.recv_multipart()
    _, [event], rank = msgpack.unpackb(batch)
    assert (int.from_bytes(number, "big"), rank) == (0, store.config.owner_rank)
    assert (event["type"], len(event["block_hashes"])) == ("BlockStored", len(PROMPT.hashes))
    assert event["token_ids"] == []
    assert metrics.value("disagg_kv_events_published_total", type="BlockStored") == 1
    store.close()
    assert not publisher._thread.is_alive()
