"""A pair with a slot: weights, refusals, waiting, giving back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.explain.decisions import DecisionRing, re_execute
from balancer.journey.cleanup import CleanUps
from balancer.journey.failures import Refused, remedy_for
from balancer.journey.placement import Placer
from balancer.journey.request import Delta, FinishReason, Request, Sampling
from balancer.journey.retry import Leg, Outage, RequestRetries
from balancer.journey.state import Journey, Limits
from balancer.journey.tiers import Tiers
from balancer.journey.transcript import Transcript
from balancer.membership import Member, Membership, Role
from balancer.router import Router
from balancer.routing.base import Policy, Verdict
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from runtime.clock import ManualClock
from runtime.errors import InvalidRequest, Overloaded, TooLate, Unavailable
from runtime.metrics import Metrics
from tests.fakes.memberships import member
from tests.unit.balancer.journey.test_state import NoText

POLICY = make_policy("deepseek")


async def emit(delta: Delta) -> None:
    raise AssertionError(delta)


class Slots:
    """Decode members' slots; a member listed in `full` has none."""

    def __init__(self, *full: str) -> None:
        self.full = set(full)
        self.asked: list[str] = []
        self.released: list[str] = []
        self.error: Exception | None = None
        self.both_asked = asyncio.Event()

    async def reserve(self, member: Member, request_id: str, num_tokens: int, **_: Any) -> str:
        self.asked.append(member.member_id)
        if len(self.asked) == 2:
            self.both_asked.set()
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if member.member_id in self.full:
            raise Overloaded("no slot")
        return f"credit-{member.member_id}"

    async def release(self, member: Member, credit_id: str, **_: Any) -> None:
        self.released.append(credit_id)


class Bench:
    """A placer with its surroundings."""

    def __init__(
        self, slots: Slots, cleanups: CleanUps, policy: Policy = POLICY, **limits: float
    ) -> None:
        self.members = Membership(stale_after_s=5.0, forget_after_s=60.0)
        self.members.observe(member("p0", Role.PREFILL), 0.0)
        for name in ("d0", "d1"):
            self.members.observe(member(name), 0.0)
        self.ring = DecisionRing(10)
        self.router = Router(members=self.members, policy=policy, decisions=self.ring)
        self.metrics = Metrics()
        self.clock = ManualClock()
        self.placer = Placer(
            members=self.members,
            router=self.router,
            tiers=Tiers(RoutingOptions().boundaries, 5.0),
            peers=slots,  # type: ignore[arg-type]
            cleanups=cleanups,
            clock=self.clock,
            limits=Limits(**limits),
            metrics=self.metrics,
        )

    def journey(self, name: str = "r", attempt: int = 1, max_tokens: int = 50) -> Journey:
        sampling = Sampling(seed=0, max_tokens=max_tokens)
        request = Request(
            request_id=name, token_ids=(1,) * 100, sampling=sampling, arrived_at=0.0, deadline=99.0
        )
        return Journey(
            request=request,
            transcript=Transcript(last_seq=0, text=NoText()),
            emit=emit,
            retries=RequestRetries(prefill=1, decode=1),
            outage=Outage(10.0),
            attempt=attempt,
        )

    def outstanding(self) -> dict[str, tuple[int, int]]:
        return {
            view.member.member_id: (view.outstanding_requests, view.outstanding_tokens)
            for view in self.members.views(0.0)
        }


IDLE = {"p0": (0, 0), "d0": (0, 0), "d1": (0, 0)}


async def test_a_pair_carries_its_weight_and_its_slot_goes_back() -> None:
    slots = Slots()
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)
        async with bench.placer.reserved(bench.journey()) as pair:
            assert (pair.prefill.member_id, pair.decode.member_id) == ("p0", "d0")
            assert bench.outstanding() == {**IDLE, "p0": (1, 100), "d0": (1, 150)}
        assert bench.outstanding() == IDLE
    assert slots.released == ["credit-d0"]
    [record] = bench.ring.explain("r")
    assert re_execute(record, POLICY) == record.placement


async def test_a_slot_that_decode_used_up_is_not_given_back() -> None:
    slots = Slots()
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)
        journey = bench.journey()
        journey.transcript.begin(1)
        async with bench.placer.reserved(journey) as pair:
            journey.enter(Leg.DECODE, pair.decode)
            journey.has_used_slot = True
    assert slots.released == []


async def test_two_requests_at_once_see_each_other() -> None:
    slots = Slots()
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)
        chosen = []

        async def place(name: str) -> None:
            async with bench.placer.reserved(bench.journey(name)) as pair:
                chosen.append(pair.decode.member_id)
                await asyncio.sleep(0.01)

        await asyncio.gather(place("a"), place("b"))
    assert sorted(chosen) == ["d0", "d1"]


