"""What the journey tells placement, and what placement tells the journey, over real gRPC."""

from __future__ import annotations

import asyncio

import pytest

from balancer.routing.base import Verdict
from disagg.v1 import generation_pb2, routing_pb2, routing_pb2_grpc
from runtime.errors import Overloaded, Reason, Unavailable
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import FINGERPRINT, Script, answer

pytestmark = pytest.mark.medium
LONG = [0, *range(300, 400)]


async def test_the_store_is_asked_before_the_request_is_placed() -> None:
    async with front_door() as door:
        door.store.stored_tokens = 64
        messages = await door.generate(
            token_ids=generation_pb2.TokenIds(ids=LONG), cache_salt="tenant", priority=3
        )
        assert tokens_of(messages) == answer(LONG, 6)
        [(layout, num_tokens, salt)] = door.store.lookups
        assert (layout.fingerprint, num_tokens, salt) == (FINGERPRINT, len(LONG), "tenant")
        assert layout.window_replay_tokens == 378
        [record] = door.balancer.router.decisions.explain("r1")
        asked = record.request
        assert (asked.cached_tokens, asked.tenant, asked.priority) == (64, "tenant", 3)
        assert asked.arrived_at < record.decided_at < asked.deadline


async def test_the_cost_of_a_prefill_and_the_length_of_an_answer_are_learnt() -> None:
    async with front_door() as door:
        before = door.balancer.router.knowledge()
        await door.generate(sampling={"max_tokens": 6})
        after = door.balancer.router.knowledge()
        # The member says 7 us; what is assumed before anything was measured is milliseconds.
        assert after.quota.seconds(len(PROMPT), 2) == pytest.approx(7e-6, rel=0.1)
        assert before.quota.seconds(len(PROMPT), 2) > 1e-3
        assert after.output_tokens[0] == 6
        await door.settle()


async def test_a_prefill_that_fails_is_over_and_teaches_nothing() -> None:
    limits = {"suspect_s": 0.0, "recovery_wait_s": 0.0, "prefill_retries": 0}
    async with front_door(limits=limits) as door:
        before = door.balancer.router.knowledge().quota
        door.prefills[0].scripts.append(Script(error=Unavailable("gone")))
        assert isinstance(await door.generate(), Unavailable)
        tier = {"tier": "lt16k"}
        balancer = door.balancer
        balancer.tiers.publish(
            balancer.metrics,
            None,
            balancer.members.snapshot(0.0).decode,
            balancer.clock.now(),
        )
        assert door.metric("disagg_tier_backlog_tokens", **tier) == 0
        assert balancer.router.knowledge().quota == before
        assert balancer.router.knowledge().output_tokens[0] == 256
        await door.settle()


async def test_decisions_are_counted_by_policy_tier_and_outcome() -> None:
    async with front_door(routing={"policy": "round_robin", "boundaries": [50]}) as door:
        await door.generate("a")
        await door.generate("b", token_ids=generation_pb2.TokenIds(ids=LONG))
        for tier in ("lt50", "ge50"):
            labels = {"policy": "round_robin", "tier": tier, "outcome": "pair"}
            assert door.metric("disagg_route_decisions_total", **labels) == 1
        await door.balancer.examine()
        assert door.metric("disagg_decode_imbalance_ratio", axis="requests") == 1


async def test_a_held_request_runs_when_the_engine_is_free() -> None:
    async with front_door(routing={"policy": "ondemand"}) as door:
        answers = await asyncio.gather(*(door.generate(f"r{i}") for i in range(6)))
        for messages in answers:
            assert tokens_of(messages) == answer(PROMPT, 6)
        decisions = door.balancer.router.decisions
        verdicts = [r.placement.verdict for i in range(6) for r in decisions.explain(f"r{i}")]
        assert verdicts.count(Verdict.PLACE) == 6
        assert Verdict.HOLD in verdicts
        await door.settle()


async def test_what_would_be_late_is_refused_with_a_hint_and_no_attempt_follows() -> None:
    async with front_door() as door:
        door.balancer.members.assign("p0", "other", 100, quota_s=600.0, now=1e12)
        error = await door.generate(ttft_slo_s=0.5)
        assert isinstance(error, Overloaded)
        assert error.reason is Reason.QUEUE_FULL
        assert error.retry_after_s
        assert "would miss the latency target" in error.message
        assert door.metric("disagg_admission_rejections_total", reason="SLO_MISSED") == 1
        assert len(door.balancer.router.decisions.explain("r1")) == 1


async def test_what_cannot_meet_its_deadline_is_refused_at_the_gate() -> None:
    async with front_door(admission={"max_running": 1}) as door:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=1))
        first = asyncio.create_task(door.generate("a", timeout=5))
        await door.until(lambda: len(door.decodes[0].calls) == 1)
        error = await door.generate("b", timeout=0.5)  # a second is assumed for each run
        assert isinstance(error, Overloaded)
        assert "could not be served in time" in error.message
        assert error.retry_after_s
        assert door.metric("disagg_admission_rejections_total", reason="TOO_LATE") == 1
        assert door.balancer.router.decisions.explain("b") == ()
        door.balancer.running.cancel("a")
        await first
        await door.settle()


async def test_a_handed_over_request_teaches_no_length() -> None:
    async with front_door() as door:
        stub = routing_pb2_grpc.RoutingServiceStub(door.channel)
        request = routing_pb2.RouteRequest()
        request.generate.request_id = "r1"
        request.generate.token_ids.ids.extend(PROMPT)
        request.generate.sampling.max_tokens = 6
        await stub.Route(request, timeout=10)
        knowledge = door.balancer.router.knowledge()
        assert knowledge.output_tokens[0] == 256
        assert knowledge.quota.seconds(len(PROMPT), 2) < 1e-3
