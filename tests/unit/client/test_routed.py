"""Joining what prefill and decode say: exactly once, whatever breaks, repeats or lags behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import ClientError, StreamBroken
from client.routed import RoutedAnswer
from client.types import Chunk
from disagg.v1 import common_pb2, decode_pb2, generation_pb2, routing_pb2

TOKENS = list(range(100, 120))
LENGTH = common_pb2.FINISH_REASON_LENGTH


def answer(last_seq: int = 0) -> RoutedAnswer:
    return RoutedAnswer(generation_pb2.GenerateRequest(request_id="r", last_seq=last_seq))


def route(first: int, *, attempt: int = 1, reason: int = 0) -> routing_pb2.RouteResponse:
    """The response with the token numbered `first`."""
    return routing_pb2.RouteResponse(
        request_id="r",
        attempt=attempt,
        seq=first,
        token_ids=[TOKENS[first - 1]],
        finish_reason=reason,  # type: ignore[arg-type]
        usage={"prompt_tokens": 3, "completion_tokens": first, "cached_tokens": 2},
        timing={"prefill_us": 5},
        seed=9,
    )


def tokens(
    first: int, last: int, *, attempt: int = 1, reason: int = 0
) -> decode_pb2.DecodeResponse:
    return decode_pb2.DecodeResponse(
        tokens=decode_pb2.DecodeTokens(
            attempt=attempt,
            seq=last,
            token_ids=TOKENS[first - 1 : last],
            logprobs=[
                common_pb2.PositionLogprobs(logprob=-float(n)) for n in range(first, last + 1)
            ],
            finish_reason=reason,  # type: ignore[arg-type]
        )
    )


def ids_of(chunks: list[Chunk | None]) -> list[int]:
    return [token for chunk in chunks if chunk for token in chunk.token_ids]


def test_a_whole_answer() -> None:
    one = answer()
    request = one.route_request()
    assert (list(request.generated), request.last_attempt) == ([], 0)
    chunks = [
        one.take_route(route(1)),
        one.take_decode(decode_pb2.DecodeResponse(resumed=decode_pb2.DecodeResumed())),
        one.take_decode(tokens(2, 3)),
        one.take_decode(tokens(4, 4, reason=LENGTH)),
    ]
    assert ids_of(chunks) == TOKENS[:4]
    one.check_end()
    final = one.final("text")
    assert (final.seq, final.text, final.finish_reason, final.seed) == (4, "text", "length", 9)
    assert final.usage is not None
    assert (final.usage.completion_tokens, final.usage.cached_tokens) == (4, 2)
    assert final.timing is not None
    assert final.timing.prefill_us == 5
    assert one.new_ids == tuple(TOKENS[:4])


def test_a_resumed_answer_asks_for_what_is_missing() -> None:
    one = answer()
    one.take_route(route(1))
    one.take_decode(tokens(2, 3))
    with pytest.raises(StreamBroken, match="after token 3 without a finish reason"):
        one.check_end()
    request = one.route_request()
    assert (list(request.generated), request.last_attempt) == (TOKENS[:3], 1)
    assert ids_of([one.take_route(route(4, attempt=2))]) == TOKENS[3:4]
    assert one.take_decode(tokens(4, 5, attempt=1)) is None  # the old one still talks
    assert ids_of([one.take_decode(tokens(5, 6, attempt=2, reason=LENGTH))]) == TOKENS[4:6]


def test_what_an_earlier_call_got_is_not_handed_out_again() -> None:
    one = answer(last_seq=3)
    assert one.route_request().generate.last_seq == 0
    assert one.take_route(route(1)) is None
    chunk = one.take_decode(tokens(2, 5, reason=LENGTH))
    assert chunk is not None
    assert (list(chunk.token_ids), chunk.seq) == (TOKENS[3:5], 5)
    assert [entry.logprob for entry in chunk.logprobs] == [-4.0, -5.0]
    assert one.new_ids == tuple(TOKENS[3:5])


def test_gaps_and_changed_tokens_break_the_stream() -> None:
    one = answer()
    one.take_route(route(1))
    with pytest.raises(StreamBroken, match="token 3 came after token 1"):
        one.take_decode(tokens(3, 3))
    changed = tokens(1, 2)
    changed.tokens.token_ids[0] = 7
    with pytest.raises(StreamBroken, match="differ"):
        one.take_decode(changed)


@pytest.mark.parametrize(("newest", "wanted"), [("6", 6), ("", 1), ("x", 1), ("9" * 30, 2**32 - 2)])
def test_an_attempt_that_was_overtaken_goes_on_above_the_newest(newest: str, wanted: int) -> None:
    one = answer()
    one.take_route(route(1))
    error = ClientError(
        "x", code="ABORTED", reason="STALE_ATTEMPT", metadata={"newest_attempt": newest}
    )
    assert one.may_go_on(error, 0, 3)
    assert one.route_request().last_attempt == wanted
    other = ClientError("x", code="ABORTED", reason="LEASE_LOST", metadata={"newest_attempt": "9"})
    assert one.may_go_on(other, 1, 3)
    assert one.route_request().last_attempt == wanted


@pytest.mark.parametrize(
    ("code", "reason", "resumes", "goes_on"),
    [
        ("UNAVAILABLE", "", 0, True),
        ("UNAVAILABLE", "", 3, False),
        ("NOT_FOUND", "BLOCK_EVICTED", 0, True),
        ("ABORTED", "LEASE_LOST", 0, True),
        ("DATA_LOSS", "CHECKSUM_DIFFERS", 0, True),
        ("ALREADY_EXISTS", "DUPLICATE_REQUEST", 0, False),
        ("ALREADY_EXISTS", "DUPLICATE_REQUEST", 1, True),
        ("INVALID_ARGUMENT", "BAD_REQUEST", 0, False),
    ],
)
def test_what_is_worth_another_route(code: str, reason: str, resumes: int, goes_on: bool) -> None:
    error = ClientError("x", code=code, reason=reason)
    assert answer().may_go_on(error, resumes, 3) is goes_on
    done = answer()
    done.take_route(route(1, reason=LENGTH))
    assert not done.may_go_on(error, resumes, 3)


@given(st.data())
def test_any_order_of_breaks_and_repetitions_gives_each_token_once(data: st.DataObject) -> None:
    one, got, attempt = answer(), [], 0
    while len(got) < len(TOKENS):
        attempt += 1
        first = len(one.route_request().generated) + 1
        got += ids_of([one.take_route(route(first, attempt=attempt))])
        for _ in range(data.draw(st.integers(0, 3))):
            known = len(got)
            if known == len(TOKENS):
                break
            start = data.draw(st.integers(1, known + 1))
            end = data.draw(st.integers(start, len(TOKENS)))
            got += ids_of([one.take_decode(tokens(start, end, attempt=attempt))])
            assert got == TOKENS[: len(got)]
    assert one.new_ids == tuple(TOKENS)
