"""The stream and its replay, as a consumer of vLLM's events talks to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra: events)")

from kvstore.events.form import AllBlocksCleared, BlockRemoved  # noqa: E402
from kvstore.events.publisher import END, ZmqPublisher  # noqa: E402

LOCAL = "tcp://127.0.0.1:*"

pytestmark = pytest.mark.medium


class Client:
    """Sockets that are closed at the end of the test."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.sockets: list[Any] = []

    def connect(self, kind: int, endpoint: str) -> Any:
        socket = self.context.socket(kind)
        self.sockets.append(socket)
        socket.rcvtimeo = 5000
        socket.connect(endpoint)
        return socket


@pytest.fixture
def client() -> Iterator[Client]:
    with zmq.Context() as context:
        client = Client(context)
        yield client
        for socket in client.sockets:
            socket.close(0)


@pytest.fixture
def publisher() -> Iterator[ZmqPublisher]:
    publisher = ZmqPublisher(
        endpoint=LOCAL, replay_endpoint=LOCAL, topic="kv", dp_rank=2, wall=lambda: 7.5, capacity=4
    )
    yield publisher
    publisher.close()
    publisher.close()


def replay(client: Client, publisher: ZmqPublisher, first: int) -> list[int]:
    socket = client.connect(zmq.DEALER, publisher.replay_endpoint)
    socket.send_multipart((b"", first.to_bytes(8, "big")))
    numbers = []
    for _ in range(100):
        _, number, batch = socket.recv_multipart()
        if number == END:
            assert batch == b""
            return numbers
        assert msgpack.unpackb(batch)[2] == 2
        numbers.append(int.from_bytes(number, "big"))
    raise AssertionError("a replay without an end")


def test_subscribers_get_topic_number_and_batch(client: Client, publisher: ZmqPublisher) -> None:
    socket = client.connect(zmq.SUB, publisher.endpoint)
    socket.subscribe(b"kv")
    # A subscription takes effect some time after it was made: publish until it does.
    for _ in range(500):
        publisher.publish([BlockRemoved(block_hashes=(7,))])
        if socket.poll(10):
            break
    topic, number, batch = socket.recv_multipart()
    assert topic == b"kv"
    ts, events, rank = msgpack.unpackb(batch)
    assert (ts, rank) == (7.5, 2)
    assert events[0]["block_hashes"] == [7]
    first = int.from_bytes(number, "big")
    wanted = publisher.publish([AllBlocksCleared()])
    numbers = [first]
    while numbers[-1] < wanted:
        numbers.append(int.from_bytes(socket.recv_multipart()[1], "big"))
    assert numbers == list(range(first, wanted + 1))


def test_missed_batches_are_replayed_as_far_as_they_are_kept(
    client: Client, publisher: ZmqPublisher
) -> None:
    assert replay(client, publisher, 0) == []
    for _ in range(6):
        publisher.publish([AllBlocksCleared()])
    assert replay(client, publisher, 4) == [4, 5]
    assert replay(client, publisher, 0) == [2, 3, 4, 5]
    assert replay(client, publisher, 9) == []


def test_nonsense_is_ignored_and_the_next_request_answered(
    client: Client, publisher: ZmqPublisher
) -> None:
    socket = client.connect(zmq.DEALER, publisher.replay_endpoint)
    for frames in ([b"x"], [b"", b"short"], [b"", b"12345678", b"more"]):
        socket.send_multipart(frames)
    publisher.publish([AllBlocksCleared()])
    assert replay(client, publisher, 0) == [0]


def test_an_address_that_is_taken_is_an_error_that_names_it(publisher: ZmqPublisher) -> None:
    with pytest.raises(OSError, match="cannot be published at tcp://127"):
        ZmqPublisher(endpoint=publisher.endpoint, replay_endpoint=LOCAL, wall=lambda: 0.0)


def test_after_the_end_batches_are_only_kept() -> None:
    publisher = ZmqPublisher(endpoint=LOCAL, replay_endpoint=LOCAL, wall=lambda: 0.0)
    publisher.close()
    assert publisher.publish([AllBlocksCleared()]) == 0
    assert publisher.ring.next_number == 1
