"""Sizes of dispatch buffers: vectors T-D1 (sizes), T-D2 and the worst cases by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.dispatch_sizes import (
    DispatchBounds,
    ExpandedLayout,
    can_fuse,
    layout_of_ids,
    max_rows_per_rank,
)
from tests.fakes.vectors import vectors

VECTORS = vectors("dispatch")


def test_expanded_layout_vector_t_d1():
    inputs, expected = VECTORS["T-D1"]["inputs"], VECTORS["T-D1"]["expected"]
    ids = [slot for tokens in inputs["tokens"] for token in tokens for slot in token["ids"]]
    for rank, wanted in enumerate(expected["ranks"]):
        slots = inputs["slots"] // inputs["ranks"]
        found = layout_of_ids(ids, slots, rank, inputs["alignment"])
        assert list(found.counts) == wanted["counts"]
        assert list(found.ends) == wanted["psum"]
        assert found.num_rows == wanted["rows"]
        # Values stand exactly between the starts and the ends.
        places = [p for p, value in enumerate(wanted["expanded_values"]) if value is not None]
        assert places == [
            place
            for start, end in zip(found.starts, found.ends, strict=True)
            for place in range(start, end)
        ]


def test_expanded_layout_vector_t_d2():
    inputs, expected = VECTORS["T-D2"]["inputs"], VECTORS["T-D2"]["expected"]
    found = ExpandedLayout(counts=tuple(inputs["counts"]), alignment=inputs["alignment"])
    assert list(found.ends) == expected["psum"]
    assert list(found.starts) == expected["starts"]
    assert found.num_rows == expected["rows"]


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("worst-case")])
def test_worst_case_vector(name):
    inputs, expected = dict(VECTORS[name]["inputs"]), VECTORS[name]["expected"]
    inputs["num_ranks"] = inputs.pop("ranks")
    inputs["slots_per_rank"] = inputs.pop("local_slots")
    bounds = DispatchBounds(**inputs)
    assert bounds.plain_rows == expected["plain_rows"]
    assert bounds.expanded_rows == expected["expanded_rows"]


@given(
    ids=st.lists(st.integers(-1, 7), max_size=60),
    slots=st.sampled_from([1, 2, 4]),
    alignment=st.integers(1, 16),
)
def test_no_step_needs_more_than_the_bound(ids, slots, alignment):
    num_ranks = 8 // slots
    bounds = DispatchBounds(
        num_ranks=num_ranks,
        max_tokens=-(-len(ids) // num_ranks),
        top_k=1,
        slots_per_rank=slots,
        alignment=alignment,
    )
    layouts = [layout_of_ids(ids, slots, rank, alignment) for rank in range(num_ranks)]
    assert sum(sum(layout.counts) for layout in layouts) == sum(slot >= 0 for slot in ids)
    for layout in layouts:
        assert all(start % alignment == 0 for start in layout.starts)
        assert layout.num_rows <= bounds.expanded_rows


def test_rows_of_a_step_are_bounded_by_constants():
    sizes = {"max_num_batched_tokens": 8192, "cp": 2, "max_num_seqs": 60, "num_drafts": 5}
    assert max_rows_per_rank(is_prefill=True, **sizes) == 4096
    assert max_rows_per_rank(is_prefill=False, **sizes) == 360


@pytest.mark.parametrize(
    ("activations", "weights", "ep", "scale_up_ranks", "fuses"),
    [
        ("fp8", "fp4", 8, 8, True),
        ("fp8", "fp8", 64, 72, True),
        ("bf16", "bf16", 1, 0, True),
        ("fp8", "fp4", 64, 8, False),
        ("bf16", "fp4", 8, 8, False),
    ],
)
def test_one_kernel_needs_its_formats_and_one_domain(
    activations, weights, ep, scale_up_ranks, fuses
):
    found = can_fuse(activations=activations, weights=weights, ep=ep, scale_up_ranks=scale_up_ranks)
    assert found is fuses
