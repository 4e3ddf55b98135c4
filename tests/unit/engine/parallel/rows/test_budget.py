"""Charges and admission under context parallelism: vectors T-M by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.rows.budget import admit, charge, gather_buffer_bytes
from engine.parallel.rows.zigzag import split_rows
from tests.fakes.vectors import vectors

VECTORS = vectors("budget")


@pytest.mark.parametrize("name", [n for n, v in VECTORS.items() if "charged" in v["expected"]])
def test_charge_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    lengths, cp = inputs["q_lens"], inputs["cp"]
    charged = sum(charge(length, cp) for length in lengths)
    assert charged == expected["charged"]
    assert charged // cp == split_rows(lengths, cp).mirror_length == expected["mirror_length"]
    assert sum(lengths) == expected["tokens"]
    assert sum(lengths) // cp == expected["tokens_div_cp"]
    smallest = expected["smallest_budget"]
    assert len(admit(lengths, smallest, cp, can_chunk=False)) == len(lengths)
    assert len(admit(lengths, smallest - 1, cp, can_chunk=False)) < len(lengths)


@pytest.mark.parametrize("name", [n for n, v in VECTORS.items() if "steps" in v["expected"]])
def test_admission_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    left, cp = list(inputs["q_lens"]), inputs["cp"]
    for step in expected["steps"]:
        chunks = admit(left, inputs["budget"], cp, can_chunk=inputs["chunking"])
        assert [
            {"sequence": c.sequence, "tokens": c.num_tokens, "charged": c.charged} for c in chunks
        ] == step["chunks"]
        assert sum(c.charged for c in chunks) == step["charged"]
        split = split_rows([c.num_tokens for c in chunks], cp)
        assert split.mirror_length == step["mirror_length"]
        for chunk in chunks:
            left[chunk.sequence] -= chunk.num_tokens
    assert not any(left)


@pytest.mark.parametrize("name", [n for n in VECTORS if n.startswith("gather-buffer")])
def test_gather_buffer_vector(name):
    inputs, expected = dict(VECTORS[name]["inputs"]), VECTORS[name]["expected"]
    inputs["alignment_bytes"] = inputs.pop("alignment")
    assert gather_buffer_bytes(**inputs) == expected["bytes"]


@given(
    lengths=st.lists(st.integers(0, 300), max_size=8),
    budget=st.integers(1, 400),
    cp=st.sampled_from([1, 2, 3, 4, 8]),
    can_chunk=st.booleans(),
)
def test_a_rank_never_gets_more_rows_than_its_share(lengths, budget, cp, can_chunk):
    chunks = admit(lengths, budget, cp, can_chunk=can_chunk)
    assert sum(c.charged for c in chunks) <= budget
    assert split_rows([c.num_tokens for c in chunks], cp).mirror_length <= budget // cp
    cut = [c for c in chunks if c.num_tokens < lengths[c.sequence]]
    assert cut in ([], chunks[-1:])
    assert not cut or can_chunk