async def test_a_member_without_room_is_passed_over() -> None:
    slots = Slots("d0")
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)
        async with bench.placer.reserved(bench.journey()) as pair:
            assert pair.decode.member_id == "d1"
            assert bench.outstanding()["d0"] == (0, 0)
    assert slots.asked == ["d0", "d1"]


async def test_room_is_waited_for_until_somebody_leaves() -> None:
    slots = Slots("d0", "d1")
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)

        async def leave() -> None:
            await slots.both_asked.wait()
            slots.full.clear()
            bench.placer.look_again()

        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            async with asyncio.timeout(5), bench.placer.reserved(bench.journey()) as pair:
                assert pair.credit_id


async def test_waiting_for_room_ends() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots("d0", "d1"), cleanups, slot_wait_s=0.0)
        with pytest.raises(Overloaded, match="every decode member is full"):
            async with bench.placer.reserved(bench.journey()):
                pytest.fail("there is no room")
        assert bench.outstanding() == IDLE


async def test_a_silent_reservation_is_a_member_that_vanished() -> None:
    slots = Slots()
    slots.error = TooLate("no answer")
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups)
        journey = bench.journey()
        with pytest.raises(Unavailable, match="d0 did not answer a reservation"):
            async with bench.placer.reserved(journey):
                pytest.fail("no slot was granted")
        assert (journey.leg, journey.member_id) == (Leg.RESERVE, "d0")
        assert bench.outstanding() == IDLE


async def test_members_to_avoid_are_better_than_none() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        journey = bench.journey()
        journey.avoid = {"d0"}
        async with bench.placer.reserved(journey) as pair:
            assert pair.decode.member_id == "d1"
        journey.avoid = {"d0", "d1"}
        async with bench.placer.reserved(journey) as pair:
            assert pair.decode.member_id in {"d0", "d1"}


async def test_an_answer_goes_on_with_the_model_it_began_with() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups, recovery_wait_s=0.0)
        bench.members.observe(member("p1", Role.PREFILL, fingerprint=b"layout-2"), 0.0)
        bench.members.observe(member("d2", fingerprint=b"layout-2"), 0.0)
        journey = bench.journey()
        journey.transcript.begin(1)
        journey.enter(Leg.DECODE, member("d9", fingerprint=b"layout-2"))
        journey.avoid = {"d2"}
        # Nothing went out yet: any model may answer, and d2 failed before.
        async with bench.placer.reserved(journey) as pair:
            assert pair.decode.member_id in {"d0", "d1"}
        journey.enter(Leg.DECODE, member("d9", fingerprint=b"layout-2"))
        journey.transcript.take(1, 1, [5], (), None)
        # d2 is better than another model, though it failed before ...
        async with bench.placer.reserved(journey) as pair:
            assert (pair.prefill.member_id, pair.decode.member_id) == ("p1", "d2")
        assert not journey.avoid
        # ... and no model is better than another one.
        bench.members.order_drain("d2")
        with pytest.raises(Unavailable, match="no decode member is ready"):
            async with bench.placer.reserved(journey):
                pytest.fail("the others have another model")


async def test_a_request_that_never_fits_does_not_wait() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        with pytest.raises(InvalidRequest, match="send a shorter prompt"):
            async with bench.placer.reserved(bench.journey(max_tokens=4000)):
                pytest.fail("it does not fit")


async def test_a_member_under_suspicion_is_tried_by_one_request_at_a_time() -> None:
    slots = Slots()
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(slots, cleanups, recovery_wait_s=0.0)
        for name in ("d0", "d1"):
            bench.members.suspect(name, "gone", 0.0, 2.0)
        bench.clock.advance(2.0)
        slots.error = Unavailable("refused")
        for name in ("d0", "d1"):
            with pytest.raises(Unavailable, match="refused"):
                async with bench.placer.reserved(bench.journey()):
                    pytest.fail("no slot was granted")
            assert slots.asked[-1] == name
        with pytest.raises(Unavailable, match="no decode member is ready"):
            async with bench.placer.reserved(bench.journey()):
                pytest.fail("both were tried a moment ago")
        slots.error = None
        bench.clock.advance(2.0)
        for _ in range(2):
            async with bench.placer.reserved(bench.journey()) as pair:
                assert pair.decode.member_id in {"d0", "d1"}


async def test_the_search_of_a_repeated_attempt_ends_with_its_outage() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups, recovery_wait_s=10.0)
        journey = bench.journey(attempt=2)
        journey.outage.covers("", -10.0)
        bench.members.sweep(61.0)
        with pytest.raises(Unavailable, match="is ready"):
            async with asyncio.timeout(5), bench.placer.reserved(journey):
                pytest.fail("nobody is there")


