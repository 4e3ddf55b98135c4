"""Views: bijection, partition, order of members, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.layout import Channel, Transport, View

AXES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    lambda sizes: {f"axis{number}": size for number, size in enumerate(sizes)}
)


@given(axes=AXES, first=st.integers(0, 7), data=st.data())
def test_coordinates_are_a_bijection_and_groups_partition(axes, first, data):
    view = View(name="some", axes=axes, first_rank=first)
    ranks = list(range(first, first + view.size))
    assert [view.rank_of(view.coordinates(rank)) for rank in ranks] == ranks
    members = data.draw(st.lists(st.sampled_from(list(axes)), min_size=1, unique=True))
    groups = view.groups(*members)
    assert sorted(rank for group in groups for rank in group) == ranks
    for group in groups:
        fixed = [
            {a: c for a, c in view.coordinates(rank).items() if a not in members} for rank in group
        ]
        assert all(one == fixed[0] for one in fixed)
        assert view.group_of(group[-1], *members) == group


def test_members_stand_in_the_order_of_the_named_axes():
    view = View(name="some", axes={"a": 2, "b": 2, "c": 2})
    assert view.groups("a", "b") == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert view.groups("b", "a") == ((0, 4, 2, 6), (1, 5, 3, 7))


def test_what_is_outside_is_refused():
    view = View(name="store", axes={"enp": 4}, first_rank=4)
    with pytest.raises(ValueError, match=r"rank 3 is not in 4\.\.7 \(store view\)"):
        view.coordinates(3)
    with pytest.raises(ValueError, match="enp = 4 is outside"):
        view.rank_of({"enp": 4})
    with pytest.raises(ValueError, match="dp = 0 is outside"):
        view.rank_of({"dp": 0})


def test_equal_members_are_not_an_equal_channel():
    vote, experts = (
        Channel(family="dp", purpose=purpose, members=(0, 1), transport=transport)
        for purpose, transport in (("vote", Transport.HOST), ("experts", Transport.DEVICE))
    )
    assert vote != experts
    assert (vote.needs_warm_up, experts.needs_warm_up) == (False, True)
    assert str(vote) == "dp/vote[0, 1]"
