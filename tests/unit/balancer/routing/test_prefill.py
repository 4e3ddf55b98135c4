"""Prefill by class: own engines, loans and their bounds, holding, moving engines."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from balancer.membership.members import ExclusionCause, MemberView
from balancer.routing.base import Placement, Verdict
from balancer.routing.options import RoutingOptions
from balancer.routing.shares import Shares
from tests.fakes.placements import engine, known, place, request, sink

# A token costs 0.1 ms, so 1000 tokens take 0.1 s and 20,000 take 2 s; S is one second.
OPTIONS = RoutingOptions(boundaries=(10_000, 100_000), starvation_s=1.0)
S = OPTIONS.starvation_s


def choose(
    waits: dict[str, float],
    classes: dict[str, int],
    num_tokens: int = 1000,
    *,
    moving: tuple[str, ...] = (),
    waited_s: float = 0.0,
    views: list[MemberView] | None = None,
    options: RoutingOptions = OPTIONS,
) -> Placement:
    found = views or [engine(name, wait_s=wait) for name, wait in waits.items()]
    return place(
        "deepseek",
        [*found, sink()],
        request(num_tokens, arrived_at=10.0 - waited_s),
        options=options,
        knowledge=known(Shares(class_of=classes, moving=frozenset(moving)), num_classes=3),
        now=10.0,
    )


def test_the_least_outstanding_engine_of_ones_own_class() -> None:
    classes = {"p0": 0, "p1": 0, "p2": 1}
    placement = choose({"p0": 0.9, "p1": 0.8, "p2": 0.0}, classes)
    assert placement.prefill_id == "p1"
    causes = {item.member_id: item.cause for item in placement.exclusions}
    assert causes == {"p2": ExclusionCause.OTHER_CLASS}
    assert choose({"p0": 0.9, "p1": 0.8, "p2": 0.9}, classes, 20_000).prefill_id == "p2"


def test_an_engine_without_a_class_serves_everybody() -> None:
    assert choose({"p0": 0.9, "p1": 0.8}, {"p0": 0}).prefill_id == "p1"
    assert choose({"p0": 0.9, "p1": 0.8}, {}, 20_000).prefill_id == "p1"


def test_short_work_borrows_when_its_own_engines_wait_too_long() -> None:
    classes = {"p0": 0, "p1": 1}
    assert choose({"p0": 1.0, "p1": 0.0}, classes).prefill_id == "p0"
    assert choose({"p0": 1.1, "p1": 0.0}, classes).prefill_id == "p1"
    assert choose({"p0": 1.1, "p1": 0.2}, classes).prefill_id == "p0"  # not by more than S


def test_long_work_borrows_only_if_a_prompt_engine_stays_behind() -> None:
    waits = {"p0": 0.0, "p1": 0.5, "p9": 30.0}
    classes = {"p0": 0, "p1": 0, "p9": 1}
    assert choose(waits, classes, 20_000).prefill_id == "p0"
    assert choose({**waits, "p1": 1.5}, classes, 20_000).prefill_id == "p9"
    assert choose({**waits, "p0": 1.5}, classes, 20_000).prefill_id == "p9"


def test_a_class_without_engines_borrows_idle_ones_or_waits_its_turn() -> None:
    classes = {"p0": 0, "p1": 0}
    assert choose({"p0": 0.0, "p1": 0.5}, classes, 20_000).prefill_id == "p0"
    held = choose({"p0": 0.4, "p1": 0.5}, classes, 20_000)
    assert held.verdict is Verdict.HOLD
    assert held.retry_after_s == 0.4
    late = choose({"p0": 0.4, "p1": 0.5}, classes, 20_000, waited_s=S)
    assert late.prefill_id == "p0"


def test_a_moving_engine_takes_nothing_until_it_is_settled() -> None:
    classes = {"p0": 0, "p1": 0}
    placement = choose({"p0": 0.9, "p1": 0.1}, classes, moving=("p1",))
    assert placement.prefill_id == "p0"
    causes = {item.member_id: item.cause for item in placement.exclusions}
    assert causes == {"p1": ExclusionCause.MOVING}
    # Alone it serves all the same: nobody waits for a move.
    assert choose({"p1": 5.0}, {"p1": 0}, moving=("p1",)).prefill_id == "p1"


def test_a_class_whose_engines_are_gone_is_served_by_others() -> None:
    views = [engine("p0", exclusion=ExclusionCause.STALE), engine("p1", wait_s=0.5)]
    assert choose({}, {"p0": 0, "p1": 1}, views=views).verdict is Verdict.HOLD
    assert choose({}, {"p0": 0, "p1": 1}, views=views, waited_s=1.0).prefill_id == "p1"


GIVING_WAY = dataclasses.replace(OPTIONS, give_way_s=10.0, ttft_slo_s=2.0, ttft_slo_per_token_s=0.0)


def test_a_request_that_is_late_anyway_lets_others_go_first() -> None:
    # 0.1 s of work: in time behind 1.8 s, late behind 2 s.
    def chosen(wait_s: float, **more: float) -> Placement:
        return choose({"p0": wait_s, "p1": 5.0}, {}, options=GIVING_WAY, **more)  # type: ignore[arg-type]

    assert chosen(1.8).prefill_id == "p0"
    held = chosen(2.0)
    assert held.verdict is Verdict.HOLD
    assert {item.cause for item in held.exclusions} == {ExclusionCause.BUSY}
    assert chosen(0.0, waited_s=5.0).prefill_id == "p0"  # idle: nobody is made late
    assert chosen(2.0, waited_s=9.9).verdict is Verdict.HOLD
    assert chosen(2.0, waited_s=10.0).prefill_id == "p0"


def test_a_late_request_is_refused_where_that_is_wanted() -> None:
    options = dataclasses.replace(GIVING_WAY, refuse_late="always")
    refused = choose({"p0": 2.0, "p1": 5.0}, {}, options=options)
    assert refused.verdict is Verdict.REJECT
    assert refused.retry_after_s == 2.0
    assert choose({"p0": 1.8, "p1": 5.0}, {}, options=options).prefill_id == "p0"


@pytest.mark.parametrize(
    ("refuse_late", "attempt", "ttft_slo_s", "wanted"),
    [
        ("stated", 1, 0.5, Verdict.REJECT),
        ("stated", 1, 0.7, Verdict.PLACE),
        ("stated", 1, None, Verdict.PLACE),
        ("stated", 2, 0.5, Verdict.PLACE),  # what was taken on is seen through
        ("never", 1, 0.5, Verdict.PLACE),
        ("always", 1, 0.5, Verdict.REJECT),
        ("always", 2, 0.5, Verdict.PLACE),
    ],
)
def test_whoever_stated_a_target_that_cannot_be_kept_is_told_at_once(
    refuse_late: str, attempt: int, ttft_slo_s: float | None, wanted: Verdict
) -> None:
    options = RoutingOptions(refuse_late=refuse_late)
    asked = dataclasses.replace(
        request(1000, arrived_at=0.0, ttft_slo_s=ttft_slo_s), attempt=attempt
    )
    views = [engine("p0", wait_s=0.6), sink()]
    assert place("deepseek", views, asked, options=options).verdict is wanted


def test_what_the_caller_was_promised_is_the_target() -> None:
    promised = request(1000, arrived_at=0.0, ttft_slo_s=0.5)
    options = dataclasses.replace(GIVING_WAY, refuse_late="never")
    views = [engine("p0", wait_s=0.6), sink()]
    assert place("deepseek", views, promised, options=options).verdict is Verdict.HOLD


def test_ties_go_to_fewer_tokens_then_by_turns() -> None:
    views = [engine("p0", tokens=5), engine("p1", tokens=3), engine("p2", tokens=3)]
    seen = {
        place("deepseek", [*views, sink()], rotation=rotation).prefill_id for rotation in range(4)
    }
    assert seen == {"p1", "p2"}


clusters = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.just(0.0), st.floats(0.001, 60.0))),
    min_size=1,
    max_size=7,
)
lengths = st.sampled_from([100, 5_000, 20_000, 80_000, 150_000, 600_000])


def laid_out(cluster: list[tuple[int, float]]) -> tuple[dict[str, float], dict[str, int]]:
    waits = {f"p{i}": wait for i, (_, wait) in enumerate(cluster)}
    return waits, {f"p{i}": served for i, (served, _) in enumerate(cluster)}


def least_wait(waits: dict[str, float], classes: dict[str, int], index: int) -> float:
    return min((waits[name] for name in waits if classes[name] == index), default=float("inf"))


@pytest.mark.medium
@settings(max_examples=200)
@given(cluster=clusters, num_tokens=lengths)
def test_a_loan_never_starves_the_lender(cluster: list[tuple[int, float]], num_tokens: int) -> None:
    """Stated bound: the lender's least wait stays below the larger of S and the borrower's."""
    waits, classes = laid_out(cluster)
    placement = choose(waits, classes, num_tokens)
    assume(placement.verdict is Verdict.PLACE)
    chosen, borrower = placement.prefill_id, placement.length_class
    lender = classes[chosen]
    if lender == borrower:
        return
    after = {**waits, chosen: waits[chosen] + placement.quota_s}
    own_wait = least_wait(waits, classes, borrower)
    assert least_wait(after, classes, lender) <= max(S, own_wait) + 1e-9


@pytest.mark.medium
@settings(max_examples=200)
@given(cluster=clusters, num_tokens=lengths)
def test_after_the_bound_every_request_is_placed(
    cluster: list[tuple[int, float]], num_tokens: int
) -> None:
    """Stated bound: S after arrival at the latest, at once if its class has an engine."""
    waits, classes = laid_out(cluster)
    at_once = choose(waits, classes, num_tokens)
    if at_once.length_class in classes.values():
        assert at_once.verdict is Verdict.PLACE
    assert choose(waits, classes, num_tokens, waited_s=S).verdict is Verdict.PLACE


@pytest.mark.medium
@settings(max_examples=200)
@given(
    cluster=clusters,
    num_tokens=lengths,
    more_s=st.floats(0.001, 10.0),
    waited_s=st.sampled_from([0.0, S]),
    moving=st.sets(st.integers(0, 6)),
    gives_way=st.booleans(),
)
def test_more_load_never_attracts_work(
    cluster: list[tuple[int, float]],
    num_tokens: int,
    more_s: float,
    waited_s: float,
    moving: set[int],
    gives_way: bool,
) -> None:
    waits, classes = laid_out(cluster)
    names = tuple(f"p{i}" for i in moving if f"p{i}" in waits)
    views = [engine(name, wait_s=wait) for name, wait in waits.items()]
    rules = GIVING_WAY if gives_way else OPTIONS
    options = {"moving": names, "waited_s": waited_s, "options": rules}
    chosen = choose({}, classes, num_tokens, views=views, **options).prefill_id  # type: ignore[arg-type]
    for index, view in enumerate(views):
        if view.member.member_id == chosen:
            continue
        loaded = dataclasses.replace(
            view,
            outstanding_quota_s=view.outstanding_quota_s + more_s,
            outstanding_requests=view.outstanding_requests + 1,
            outstanding_tokens=view.outstanding_tokens + 100,
        )
        changed = [*views[:index], loaded, *views[index + 1 :]]
        again = choose({}, classes, num_tokens, views=changed, **options)  # type: ignore[arg-type]
        assert again.prefill_id != view.member.member_id


@pytest.mark.parametrize("rotation", range(3))
def test_the_layout_of_shares_follows_members(rotation: int) -> None:
    """The rule keeps rows of the last shares; other members or shares must not meet them."""
    for classes, expected in (({"p0": 0, "p1": 1}, "p0"), ({"p0": 1, "p1": 0}, "p1")):
        assert choose({"p0": 0.1, "p1": 0.1}, classes).prefill_id == expected
        assert choose({"o": 0.9, "p0": 0.1, "p1": 0.1}, {**classes, "o": 0}).prefill_id == expected
