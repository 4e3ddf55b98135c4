"""`dynamo_kv`: active work less what is cached, and the soft choice."""

from __future__ import annotations

from collections import Counter

import pytest

from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, place, request, sink

# Blocks of 32 tokens.
VIEWS = [engine("p0", tokens=3200), engine("p1", tokens=320), sink("d0", tokens=64), sink("d1")]


def test_overlap_counts_against_active_work() -> None:
    wanted = request(6400, local_cached={"p0": 3200})
    placement = place("dynamo_kv", VIEWS, wanted)
    scores = [item.score[0] for item in placement.prefill_side.candidates()]
    assert scores == pytest.approx([200.0, 210.0])
    assert (placement.prefill_id, placement.decode_id) == ("p0", "d1")
    assert place("dynamo_kv", VIEWS, request(6400)).prefill_id == "p1"


def test_the_credit_never_makes_a_cost_negative() -> None:
    placement = place("dynamo_kv", [engine("p0"), sink()], request(100, cached_tokens=99))
    assert placement.prefill_side.candidates()[0].score[0] >= 0


def test_the_scale_is_an_option() -> None:
    options = RoutingOptions(prefill_scale=2.0)
    placement = place("dynamo_kv", VIEWS, request(6400), options=options)
    assert placement.prefill_side.candidates()[1].score[0] == pytest.approx(420.0)


@pytest.mark.medium
def test_temperature_softens_the_choice() -> None:
    def counts(temperature: float) -> Counter[str]:
        options = RoutingOptions(temperature=temperature)
        return Counter(
            place("dynamo_kv", VIEWS, request(request_id=f"r{i}"), options=options).prefill_id
            for i in range(300)
        )

    assert counts(0.0) == {"p1": 300}
    # Costs 0 and 1: odds of e to one at temperature 1, i.e. 219 of 300.
    assert counts(1.0)["p1"] == pytest.approx(219, abs=35)
    assert counts(100.0)["p1"] == pytest.approx(150, abs=45)
