"""What a placement says of itself."""

from __future__ import annotations

from balancer.membership.members import ExclusionCause
from balancer.routing.base import Verdict
from tests.fakes.placements import engine, place, request, sink


def test_a_pair_is_named_with_its_reason() -> None:
    placement = place("deepseek", [engine("p0"), engine("p1", wait_s=3.0), sink()])
    assert placement.verdict is Verdict.PLACE
    assert placement.prefill is not None
    assert placement.decode is not None
    assert (placement.prefill_id, placement.decode_id) == ("p0", "d0")
    assert placement.prefill.member.member_id == "p0"
    assert placement.decode.member.member_id == "d0"
    assert placement.reason.startswith("least outstanding work of the length class: prefill p0 (")
    assert "decode d0 (" in placement.reason
    assert [item.member_id for item in placement.candidates] == ["p0", "p1", "d0"]


def test_without_a_pair_everybody_is_named_with_a_cause() -> None:
    placement = place(
        "deepseek", [engine("p0"), sink(exclusion=ExclusionCause.DRAINING)], request(50)
    )
    assert placement.verdict is Verdict.NO_PAIR
    assert placement.prefill is placement.decode is None
    assert (placement.prefill_id, placement.decode_id) == ("", "")
    assert "p0: no partner" in placement.reason
    assert "d0: draining" in placement.reason
    assert place("deepseek", []).reason == "no members have announced themselves"


def test_what_to_put_on_the_members_is_part_of_the_answer() -> None:
    wanted = request(20_000, cached_tokens=5_000, max_new_tokens=7)
    placement = place("deepseek", [engine("p0", wait_s=2.5), sink()], wanted)
    assert placement.length_class == 1
    assert placement.quota_s == 15_000 * 1e-4
    assert placement.output_tokens == 7  # ten are expected, seven allowed
    assert placement.wait_s == 2.5
