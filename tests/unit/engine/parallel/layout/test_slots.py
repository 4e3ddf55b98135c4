"""Slot arithmetic: vectors T-E and T-P1 by name, and invariant 2 on any sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import ExpertSlots
from tests.fakes.vectors import vectors

EXPERTS = {name: v for name, v in vectors("experts").items() if name.startswith("T-E")}


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_slots_vector(name):
    inputs, expected = EXPERTS[name]["inputs"], EXPERTS[name]["expected"]
    slots = ExpertSlots(
        num_logical=inputs["logical"], ep=inputs["ep"], min_redundant=inputs["min_redundant"]
    )
    num_bytes = slots.bytes_per_rank(inputs["expert_bytes"])

    assert expected == {
        "pad": slots.num_padding,
        "extra": slots.num_extra,
        "physical": slots.num_physical,
        "local": slots.slots_per_rank,
        "bytes_per_layer_per_rank": num_bytes,
        "mb_per_layer_per_rank": round(num_bytes / 1e6, 1),
    }


@pytest.mark.parametrize("name", ["T-P1"])
def test_initial_placement_vector(name):
    vector = vectors("eplb")[name]
    slots = ExpertSlots(num_logical=384, ep=64, min_redundant=1)
    assert slots.num_physical == vector["inputs"]["physical"]
    assert slots.slots_per_rank == vector["expected"]["local"]
    assert list(slots.initial_logical()) == vector["expected"]["physical_to_logical"]
    assert slots.place(384) == (54, 6)
    assert slots.place(447) == (63, 6)
    assert slots.local_logical(63) == (57, 58, 59, 60, 61, 62, 63)


@given(logical=st.integers(1, 400), ep=st.integers(1, 160), redundant=st.integers(0, 70))
def test_invariant_2_slots_cover_every_expert_equally(logical, ep, redundant):
    slots = ExpertSlots(num_logical=logical, ep=ep, min_redundant=redundant)
    assert slots.num_extra >= redundant
    assert slots.slots_per_rank * ep == slots.num_physical
    held = [expert for rank in range(ep) for expert in slots.local_logical(rank)]
    assert set(held) == set(range(logical))
    assert len(held) == slots.num_physical


@pytest.mark.parametrize("size", [{"num_logical": 0}, {"ep": 0}, {"min_redundant": -1}])
def test_sizes_below_the_lowest_are_refused(size):
    with pytest.raises(LayoutError, match="must be at least"):
        ExpertSlots(**{"num_logical": 4, "ep": 2, **size})
