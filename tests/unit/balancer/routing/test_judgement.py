"""Candidates, exclusions, runner-up and margin."""

from __future__ import annotations

from balancer.membership.members import ExclusionCause, Role
from balancer.routing.judgement import Exclusion, Judgement
from tests.fakes.memberships import view
from tests.fakes.placements import engine, place, request, sink


def judged(*waits: float, tokens: tuple[int, ...] = (0, 0, 0, 0)) -> Judgement:
    views = [engine(f"p{i}", wait_s=w, tokens=tokens[i]) for i, w in enumerate(waits)]
    return place("deepseek", [*views, sink()]).prefill_side


def test_runner_up_and_margin_name_the_column_that_decides() -> None:
    side = judged(0.5, 0.25, 0.75)
    assert side.chosen_id == "p1"
    assert side.columns.fixed.ids[side.runner_up()] == "p0"
    assert side.margin() == ("wait_s", 0.25)
    assert judged(0.5, 0.5, tokens=(9, 3)).margin() == ("tokens", 6.0)
    assert judged(0.0, 0.0).margin() == ("", 0.0)


def test_alone_there_is_no_runner_up() -> None:
    side = judged(0.5)
    assert side.runner_up() == -1
    assert side.margin() == ("", 0.0)
    assert side.view(-1) is None
    nobody = place("deepseek", []).prefill_side
    assert (nobody.chosen_id, nobody.runner_up(), nobody.summary()) == ("", -1, "none")


def test_judgements_compare_by_what_was_seen_and_chosen() -> None:
    assert judged(0.1, 0.2) == judged(0.1, 0.2)
    assert judged(0.1, 0.2) != judged(0.1, 0.3)
    assert judged(0.1, 0.2) != "judgement"


def test_exclusions_carry_their_facts() -> None:
    views = [
        engine("p0"),
        engine("p1", exclusion=ExclusionCause.STALE),
        sink("d0", kv_capacity_tokens=119),
        view("d1", max_model_len=110),
        sink("d2"),
        sink("d3", fingerprint=b"other"),
    ]
    exclusions = {item.member_id: item for item in place("deepseek", views, request()).exclusions}
    assert str(exclusions["d0"]) == "d0: KV pool too small, 120 tokens never fit in 119"
    assert str(exclusions["d1"]) == "d1: context too short, 120 tokens do not fit in 110"
    assert str(exclusions["d3"]).endswith(b"other".hex())
    assert exclusions["p1"].cause is ExclusionCause.STALE
    assert "no heartbeat for 0.1 s" in str(exclusions["p1"])


def test_an_exclusion_without_facts_is_short() -> None:
    item = Exclusion(member_id="d0", role=Role.DECODE, cause=ExclusionCause.DRAINING)
    assert str(item) == "d0: draining"
