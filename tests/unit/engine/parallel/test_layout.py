"""Layout vectors T-G, T-B and T-E by name, and the checks' messages."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import (
    Coordinates,
    ExpertSlots,
    Family,
    Layout,
    check_layout,
    require_valid,
)
from engine.parallel.lockstep import EngineKind

VECTORS = Path(__file__).parents[3] / "vectors"


def load(name):
    return {vector["name"]: vector for vector in json.loads((VECTORS / name).read_text())}


GROUPS = load("groups.json")
# T-G11 is the store-rank form of the row store, which this layout does not have yet.
del GROUPS["T-G11"]
BLOCKS = {
    name: vector for name, vector in load("lockstep.json").items() if "dp" in vector["inputs"]
}
EXPERTS = {name: v for name, v in load("experts.json").items() if name.startswith("T-E")}


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
    for family in Family:
        groups = [list(group) for group in layout.groups(family)]
        assert groups == expected["groups"][family.value]


@pytest.mark.parametrize("name", BLOCKS)
def test_lockstep_block_vector(name):
    expected = BLOCKS[name]["expected"]
    layout = Layout(**BLOCKS[name]["inputs"])

    assert layout.lockstep_block == expected["block"]
    assert [list(block) for block in layout.lockstep_blocks()] == expected["blocks"]
    assert layout.is_dp_family_sufficient is expected["dp_family_sufficient"]
    assert (not check_layout(layout)) is expected["valid"]


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_slots_vector(name):
    inputs, expected = EXPERTS[name]["inputs"], EXPERTS[name]["expected"]
    slots = ExpertSlots(
        num_logical=inputs["logical"], ep=inputs["ep"], min_redundant=inputs["min_redundant"]
    )

    found = {
        "pad": slots.num_padding,
        "extra": slots.num_extra,
        "physical": slots.num_physical,
        "local": slots.slots_per_rank,
        "bytes_per_layer_per_rank": slots.bytes_per_rank(inputs["expert_bytes"]),
    }

    assert {key: value for key, value in expected.items() if key in found} == {
        key: found[key] for key in expected if key in found
    }
    assert set(found) & set(expected)


def test_initial_placement_vector():
    vector = load("eplb.json")["T-P1"]
    slots = ExpertSlots(num_logical=384, ep=64, min_redundant=1)
    assert slots.num_physical == 448, vector
    assert slots.place(384) == (54, 6)
    assert slots.place(447) == (63, 6)
    assert slots.local_logical(63) == (57, 58, 59, 60, 61, 62, 63)


@given(dp=st.integers(1, 12), cp=st.integers(1, 6), ep=st.integers(1, 24), enp=st.integers(0, 24))
def test_groups_of_a_valid_layout_partition_the_ranks(dp, cp, ep, enp):
    layout = Layout(dp=dp, cp=cp, ep=ep, enp=enp)
    if check_layout(layout):
        return
    for family in Family:
        members = sorted(rank for group in layout.groups(family) for rank in group)
        assert members == list(range(layout.world_size))
    assert layout.is_dp_family_sufficient


@given(logical=st.integers(1, 400), ep=st.integers(1, 160), redundant=st.integers(0, 70))
def test_slots_cover_every_expert_equally(logical, ep, redundant):
    slots = ExpertSlots(num_logical=logical, ep=ep, min_redundant=redundant)
    assert slots.num_extra >= redundant
    assert slots.slots_per_rank * ep == slots.num_physical
    held = [expert for rank in range(ep) for expert in slots.local_logical(rank)]
    assert set(held) == set(range(logical))
    assert len(held) == slots.num_physical


def test_derived_sizes():
    assert Layout(ep=8, cp=2) == Layout(dp=4, cp=2, ep=8, enp=8)
    assert Layout() == Layout(dp=1, cp=1, ep=1, enp=1)


@pytest.mark.parametrize(
    ("layout", "known", "check", "words"),
    [
        (Layout(dp=3, enp=4), {}, "V1", ("enp 4", "3 * 1", "divisor or a multiple of 3")),
        (Layout(dp=2, ep=4), {}, "V2", ("ep 4", "2 * 1", "multiple of 4")),
        (
            Layout(dp=2, ep=2),
            {"experts": ExpertSlots(num_logical=6, ep=3)},
            "V4",
            ("ep 3", "ep 2", "lay the slots out"),
        ),
        (Layout(dp=1, cp=16), {"ranks_per_node": 8}, "V5", ("cp 16", "8 ranks", "lower cp")),
        (Layout(cp=2, dp=1), {"kind": EngineKind.DECODE}, "V6", ("cp 2", "decode", "cp to 1")),
        (Layout(dp=8, enp=8), {"engram_rows": [300]}, "V7", ("enp 8", "300", "lower enp")),
        (Layout(dp=4, cp=2), {"engine_rank": 4}, "V8", ("engine_rank 4", "0..3", "4 engines")),
    ],
)
def test_a_violated_check_names_both_values_and_a_way_out(layout, known, check, words):
    with pytest.raises(LayoutError) as caught:
        require_valid(layout, **known)

    assert [name for name, _ in caught.value.violations] == [check]
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("size", [{"cp": 0}, {"ep": 0}, {"dp": -1}, {"enp": -2}])
def test_sizes_below_the_lowest_are_refused(size):
    (name, value), *_ = size.items()
    with pytest.raises(LayoutError, match=f"{name} is {value}"):
        Layout(**size)


def test_the_way_out_of_v7_is_valid():
    layout = Layout(dp=8, enp=8)
    (_, sentence), *_ = check_layout(layout, engram_rows=[300])
    enp = int(sentence.rsplit(" ", 1)[1])
    assert not [c for c, _ in check_layout(Layout(dp=8, enp=enp), engram_rows=[300]) if c == "V7"]


def test_an_unknown_rank_is_refused():
    with pytest.raises(ValueError, match=r"rank 4 is not in 0\.\.3"):
        Layout(dp=4).coordinates(4)