async def test_a_first_attempt_waits_for_members_that_are_not_ready() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        for name in ("d0", "d1"):
            bench.members.observe(member(name, sequence=2, ready=False), 0.0)

        async def come_back() -> None:
            await asyncio.sleep(0)
            bench.members.observe(member("d1", sequence=3), 0.0)
            bench.placer.look_again()

        async with asyncio.TaskGroup() as group:
            group.create_task(come_back())
            async with asyncio.timeout(5), bench.placer.reserved(bench.journey()) as pair:
                assert pair.decode.member_id == "d1"


async def test_a_request_that_is_held_back_is_placed_when_a_prefill_ends() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups, make_policy("ondemand"))
        bench.clock.advance(1.0)
        placed: list[str] = []

        async def place() -> None:
            async with bench.placer.reserved(bench.journey("b")):
                placed.append("b")

        first = bench.journey("a")
        async with (
            asyncio.timeout(5),
            asyncio.TaskGroup() as group,
            bench.placer.reserved(first) as pair,
        ):
            waiting = group.create_task(place())
            for _ in range(5):
                await asyncio.sleep(0)
            assert (placed, waiting.done()) == ([], False)
            bench.placer.take_weight_off(first, pair.prefill)
            bench.placer.prefill_ended(first, compute_s=0.5)
            for _ in range(5):  # far less than until it would have looked by itself
                await asyncio.sleep(0)
            assert placed == ["b"]
    kinds = [record.placement.verdict for record in bench.ring.explain("b")]
    assert kinds == [Verdict.HOLD, Verdict.PLACE]
    assert bench.outstanding() == IDLE


async def test_holding_back_ends_with_the_time_of_the_first_token() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups, make_policy("ondemand"), first_token_s=0.0)
        bench.members.assign("p0", "other", 100, quota_s=1.0)
        with pytest.raises(TooLate, match="every prefill member that could serve it is busy"):
            async with bench.placer.reserved(bench.journey()):
                pytest.fail("it is busy")


async def test_a_policy_may_refuse_a_request_with_a_hint() -> None:
    options = RoutingOptions(refuse_late="always", ttft_slo_s=0.5)
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups, make_policy("deepseek", options))
        bench.members.assign("p0", "other", 100, quota_s=9.0)
        with pytest.raises(Refused, match="would miss the latency target") as caught:
            async with bench.placer.reserved(bench.journey()):
                pytest.fail("it is refused")
        assert caught.value.retry_after_s == pytest.approx(9.0)
        assert remedy_for(caught.value) is None
        reason = {"reason": "SLO_MISSED"}
        assert bench.metrics.value("disagg_admission_rejections_total", **reason) == 1


async def test_what_is_stored_and_promised_reaches_the_policy() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        journey = bench.journey()
        journey.stored_tokens = 64
        async with bench.placer.reserved(journey):
            [record] = bench.ring.explain("r")
            asked = record.request
            assert (asked.cached_tokens, asked.arrived_at, asked.deadline) == (64, 0.0, 99.0)
            [p0] = bench.members.views(0.0, Role.PREFILL)
            assert p0.outstanding_quota_s == pytest.approx(record.placement.quota_s)
        journey.bypass_prefix = True
        async with bench.placer.reserved(journey):
            assert bench.ring.explain("r")[-1].request.cached_tokens == 0


async def test_the_router_learns_what_became_of_a_request() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        before = bench.router.knowledge()
        journey = bench.journey()
        journey.transcript.begin(1)
        async with bench.placer.reserved(journey):
            bench.placer.prefill_ended(journey, compute_s=0.5, cached_tokens=0)
            bench.placer.prefill_ended(journey, compute_s=None)  # too late to take it back
            journey.transcript.take(1, 7, range(7), (), FinishReason.STOP)
        bench.placer.finished(journey)
        after = bench.router.knowledge()
        assert after.quota.seconds(100, 0) > before.quota.seconds(100, 0)
        assert after.output_tokens[0] == 7


async def test_an_answer_cut_short_teaches_nothing_and_a_stranger_is_left_alone() -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        bench = Bench(Slots(), cleanups)
        journey = bench.journey()
        journey.transcript.begin(1)
        async with bench.placer.reserved(journey):
            bench.placer.finished(bench.journey())  # same id, refused before it was placed
            journey.transcript.take(1, 7, range(7), (), FinishReason.ABORT)
        first = bench.router.knowledge().output_tokens[0]
        bench.placer.finished(journey)
        assert bench.router.knowledge().output_tokens[0] == first
