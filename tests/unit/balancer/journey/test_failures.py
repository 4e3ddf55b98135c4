"""The table of remedies, and the errors callers get."""

from __future__ import annotations

import pytest

from balancer.explain.decisions import decide
from balancer.journey.failures import (
    NobodyLeft,
    Refused,
    final_error,
    newest_attempt,
    no_pair_error,
    remedy_for,
)
from balancer.journey.transcript import StreamBroken
from balancer.membership import ExclusionCause, MemberView
from balancer.routing.base import PlacementRequest
from balancer.routing.policies import make_policy
from runtime.errors import (
    CLASS_OF_REASON,
    AlreadyRunning,
    Bug,
    Conflict,
    Corrupt,
    DisaggError,
    Reason,
    TooLate,
    Unavailable,
)
from tests.fakes.memberships import prefill, view

FINAL = {
    Reason.BAD_REQUEST,
    Reason.BAD_SAMPLING,
    Reason.UNSUPPORTED_PARAMETER,
    Reason.PROMPT_TOO_LONG,
    Reason.CONSTRAINT_REJECTED,
    Reason.UNKNOWN_MODEL,
    Reason.NOT_AUTHENTICATED,
    Reason.NOT_ALLOWED,
    Reason.RATE_LIMITED,
    Reason.NO_PREFILL,
    Reason.NO_DECODE,
    Reason.FIRST_TOKEN_LATE,
    Reason.DEADLINE,
    Reason.CALLER_LEFT,
    Reason.INVARIANT_BROKEN,
    # Of streams that no leg of a request reads.
    Reason.EVENTS_LOST,
    Reason.EVENTS_GONE,
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_either_final_or_has_a_remedy(reason: Reason) -> None:
    error = CLASS_OF_REASON[reason]("x", reason=reason)
    assert (remedy_for(error) is None) == (reason in FINAL)


def test_only_corruption_distrusts_the_stored_prefix() -> None:
    bypassing = [
        reason
        for reason in Reason
        if (remedy := remedy_for(CLASS_OF_REASON[reason]("x", reason=reason)))
        and remedy.bypasses_prefix
    ]
    assert bypassing == [Reason.CHECKSUM_DIFFERS]


def test_a_store_that_is_down_is_no_members_fault() -> None:
    remedy = remedy_for(Unavailable("x", reason=Reason.STORE_DOWN))
    assert remedy is not None
    assert not remedy.suspects_member
    assert remedy_for(StreamBroken("gap")).suspects_member  # type: ignore[union-attr]


def test_the_newer_attempt_is_read_from_the_error() -> None:
    def stale(**metadata: str) -> Conflict:
        return Conflict("x", reason=Reason.STALE_ATTEMPT, metadata=metadata)

    assert newest_attempt(stale(newest_attempt="4")) == 4
    assert newest_attempt(stale(newest_attempt="?")) == 0
    assert newest_attempt(stale()) == 0
    lost = Conflict("x", reason=Reason.LEASE_LOST, metadata={"newest_attempt": "4"})
    assert newest_attempt(lost) == 0
    assert newest_attempt(StreamBroken("gap")) == 0


def test_before_the_first_token_an_error_stays_what_it_is() -> None:
    error = Corrupt("bad digest")
    assert final_error(error, seq=0, attempts=2) is error


def test_after_it_the_caller_is_told_how_to_resume() -> None:
    for cause in (Corrupt("bad digest"), StreamBroken("token 4 came after token 2")):
        error = final_error(cause, seq=5, attempts=3)
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.STREAM_INTERRUPTED
        assert error.metadata["last_seq"] == "5"
        assert "token 5 in attempt 3" in error.message


@pytest.mark.parametrize(
    "cause",
    [
        Unavailable("no prefill member is ready", reason=Reason.NO_PREFILL, retry_after_s=1.0),
        Unavailable("no decode member is ready", reason=Reason.NO_DECODE, retry_after_s=1.0),
        Refused("refused: would be late", retry_after_s=1.0),
    ],
    ids=lambda error: str(error.reason),
)
def test_a_continuation_that_finds_no_place_is_a_stream_that_broke(cause: DisaggError) -> None:
    error = final_error(cause, seq=5, attempts=2)
    assert error.reason is Reason.STREAM_INTERRUPTED
    assert error.metadata == {"last_seq": "5", "cause": cause.reason}
    assert cause.message in error.message
    assert error.retry_after_s == 1.0
    assert final_error(cause, seq=0, attempts=2) is cause


def test_errors_of_the_request_itself_are_not_dressed_up() -> None:
    late = TooLate("late")
    assert final_error(late, seq=5, attempts=1) is late
    assert isinstance(final_error(StreamBroken("gap"), seq=0, attempts=1), Bug)


def reason_of(
    *views: MemberView, full: frozenset[str] = frozenset(), is_store_down: bool = False
) -> Reason:
    request = PlacementRequest(
        request_id="r", attempt=1, num_tokens=100, max_new_tokens=0, full=full
    )
    policy = make_policy("deepseek")
    placement = decide(policy, request, views, rotation=0, now=0.0).placement
    assert placement.decode is None
    error = no_pair_error(placement, retry_after_s=1.0, is_store_down=is_store_down)
    if isinstance(error, Unavailable):
        assert remedy_for(error) is None  # the search has waited; nobody waits again
    for item in views:
        assert item.member.member_id in error.message
    return error.reason


def test_the_missing_half_of_a_pair_is_named() -> None:
    stale = {"exclusion": ExclusionCause.STALE}
    assert reason_of() is Reason.NO_PREFILL
    assert reason_of(prefill(**stale), view(**stale)) is Reason.NO_PREFILL
    assert reason_of(view()) is Reason.NO_PREFILL
    assert reason_of(prefill()) is Reason.NO_DECODE
    assert reason_of(prefill(), view(**stale)) is Reason.NO_DECODE
    assert reason_of(prefill(), view(fingerprint=b"2")) is Reason.KV_LAYOUT_DIFFERS
    assert reason_of(prefill(), view("d1"), full=frozenset({"d1"})) is Reason.POOL_FULL
    assert reason_of(prefill(), view(max_model_len=99)) is Reason.PROMPT_TOO_LONG
    assert reason_of(prefill(max_model_len=99), view()) is Reason.PROMPT_TOO_LONG
    assert reason_of(prefill(), view(kv_capacity_tokens=64)) is Reason.PROMPT_TOO_LONG


def test_who_is_always_overtaken_is_told_that_the_id_is_in_use() -> None:
    error = Conflict("attempt 3 is stale", reason=Reason.STALE_ATTEMPT)
    final = final_error(error, seq=0, attempts=3)
    assert isinstance(final, AlreadyRunning)
    assert final.reason is Reason.DUPLICATE_REQUEST
    assert "attempt 3 is stale" in final.message
    assert final_error(error, seq=4, attempts=3).reason is Reason.STREAM_INTERRUPTED


def test_only_what_comes_back_by_itself_is_waited_for() -> None:
    waited_for = {
        reason
        for reason in Reason
        if (remedy := remedy_for(CLASS_OF_REASON[reason]("x", reason=reason))) and remedy.is_outage
    }
    assert waited_for == {Reason.PEER_GONE, Reason.DRAINING, Reason.STORE_DOWN}


def test_members_that_wait_for_the_store_are_not_what_is_missing() -> None:
    waiting = {"exclusion": ExclusionCause.NOT_READY}
    stale = {"exclusion": ExclusionCause.STALE}
    assert reason_of(prefill(**waiting), view(**waiting)) is Reason.NO_PREFILL
    assert reason_of(prefill(**waiting), view(**waiting), is_store_down=True) is Reason.STORE_DOWN
    assert reason_of(prefill(**stale), view(**stale), is_store_down=True) is Reason.NO_PREFILL
    ended = final_error(NobodyLeft("x", reason=Reason.STORE_DOWN), seq=3, attempts=2)
    assert ended.reason is Reason.STREAM_INTERRUPTED
