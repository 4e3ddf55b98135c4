"""Events over ZeroMQ as vLLM sends them: a PUB stream, and a ROUTER that replays what was missed.

    stream    topic | number, 8 bytes big-endian | batch
    replay    request:  "" | first number, 8 bytes big-endian
              answer:   "" | number | batch, for every batch that is kept; then "" | -1 | ""

A batch has its number before it is sent, so a reader that misses one sees the gap and asks. One
thread owns the sockets; publishing puts a batch into the ring and wakes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from kvstore.events.form import Event, encode_batch
from kvstore.events.ring import DEFAULT_CAPACITY, Ring

logger = logging.getLogger(__name__)

DEFAULT_ENDPOINT = "tcp://*:5557"
DEFAULT_REPLAY_ENDPOINT = "tcp://*:5657"  # far from the streams, which take a port per rank
END = (-1).to_bytes(8, "big", signed=True)
_MAX_QUEUED = 100_000  # messages a slow subscriber may fall behind before it loses some


class ZmqPublisher:
    """Publishes events until it is closed. Thread-safe.

    Args:
        endpoint: Where the stream is bound; port 0 in `tcp://127.0.0.1:0` picks one.
        replay_endpoint: Where replays are bound.
        topic: First frame of every message.
        dp_rank: Data-parallel rank in every batch.
        wall: Seconds since 1970.
        capacity: Batches kept for replay.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        endpoint: str = DEFAULT_ENDPOINT,
        replay_endpoint: str = DEFAULT_REPLAY_ENDPOINT,
        topic: str = "",
        dp_rank: int = 0,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self._wall = wall
        self._topic = topic.encode()
        self._dp_rank = dp_rank
        self.ring = Ring(capacity)
        self._context: Any = zmq.Context()
        self._stream = self._bind(zmq.PUB, endpoint)
        self._replay = self._bind(zmq.ROUTER, replay_endpoint)
        self.endpoint = str(self._stream.last_endpoint.decode())
        self.replay_endpoint = str(self._replay.last_endpoint.decode())
        wake = f"inproc://wake-{id(self)}"
        self._woken = self._bind(zmq.PAIR, wake)
        self._waker = self._context.socket(zmq.PAIR)
        self._waker.connect(wake)
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[Event]) -> int:
        """Numbers and sends a batch; its number. After `close` it is only kept."""
        with self._lock:
            number = self.ring.append(encode_batch(self._wall(), events, self._dp_rank))
            if not self._is_closed:
                self._waker.send(b"")
        return number

    def close(self) -> None:
        """Sends what is waiting and ends. Twice is harmless."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._waker.send(END)
        self._thread.join()
        self._waker.close()
        self._context.term()

    def _bind(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        socket.linger = 100  # milliseconds for what is still in its queue at the end
        socket.sndhwm = _MAX_QUEUED
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise OSError(f"KV events cannot be published at {endpoint}: {error}") from error
        return socket

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        sent = 0
        try:
            while True:
                ready = dict(poller.poll())
                is_last = self._woken in ready and self._woken.recv() == END
                for number, batch in self.ring.kept_since(sent):
                    self._stream.send_multipart((self._topic, number.to_bytes(8, "big"), batch))
                    sent = number + 1
                if self._replay in ready:
                    self._answer()
                if is_last:
                    return
        finally:
            for socket in (self._stream, self._replay, self._woken):
                socket.close()

    def _answer(self) -> None:
        frames = self._replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("a request for replay has %d frames, ignored", len(frames))
            return
        peer = frames[0]
        for number, batch in self.ring.kept_since(int.from_bytes(frames[2], "big")):
            self._replay.send_multipart((peer, b"", number.to_bytes(8, "big"), batch))
        self._replay.send_multipart((peer, b"", END, b""))
