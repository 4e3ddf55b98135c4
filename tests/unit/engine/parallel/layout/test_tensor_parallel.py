"""The TP domain: vectors T-W, T-C, T-H and T-X by name, and the invariants on any widths."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import (
    AttentionShape,
    ExpertShape,
    Family,
    Layout,
    TensorFamily,
    TensorLayout,
    check_layout,
    check_tensor_layout,
)
from tests.fakes.vectors import vectors

VECTORS = vectors("tp_layout")
V41 = AttentionShape(num_heads=64, num_groups=8)
# Words of the vectors' errors and our check.
CHECKS = {
    "attn_tp does not divide heads and o_groups": "HEADS",
    "attn_dp*attn_cp does not divide tp": "ATTENTION",
    "A2A backend needs ep = tp": "A2A",
}


def of(prefix):
    return [name for name in VECTORS if name.startswith(prefix)]


def layout_of(inputs):
    sizes = {key: value for key, value in inputs.items() if key != "rank"}
    if "a2a" in sizes:
        sizes["all_to_all"] = sizes.pop("a2a")
    return TensorLayout(**sizes)


@pytest.mark.parametrize("name", of("T-W"))
def test_width_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]["ours"]
    layout = layout_of(inputs)

    found = check_tensor_layout(layout, attention=V41 if "dp" in inputs else None)

    assert [check for check, _ in found] == [CHECKS[error] for error in expected["errors"]]
    assert (not found) is expected["valid"]
    for width in ("attn_dp", "attn_tp", "moe_ep", "moe_tp"):
        if width in expected:
            assert getattr(layout, width) == expected[width]


@pytest.mark.parametrize("name", of("moe-tp"))
def test_inner_width_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    parts = inputs["moe_tp"]
    assert ExpertShape(intermediate=inputs["intermediate"]).keeps_blocks_whole(parts) is True
    assert inputs["intermediate"] // parts == expected["width"]
    for block in (32, 64, 128):
        shape = ExpertShape(intermediate=inputs["intermediate"], quantisation_block=block)
        assert shape.keeps_blocks_whole(parts) is expected[f"multiple_of_{block}"]


@pytest.mark.parametrize("name", of("T-C"))
def test_coordinates_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    layout = layout_of(inputs)
    assert check_tensor_layout(layout) == []
    assert layout.attention_view.coordinates(inputs["rank"]) == {"pp": 0, **expected["attn"]}
    assert layout.expert_view.coordinates(inputs["rank"]) == {"pp": 0, **expected["moe"]}


@pytest.mark.parametrize("name", of("T-H"))
def test_groups_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    layout = layout_of(inputs)
    for family, groups in expected.items():
        assert [list(group) for group in layout.groups(TensorFamily(family))] == groups
    assert layout.groups(TensorFamily.TP) == (tuple(range(inputs["tp"])),)
    assert layout.groups(TensorFamily.PP) == tuple((rank,) for rank in range(inputs["tp"]))


@pytest.mark.parametrize("name", ["SGLang TP32/DP16", "SGLang TP8/DP8 no A2A"])
def test_configuration_example(name):
    vector = vectors("lockstep")[name]
    attention, experts = vector["inputs"]["attention_view"], vector["inputs"]["expert_view"]
    tp = attention["dp"] * attention["cp"] * attention["tp"]
    layout = TensorLayout(tp=tp, dp=attention["dp"], ep=experts["ep"], moe_dp=experts["edp"])
    assert check_tensor_layout(layout, attention=V41) == []
    assert layout.attn_tp == attention["tp"]
    assert layout.moe_tp == experts["etp"]
    assert layout.world_size == vector["expected"]["world_size"]
    assert layout.lockstep_block == vector["expected"]["block"]


@pytest.mark.parametrize("name", [n for n in vectors("drafts") if n.startswith("T-X")])
def test_draft_vector(name):
    inputs, expected = vectors("drafts")[name]["inputs"], vectors("drafts")[name]["expected"]
    layout = TensorLayout(
        tp=inputs["tp"], dp=inputs["dp"], dp_attention=inputs["dp_attention"], all_to_all=True
    )
    found = check_tensor_layout(layout, has_moe_draft=inputs["moe_draft"])
    assert layout.attn_tp == expected["attn_tp"]
    assert (not found) is expected["accepted"]
    if found:
        assert "set dp to 32" in found[0][1]
    assert check_tensor_layout(layout) == []


@pytest.mark.parametrize(
    ("sizes", "known", "check", "words"),
    [
        ({"tp": 32, "dp": 3}, {}, "ATTENTION", ("attn_dp 3", "tp 32", "1, 2, 4, 8, 16, 32")),
        ({"tp": 32}, {"attention": V41}, "HEADS", ("attn_tp 32", "64 heads", "1, 2, 4, 8")),
        ({"tp": 32, "all_to_all": True, "ep": 8}, {}, "A2A", ("ep 8", "tp 32", "set it to 32")),
        ({"tp": 8, "ep": 3}, {}, "MOE", ("ep 3", "tp 8", "1, 2, 4, 8")),
        (
            {"tp": 8},
            {"expert": ExpertShape(intermediate=2304, quantisation_block=128)},
            "WIDTH",
            ("moe_tp 8", "2304", "128", "one of 1, 2"),
        ),
        (
            {"tp": 4, "all_to_all": True, "moe_dp": 2},
            {},
            "MOE",
            ("ep 4", "moe_dp 2", "tp 4"),
        ),
    ],
)
def test_a_violated_check_names_both_values_and_a_way_out(sizes, known, check, words):
    ((found, sentence),) = check_tensor_layout(TensorLayout(**sizes), **known)
    assert found == check
    for word in words:
        assert word in sentence


@given(
    tp=st.integers(1, 24),
    dp=st.integers(1, 6),
    cp=st.integers(1, 4),
    ep=st.integers(1, 12) | st.none(),
    moe_dp=st.integers(1, 4),
    pp=st.integers(1, 3),
    all_to_all=st.booleans(),
)
def test_invariant_1_groups_of_a_valid_domain_partition_the_ranks(**sizes):
    layout = TensorLayout(**sizes)
    found = check_tensor_layout(layout)
    if found:
        # A way out that is offered works.
        if found[0][0] == "ATTENTION":
            products = re.search(r"one of ([\d, ]+)", found[0][1])[1].split(", ")
            repaired = dataclasses.replace(layout, cp=1, dp=int(products[-1]))
            assert "ATTENTION" not in dict(check_tensor_layout(repaired))
        return
    ranks = list(range(layout.world_size))
    for family in TensorFamily:
        groups = layout.groups(family)
        assert sorted(rank for group in groups for rank in group) == ranks
        assert len({len(group) for group in groups}) == 1
    for view in (layout.attention_view, layout.expert_view):
        assert [view.rank_of(view.coordinates(rank)) for rank in ranks] == ranks


@given(
    dp=st.integers(1, 5), cp=st.integers(1, 3), attn_tp=st.sampled_from([1, 2, 4]), pp=st.just(1)
)
def test_both_families_see_one_numbering(dp, cp, attn_tp, pp):
    """A domain with an all-to-all backend is a data-parallel layout with ep = world."""
    world = dp * cp * attn_tp
    domain = TensorLayout(tp=world, dp=dp, cp=cp, all_to_all=True, pp=pp)
    layout = Layout(dp=dp, cp=cp, attn_tp=attn_tp, ep=world)
    assert check_tensor_layout(domain) == check_layout(layout) == []
    for ours, theirs in (
        (Family.ATTN_TP, TensorFamily.ATTN_TP),
        (Family.CP, TensorFamily.ATTN_CP),
        (Family.EP, TensorFamily.MOE_EP),
    ):
        assert layout.groups(ours) == domain.groups(theirs)
    assert layout.lockstep_block == domain.lockstep_block
    for rank in range(world):
        place = layout.coordinates(rank)
        assert domain.attention_view.coordinates(rank) == {
            "pp": 0,
            "dp": place.dp,
            "cp": place.cp,
            "tp": place.tp,
        }


def test_sizes_below_one_are_refused():
    with pytest.raises(LayoutError, match=r"tp is 0.*ep is 0"):
        TensorLayout(tp=0, ep=0)
