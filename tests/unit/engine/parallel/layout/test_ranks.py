"""Layout vectors T-G and T-B by name, and the invariants on any sizes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import Coordinates, Family, Layout, Transport, check_layout
from tests.fakes.vectors import vectors

GROUPS = vectors("groups")
STORE_RANKS = {"T-G11": GROUPS.pop("T-G11")}
BLOCKS = {name: v for name, v in vectors("lockstep").items() if name.startswith("T-B")}
EXAMPLES = {name: v for name, v in vectors("lockstep").items() if not name.startswith("T-B")}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_vector(name):
    expected = GROUPS[name]["expected"]
    layout = Layout(**GROUPS[name]["inputs"])

    violated = [check for check, _ in check_layout(layout)]

    assert violated == expected["violated"]
    assert layout.replica_size == expected["replica_size"]
    assert layout.world_size == expected["world_size"]
    if "groups" not in expected:
        return
    assert layout.num_replicas == expected["replicas"]
    assert layout.num_table_copies == expected["table_copies"]
    assert layout.num_engines == expected["engines"]
    for rank, coordinates in enumerate(expected["coordinates"]):
        assert layout.coordinates(rank) == Coordinates(**coordinates)
        attention = {axis: coordinates[axis] for axis in ("replica", "dp", "cp")}
        assert layout.rank_of(**attention) == rank
    for family, groups in expected["groups"].items():
        assert [list(group) for group in layout.groups(Family(family))] == groups
    assert layout.groups(Family.ATTN_TP) == tuple((r,) for r in range(layout.world_size))


@pytest.mark.parametrize("name", STORE_RANKS)
def test_store_ranks_vector(name):
    layout = Layout(**STORE_RANKS[name]["inputs"])
    expected = STORE_RANKS[name]["expected"]["ours"]

    assert check_layout(layout) == []
    assert layout.world_size == expected["world_size"]
    assert list(range(layout.num_engine_ranks)) == expected["engine_ranks"]
    for family, groups in expected["groups"].items():
        assert [list(group) for group in layout.groups(Family(family))] == groups
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [place.dp for place in places] == expected["dp_rank"]
    assert [place.ep_rank for place in places] == expected["ep_rank"]
    assert [place.enp_rank for place in places] == expected["enp_rank"]
    assert [channel.purpose for channel in layout.channels(7)] == ["table"]


def test_store_ranks_may_hold_the_table_alone():
    layout = Layout(dp=4, ep=4, enp=2, store_ranks=2)
    assert check_layout(layout) == []
    assert layout.groups(Family.ENP) == ((4, 5),)
    assert layout.coordinates(0).enp_rank is None
    assert layout.coordinates(5).enp_rank == 1
    assert [check for check, _ in check_layout(dataclasses.replace(layout, enp=4))] == ["V1"]


@pytest.mark.parametrize("name", BLOCKS)
def test_lockstep_block_vector(name):
    expected = BLOCKS[name]["expected"]
    layout = Layout(**BLOCKS[name]["inputs"])

    assert layout.lockstep_block == expected["block"]
    assert [list(block) for block in layout.lockstep_blocks()] == expected["blocks"]
    assert layout.is_dp_family_sufficient is expected["dp_family_sufficient"]
    assert layout.is_over_synchronised is expected["over_synchronised"]
    assert (not check_layout(layout)) is expected["valid"]


@pytest.mark.parametrize("name", [n for n, v in EXAMPLES.items() if "deepinfer" in str(v)])
def test_configuration_example(name):
    inputs, expected = EXAMPLES[name]["inputs"], EXAMPLES[name]["expected"]
    view = inputs["attention_view"]
    layout = Layout(
        dp=view["dp"],
        cp=view["cp"],
        attn_tp=view["tp"],
        ep=inputs["expert_view"]["ep"],
        enp=view["replica"] * view["dp"] * view["cp"],
    )
    assert check_layout(layout) == []
    assert layout.attention_view.axes == view
    assert layout.expert_view.axes == {a: inputs["expert_view"][a] for a in ("edp", "ep")}
    assert layout.world_size == expected["world_size"]
    assert layout.lockstep_block == expected["block"]


def test_attention_tp_is_innermost():
    layout = Layout(dp=2, cp=2, ep=8, attn_tp=2)
    assert check_layout(layout) == []
    assert layout.world_size == 8
    assert layout.groups(Family.ATTN_TP) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.groups(Family.CP) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert layout.groups(Family.DP) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.coordinates(7).tp == 1
    assert layout.lockstep_block == 8


SIZES = {
    "dp": st.integers(0, 12),
    "cp": st.integers(1, 6),
    "ep": st.integers(1, 24),
    "enp": st.integers(0, 24),
    "attn_tp": st.integers(1, 4),
    "store_ranks": st.integers(0, 4),
}


@given(**SIZES)
def test_invariant_1_coordinates_are_a_bijection_and_groups_partition(**sizes):
    layout = Layout(**sizes)
    if check_layout(layout):
        return
    engines = list(range(layout.num_engine_ranks))
    for family in Family:
        members = sorted(rank for group in layout.groups(family) for rank in group)
        view = layout.store_view if family is Family.ENP else layout.attention_view
        assert members == list(range(view.first_rank, view.first_rank + view.size))
    places = [layout.coordinates(rank) for rank in engines]
    attention = [(p.replica, p.dp, p.cp, p.tp) for p in places]
    assert len(set(attention)) == len({(p.ep_group, p.ep_rank) for p in places}) == len(engines)
    for rank, (replica, dp, cp, tp) in zip(engines, attention, strict=True):
        assert layout.rank_of(replica=replica, dp=dp, cp=cp, tp=tp) == rank


@given(**SIZES)
def test_a_lockstep_block_contains_every_group_that_meets_in_a_step(**sizes):
    layout = Layout(**sizes)
    if check_layout(layout):
        return
    assert layout.is_dp_family_sufficient
    block_of = {rank: block for block in layout.lockstep_blocks() for rank in block}
    for family in (Family.EP, Family.CP, Family.ATTN_TP):
        for group in layout.groups(family):
            assert set(group) <= set(block_of[group[0]])


def test_every_rank_opens_the_channels_of_its_groups_in_one_order():
    layout = Layout(dp=2, cp=2, ep=4, attn_tp=2)
    purposes = ["plans", "sequence", "attention", "experts", "table"]
    for rank in range(layout.world_size):
        channels = layout.channels(rank)
        is_leader = rank in (0, 4)
        assert [channel.purpose for channel in channels] == ["vote"] * is_leader + purposes
        assert all(rank in channel.members for channel in channels)
    hosts = {c for rank in range(8) for c in layout.channels(rank) if c.transport is Transport.HOST}
    assert {(c.purpose, c.members) for c in hosts} == {
        ("vote", (0, 4)),
        ("plans", (0, 1, 2, 3)),
        ("plans", (4, 5, 6, 7)),
    }


def test_path_a_has_a_channel_over_each_replica():
    layout = Layout(dp=2, ep=4, attn_tp=2, enp=8)
    purposes = [channel.purpose for channel in layout.channels(6, has_domain=True)]
    assert purposes == ["vote", "plans", "sequence", "attention", "domain", "experts", "table"]
    (domain,) = [c for c in layout.channels(6, has_domain=True) if c.purpose == "domain"]
    assert (domain.members, domain.needs_warm_up) == ((4, 5, 6, 7), True)


@pytest.mark.parametrize(
    ("layout", "voters"),
    [
        (Layout(dp=4, cp=2, ep=8), ((0, 2, 4, 6),)),
        (Layout(dp=2, cp=4, ep=8), ((0, 4),)),
        (Layout(dp=2, ep=2, enp=4), ((0, 1), (2, 3))),
        (Layout(dp=2, cp=2, ep=4, enp=8), ((0, 2), (4, 6))),
        (Layout(dp=1, ep=2, attn_tp=2), ((0,),)),
    ],
)
def test_the_leaders_of_a_replica_vote_together(layout, voters):
    assert layout.voters() == voters
    for block in layout.lockstep_blocks():
        leaders = {layout.leader_of(rank) for rank in block}
        assert any(leaders <= set(group) for group in voters)


def test_derived_sizes():
    assert Layout(ep=8, cp=2) == Layout(dp=4, cp=2, ep=8, enp=8)
    assert Layout(ep=8, attn_tp=2) == Layout(dp=4, ep=8, enp=8, attn_tp=2)
    assert Layout() == Layout(dp=1, cp=1, ep=1, enp=1)


@pytest.mark.parametrize("size", [{"cp": 0}, {"ep": 0}, {"dp": -1}, {"enp": -2}, {"attn_tp": 0}])
def test_sizes_below_the_lowest_are_refused(size):
    (name, value), *_ = size.items()
    with pytest.raises(LayoutError, match=f"{name} is {value}"):
        Layout(**size)


def test_an_unknown_rank_is_refused():
    with pytest.raises(ValueError, match=r"rank 4 is not in 0\.\.3"):
        Layout(dp=4).coordinates(4)
