"""One HTTP call: bodies, events, comments, errors before and after the first byte, leaving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.http.errors import HttpError, Problem
from balancer.http.exchange import CallerGone, Exchange

PROBLEM = Problem(status=503, body={"error": {"code": "x"}}, headers={"retry-after": "1"})


class Wire:
    """Both directions of a connection."""

    def __init__(self, *incoming: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.incoming = list(incoming)
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        pairs = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        scope: dict[str, Any] = {"type": "http", "headers": pairs}
        self.exchange = Exchange(scope, self._receive, self._send, keep_alive_s=0.02)

    async def _receive(self) -> dict[str, Any]:
        if self.incoming:
            return self.incoming.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_a_body_in_parts() -> None:
    wire = Wire(part(b"ab", more=True), part(b"cd"))
    assert await wire.exchange.read(max_bytes=4, timeout_s=1.0) == b"abcd"


@pytest.mark.parametrize(
    "wire",
    [
        lambda: Wire(part(b"abc", more=True), part(b"de")),
        lambda: Wire(part(b"abcde"), headers={"content-length": "5"}),
    ],
)
async def test_a_body_that_is_too_long(wire: Any) -> None:
    with pytest.raises(HttpError, match="longer than 4 bytes") as caught:
        await wire().exchange.read(max_bytes=4, timeout_s=1.0)
    assert caught.value.status == 413


async def test_a_body_that_never_comes() -> None:
    with pytest.raises(HttpError, match="did not arrive") as caught:
        await Wire(part(b"a", more=True)).exchange.read(max_bytes=4, timeout_s=0.01)
    assert caught.value.status == 408
    wire = Wire(part(b"a", more=True))
    wire.left.set()
    with pytest.raises(CallerGone):
        await wire.exchange.read(max_bytes=4, timeout_s=1.0)


async def test_events_are_sent_one_by_one() -> None:
    wire = Wire()
    wire.exchange.answer_headers["x-request-id"] = "r"
    assert not wire.exchange.has_begun
    await wire.exchange.event({"a": "ä"})
    await wire.exchange.done()
    assert [message["type"] for message in wire.sent[:2]] == [
        "http.response.start",
        "http.response.body",
    ]
    assert wire.sent[1]["body"] == 'data: {"a":"ä"}\n\n'.encode()
    assert wire.sent[2]["body"] == b"data: [DONE]\n\n"
    assert wire.sent[3] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert wire.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-request-id": "r",
    }


async def test_an_error_before_and_after_the_first_event() -> None:
    wire = Wire()
    await wire.exchange.problem(PROBLEM)
    assert (wire.exchange.status, wire.headers["retry-after"]) == (503, "1")
    assert wire.body == b'{"error":{"code":"x"}}'
    wire = Wire()
    await wire.exchange.event({})
    await wire.exchange.problem(PROBLEM)
    assert wire.body == b'data: {}\n\ndata: {"error":{"code":"x"}}\n\n'  # and no [DONE]
    assert not wire.sent[-1]["more_body"]
    wire = Wire()
    await wire.exchange.json({})
    await wire.exchange.problem(PROBLEM)  # the answer is out: nothing more can be said
    assert wire.body == b"{}"


async def test_silence_is_filled_with_comments() -> None:
    wire = Wire()

    async def work() -> None:
        for _ in range(500):
            if wire.body.count(b": keep-alive\n\n") >= 2:
                break
            await asyncio.sleep(0.01)
        await wire.exchange.event({})
        await wire.exchange.done()

    await wire.exchange.while_connected(work, is_stream=True)
    assert wire.sent[0]["status"] == 200
    assert wire.body.endswith(b": keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n")


async def test_no_comments_in_an_answer_that_is_no_stream() -> None:
    wire = Wire()

    async def work() -> None:
        await asyncio.sleep(0.06)
        await wire.exchange.json({})

    await wire.exchange.while_connected(work, is_stream=False)
    assert wire.body == b"{}"


async def test_who_leaves_cancels_what_runs() -> None:
    wire = Wire()
    ends: list[str] = []

    async def work() -> None:
        try:
            wire.left.set()
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    with pytest.raises(CallerGone):
        await wire.exchange.while_connected(work, is_stream=True)
    assert ends == ["cancelled"]


async def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Wire().exchange.while_connected(work, is_stream=False)
