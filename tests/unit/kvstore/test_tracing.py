"""Spans of calls to a store: what they say of it, and what they cover."""

import time

import pytest

from kvstore.config import parse_url
from kvstore.tracing import StoreSpans
from runtime.telemetry import NO_SPAN
from tests.fakes.spans import facts, recorded, served


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://", {"db.system.name": "memory"}),
        ("file:///tmp/kv", {"db.system.name": "files"}),
        (
            "redis://h:6380/0",
            {"db.system.name": "redis", "server.address": "h", "server.port": 6380},
        ),
        (
            "unix:///run/kv.sock",
            {"db.system.name": "redis", "server.address": "/run/kv.sock"},
        ),
    ],
)
def test_the_server_is_named(url: str, said: dict[str, object]) -> None:
    found = recorded()
    with served(found), StoreSpans(parse_url(url)).begin("kvstore.get", "GET"):
        pass
    assert facts(found.one("kvstore.get")) == {**said, "db.operation.name": "GET"}


def test_a_password_is_not_told() -> None:
    found = recorded()
    with (
        served(found),
        StoreSpans(parse_url("redis://me:secret@h:1/0")).begin("kvstore.get", "GET"),
    ):
        pass
    assert "secret" not in str(facts(found.one("kvstore.get")))


def test_without_a_trace_there_is_no_span() -> None:
    assert StoreSpans().begin("kvstore.put", "SET") is NO_SPAN


def test_a_span_that_is_named_is_the_parent() -> None:
    found = recorded()
    with served(found) as span:
        publish = span.child("prefill.publish")
        StoreSpans().begin("kvstore.put", "SET", below=publish).end()
        publish.end()
    put, publish_span = found.one("kvstore.put"), found.one("prefill.publish")
    assert put.parent is not None
    assert put.parent.span_id == publish_span.context.span_id
    assert time.time_ns() >= (put.end_time or 0)
