"""Who is alive, how loaded: rules one by one, then against a ten-line model."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from balancer.membership import ExclusionCause, Membership, Role
from tests.fakes.memberships import member


def make() -> Membership:
    return Membership(stale_after_s=5.0, forget_after_s=60.0)


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="stale_after_s 9 must be positive and not above"):
        Membership(stale_after_s=9, forget_after_s=3)


def test_a_fresh_ready_member_is_a_candidate_until_it_falls_silent() -> None:
    members = make()
    assert members.observe(member(), now=0.0)
    [view] = members.views(5.0)
    assert view.exclusion is None
    assert view.age_s == 5.0
    [view] = members.views(5.1)
    assert view.exclusion is ExclusionCause.STALE
    assert "5.1 s" in view.detail
    assert members.sweep(60.0) == []
    assert members.sweep(60.1) == ["d0"]
    assert members.views(60.1) == ()


def test_an_older_snapshot_never_overwrites_a_newer_one() -> None:
    members = make()
    assert members.observe(member(sequence=7, ready=True), now=0.0)
    assert not members.observe(member(sequence=6, ready=False), now=1.0)
    assert not members.observe(member(sequence=7, ready=False), now=1.0)
    [view] = members.views(1.0)
    assert view.exclusion is None
    assert view.age_s == 1.0  # a late copy is no sign of life
    assert members.statistics(1.0).stale_heartbeats == 2


def test_nobody_falls_silent_while_the_balancer_does_not_listen() -> None:
    members = make()
    members.observe(member(), now=0.0)
    members.listen(0.25)
    assert members.can_serve(0.25) is False  # one half of a pair; the other never matters here
    # The loop stands for two minutes: before it turns again, and after it did.
    assert members.sweep(120.0) == []
    assert members.views(120.0)[0].exclusion is None
    members.listen(120.0)
    assert members.views(120.0)[0].exclusion is None
    assert members.statistics(120.0).deaf_s == 119.25
    # From then on it is heard, or not.
    for tick in range(1, 24):
        members.listen(120.0 + tick / 4)
    assert members.views(125.0)[0].exclusion is ExclusionCause.STALE


def test_a_loop_that_is_always_late_hears_a_share_of_the_time() -> None:
    members = make()
    members.observe(member(), now=0.0)
    stale_at = None
    for second in range(60):
        members.listen(float(second))
        if members.views(float(second))[0].exclusion is ExclusionCause.STALE:
            stale_at = second
            break
    assert stale_at == 11, "half a second of each was listened to"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"ready": False}, ExclusionCause.NOT_READY),
        ({"draining": True}, ExclusionCause.DRAINING),
    ],
)
def test_members_that_say_so_get_no_work(fields: dict[str, bool], cause: ExclusionCause) -> None:
    members = make()
    members.observe(member(**fields), now=0.0)
    assert members.views(0.0)[0].exclusion is cause


def test_a_rank_that_falls_silent_takes_its_group_out_and_no_other() -> None:
    members = make()
    ranks = [
        member(f"{group}{rank}", group_id=group, group_size=2, rank=rank, address=f"{group}{rank}")
        for group in "ab"
        for rank in range(2)
    ]
    alone = member("c0", address="c0")
    for made in (*ranks, alone, member("p0", Role.PREFILL)):
        members.observe(made, now=0.0)
    assert members.statistics(0.0).ready_decode == 5
    for made in (*ranks[1:], alone, member("p0", Role.PREFILL)):
        members.observe(dataclasses.replace(made, sequence=2), now=4.0)

    def out(now: float) -> dict[str, ExclusionCause]:
        views = members.views(now)
        return {view.member.member_id: view.exclusion for view in views if view.exclusion}

    assert out(5.0) == {}
    assert out(6.0) == {"a0": ExclusionCause.STALE, "a1": ExclusionCause.GROUP_INCOMPLETE}
    members.observe(dataclasses.replace(ranks[0], sequence=3), now=7.0)
    assert out(7.0) == {}


def test_a_group_takes_no_work_before_all_its_ranks_were_heard() -> None:
    members = make()
    members.observe(member("p0", Role.PREFILL), now=0.0)
    first, second = (
        member(f"d{rank}", group_size=2, rank=rank, address=f"d{rank}") for rank in range(2)
    )
    members.observe(first, now=0.0)
    assert members.views(0.0)[0].exclusion is ExclusionCause.GROUP_INCOMPLETE
    assert not members.can_serve(0.0)
    members.observe(dataclasses.replace(second, draining=True), now=0.0)
    assert members.views(0.0)[0].exclusion is None  # one that drains is there
    # A rank under a new name is the same rank: the other one has not been heard of.
    again = make()
    for made in (first, dataclasses.replace(first, member_id="d9", address="d9")):
        again.observe(made, now=0.0)
    assert {view.exclusion for view in again.views(0.0)} == {ExclusionCause.GROUP_INCOMPLETE}


def test_our_own_placements_weigh_at_once_and_no_snapshot_takes_them_away() -> None:
    members = make()
    members.observe(member(), now=0.0)
    members.assign("d0", "r1", 100)
    members.assign("d0", "r1", 100)  # idempotent
    [view] = members.views(0.0)
    assert (view.outstanding_requests, view.outstanding_tokens) == (1, 100)
    # Made before the request arrived there, received after we placed it.
    members.observe(member(sequence=2, running=0, kv_tokens=0), now=0.5)
    [view] = members.views(0.5)
    assert (view.outstanding_requests, view.outstanding_tokens) == (1, 100)
    members.unassign("d0", "r1")
    members.unassign("d0", "r1")
    assert members.views(0.5)[0].outstanding_requests == 0


def test_what_others_placed_is_added() -> None:
    members = make()
    members.observe(member(), now=0.0)
    members.assign("d0", "r1", 100)
    members.observe(member(sequence=2, running=3, waiting=1, kv_tokens=900), now=0.5)
    [view] = members.views(0.5)
    assert (view.outstanding_requests, view.outstanding_tokens) == (4, 900)
    members.unassign("d0", "r1")
    [view] = members.views(0.5)
    assert (view.outstanding_requests, view.outstanding_tokens) == (3, 800)


def test_a_restarted_member_replaces_the_old_one_on_its_address() -> None:
    members = make()
    members.observe(member("d0-old", address="h:1"), now=0.0)
    members.assign("d0-old", "r1", 10)
    members.observe(member("d0-new", address="h:1"), now=0.1)
    assert [view.member.member_id for view in members.views(0.1)] == ["d0-new"]
    members.unassign("d0-old", "r1")  # its request ends later; nothing breaks
    assert members.statistics(0.1).forgotten == 1


def test_suspicion_passes_by_itself() -> None:
    members = make()
    members.observe(member(), now=0.0)
    members.suspect("d0", "gone", now=1.0, for_s=2.0)
    [view] = members.views(2.9)
    assert view.exclusion is ExclusionCause.SUSPECT
    assert view.detail == "gone"
    assert members.views(3.0)[0].exclusion is None
    members.suspect("nobody", "gone", now=1.0, for_s=2.0)


def test_after_suspicion_one_request_tries_until_there_is_a_sign_of_life() -> None:
    members = make()
    members.observe(member(), now=0.0)
    members.probe("d0", now=0.0)  # not under suspicion: nothing changes
    assert members.views(0.0)[0].exclusion is None
    members.suspect("d0", "gone", now=0.0, for_s=2.0)
    assert members.views(2.0)[0].exclusion is None
    members.probe("d0", now=2.0)
    assert members.views(3.9)[0].exclusion is ExclusionCause.SUSPECT
    assert members.views(4.0)[0].exclusion is None  # it never came back: the next one tries
    members.probe("d0", now=4.0)
    assert members.absolve("d0")
    assert members.views(4.0)[0].exclusion is None
    members.probe("d0", now=4.0)
    assert members.views(4.0)[0].exclusion is None
    assert not members.absolve("d0")
    members.probe("nobody", now=4.0)
    assert not members.absolve("nobody")


def test_an_ordered_drain_is_passed_on_and_taken_back() -> None:
    members = make()
    members.observe(member(), now=0.0)
    assert not members.is_drain_ordered("d0")
    assert members.order_drain("d0")
    assert members.is_drain_ordered("d0")
    assert members.views(0.0)[0].exclusion is ExclusionCause.DRAINING
    assert members.order_drain("d0", drain=False)
    assert members.views(0.0)[0].exclusion is None
    assert not members.order_drain("nobody")
    assert not members.is_drain_ordered("nobody")


def test_service_needs_a_pair_with_one_layout() -> None:
    members = make()
    members.observe(member("d0"), now=0.0)
    assert not members.can_serve(0.0)
    other = member("p0", Role.PREFILL, fingerprint=b"layout-2")
    members.observe(other, now=0.0)
    assert not members.can_serve(0.0)
    members.observe(dataclasses.replace(other, fingerprint=b"layout-1", sequence=2), now=0.0)
    assert members.can_serve(0.0)
    assert not members.can_serve(9.0)
    assert members.statistics(0.0).ready_prefill == 1
    assert [view.member.member_id for view in members.views(0.0, Role.PREFILL)] == ["p0"]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.25, 0.5, 0.75, 1.0, 4.0, 30.0, 90.0]), st.booleans()),
        max_size=40,
    )
)
@settings(max_examples=100, deadline=None)
def test_silence_is_counted_in_time_that_was_listened_to(
    turns: list[tuple[float, bool]],
) -> None:
    """Turns of the loop: how long after the last one, and whether a heartbeat came with it."""
    members, now, silent_s = make(), 0.0, 0.0
    members.observe(member(sequence=0), now)
    members.listen(now)
    for number, (gap_s, is_heard) in enumerate(turns, 1):
        now += gap_s
        silent_s += min(gap_s, 0.5)
        # What looks before the turn is counted sees the same.
        for _ in range(2):
            [view] = members.views(now)
            assert (view.exclusion is ExclusionCause.STALE) == (silent_s > 5.0)
            members.listen(now)
        assert members.sweep(now) == []  # 40 turns hear 20 seconds at most
        if is_heard:
            members.observe(member(sequence=number), now)
            silent_s = 0.0
        members.check_integrity()


class MembershipMachine(RuleBasedStateMachine):
    """Any order of heartbeats, work and time against a plain model."""

    names = st.sampled_from(["d0", "d1", "d2"])

    def __init__(self) -> None:
        super().__init__()
        self.members = make()
        self.now = 0.0
        self.model: dict[str, list[float]] = {}  # member -> [sequence, seen at]
        self.work: dict[str, set[str]] = {}

    @rule(name=names, sequence=st.integers(1, 20))
    def heartbeat(self, name: str, sequence: int) -> None:
        known = self.model.get(name)
        news = known is None or sequence > known[0]
        assert self.members.observe(member(name, sequence=sequence), self.now) == news
        if news:
            self.model[name] = [sequence, self.now]
            self.work.setdefault(name, set())

    @rule(name=names, work=st.integers(0, 5))
    def assign(self, name: str, work: int) -> None:
        self.members.assign(name, str(work), 10)
        if name in self.work:
            self.work[name].add(str(work))

    @rule(name=names, work=st.integers(0, 5))
    def unassign(self, name: str, work: int) -> None:
        self.members.unassign(name, str(work))
        self.work.get(name, set()).discard(str(work))

    @rule(seconds=st.sampled_from([0.5, 4.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        gone = {name for name, (_, seen) in self.model.items() if self.now - seen > 60.0}
        assert set(self.members.sweep(self.now)) == gone
        for name in gone:
            del self.model[name], self.work[name]

    @invariant()
    def views_match(self) -> None:
        self.members.check_integrity()
        views = {view.member.member_id: view for view in self.members.views(self.now)}
        assert views.keys() == self.model.keys()
        for name, view in views.items():
            is_stale = self.now - self.model[name][1] > 5.0
            assert (view.exclusion is ExclusionCause.STALE) == is_stale
            assert view.outstanding_requests == len(self.work[name])
            assert view.outstanding_tokens == 10 * len(self.work[name])


MembershipMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestMembershipMachine = pytest.mark.medium(MembershipMachine.TestCase)
