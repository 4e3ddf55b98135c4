"""Routing against the named vector, the experts' arithmetic against loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagg_kernels import select_kernels
from tests.fakes.tensors import distance, normal
from tests.fakes.vectors import vectors

OPS = select_kernels("cpu")


def test_the_gate_vector() -> None:
    """The vector names experts by falling score; here they are ascending, weights with them."""
    vector = vectors("gate")["T-G1"]
    ids, weights = OPS.route(
        torch.tensor(vector["inputs"]["logits"]),
        torch.tensor(vector["inputs"]["bias"]),
        None,
        top_k=vector["inputs"]["k"],
        scale=vector["inputs"]["scale"],
    )
    for row, logical in enumerate(vector["expected"]["logical"]):
        pairs = sorted(zip(logical, vector["expected"]["weights"][row], strict=True))
        assert ids[row].tolist() == [expert for expert, _ in pairs]
        assert weights[row].tolist() == pytest.approx([w for _, w in pairs], abs=1e-6)


def score(logit: float) -> float:
    return math.sqrt(math.log1p(math.exp(logit)))


@pytest.mark.medium
@given(
    logits=st.lists(
        st.lists(st.sampled_from((-3.0, -0.5, 0.0, 0.25, 1.0, 4.0)), min_size=7, max_size=7),
        min_size=1,
        max_size=5,
    ),
    bias=st.none() | st.lists(st.sampled_from((-1.0, 0.0, 0.5)), min_size=7, max_size=7),
    top_k=st.integers(1, 7),
)
def test_choices_are_the_best_ties_low(
    logits: list[list[float]], bias: list[float] | None, top_k: int
) -> None:
    ids, weights = OPS.route(
        torch.tensor(logits),
        None if bias is None else torch.tensor(bias),
        None,
        top_k=top_k,
        scale=1.5,
    )
    for row, line in enumerate(logits):
        scores = torch.nn.functional.softplus(torch.tensor(line)).sqrt()
        ranking = (scores + torch.tensor(bias or [0.0] * 7)).tolist()
        best = sorted(sorted(range(7), key=lambda e: (-ranking[e], e))[:top_k])
        assert ids[row].tolist() == best
        total = sum(score(line[expert]) for expert in best)
        expected = [score(line[expert]) / total * 1.5 for expert in best]
        assert weights[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_forced_experts_are_weighted_by_the_gate() -> None:
    logits, forced = normal(3, 5), torch.tensor([[0, 4], [1, 2], [2, 3]])
    ids, weights = OPS.route(logits, None, forced, top_k=2, scale=2.5)
    assert torch.equal(ids, forced)
    for row in range(3):
        scores = [score(float(logits[row, expert])) for expert in forced[row].tolist()]
        assert weights[row].tolist() == pytest.approx(
            [s / sum(scores) * 2.5 for s in scores], abs=1e-5
        )


def test_scores_that_underflow_give_no_nan() -> None:
    ids, weights = OPS.route(torch.full((2, 4), -300.0), None, None, top_k=2, scale=1.5)
    assert ids.tolist() == [[0, 1], [0, 1]]
    assert torch.isfinite(weights).all()


def test_swiglu_clamps_both_halves_and_multiplies_the_weight() -> None:
    gate_up, weight = normal(4, 2 * 5) * 3.0, normal(4, seed=1)
    for row_weight in (None, weight):
        found = OPS.swiglu(gate_up, row_weight, 2.0)
        for row in range(4):
            for channel in range(5):
                gate = min(float(gate_up[row, channel]), 2.0)
                up = min(max(float(gate_up[row, 5 + channel]), -2.0), 2.0)
                expected = gate / (1 + math.exp(-gate)) * up
                if row_weight is not None:
                    expected *= float(row_weight[row])
                assert float(found[row, channel]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("width", [5, 32, 64])
def test_swiglu_of_a_row_does_not_depend_on_the_others(width: int) -> None:
    gate_up = normal(40, 2 * width)
    whole = OPS.swiglu(gate_up, None, 10.0)
    for rows in (1, 3, 8, 17):
        assert torch.equal(OPS.swiglu(gate_up[:rows].contiguous(), None, 10.0), whole[:rows])


def naive_experts(
    rows: torch.Tensor,
    weight: torch.Tensor,
    slots: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    clamp: float,
) -> torch.Tensor:
    out = []
    for row, w, slot in zip(rows.double(), weight.double(), slots.tolist(), strict=True):
        gate, up = (row @ gate_up[slot].double()).chunk(2)
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        out.append((gate * torch.sigmoid(gate) * up * w) @ down[slot].double())
    return torch.stack(out)


LOADS = {
    "even": [3, 3, 3, 3],
    "holes": [0, 5, 0, 2],
    "one row": [0, 0, 1, 0],
    "skewed": [200, 1, 0, 2],
    "one expert": [0, 0, 0, 40],
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("min_rows", [1, 4])
def test_experts_are_a_loop_over_rows(load: str, min_rows: int) -> None:
    slots = torch.repeat_interleave(torch.arange(4), torch.tensor(LOADS[load]))
    rows, weight = normal(len(slots), 6), normal(len(slots), seed=1)
    gate_up, down = normal(4, 6, 10, seed=2), normal(4, 5, 6, seed=3)
    found = OPS.grouped_experts(rows, weight, slots, gate_up, down, 1.5, min_rows)
    expected = naive_experts(rows, weight, slots, gate_up, down, 1.5)
    assert distance(found, expected) < 1e-4


def test_a_row_is_the_same_in_every_load() -> None:
    gate_up, down = normal(4, 16, 64, seed=2), normal(4, 32, 16, seed=3)
    rows, weight = normal(203, 16), normal(203, seed=1).abs()
    results = []
    for load in LOADS.values():
        slots = torch.repeat_interleave(torch.arange(4), torch.tensor(load))
        # The row under test goes first to the last expert that has rows.
        place = int((slots < slots.max()).sum())
        filled = rows[: len(slots)].clone()
        weights = weight[: len(slots)].clone()
        filled[place], weights[place] = rows[202], weight[202]
        slots = torch.where(slots == slots.max(), 3, slots)
        found = OPS.grouped_experts(filled, weights, slots, gate_up, down, 10.0, 4)
        results.append(found[place])
    assert all(torch.equal(result, results[0]) for result in results)


def test_no_rows_are_legal() -> None:
    none = torch.empty(0, dtype=torch.int64)
    ids, weights = OPS.route(normal(0, 5), normal(5), None, top_k=2, scale=1.5)
    assert (ids.shape, weights.shape) == ((0, 2), (0, 2))
    forced = torch.empty(0, 2, dtype=torch.int64)
    assert OPS.route(normal(0, 5), None, forced, top_k=2, scale=1.5)[1].shape == (0, 2)
    assert OPS.swiglu(normal(0, 10), normal(0), 10.0).shape == (0, 5)
    found = OPS.grouped_experts(
        normal(0, 6), normal(0), none, normal(4, 6, 10), normal(4, 5, 6), 10.0, 4
    )
    assert found.shape == (0, 6)


def test_wrong_arguments_are_named() -> None:
    slots = torch.tensor([0, 1])
    weights = normal(4, 6, 10), normal(4, 5, 6)
    for call, message in (
        (
            lambda: OPS.route(normal(2, 5).double(), None, None, top_k=2, scale=1.0),
            "logits: dtype torch.float64, wanted torch.float32",
        ),
        (
            lambda: OPS.route(normal(2, 5), normal(4), None, top_k=2, scale=1.0),
            "bias: shape (4,), wanted [5]",
        ),
        (
            lambda: OPS.route(normal(2, 5), None, slots[None], top_k=2, scale=1.0),
            "forced: shape (1, 2), wanted [2, 2]",
        ),
        (
            lambda: OPS.swiglu(normal(2, 10), normal(3), 10.0),
            "row_weight: shape (3,), wanted [2]",
        ),
        (
            lambda: OPS.grouped_experts(normal(2, 5), normal(2), slots, *weights, 10.0, 4),
            "rows: shape (2, 5), wanted [*, 6]",
        ),
        (
            lambda: OPS.grouped_experts(normal(2, 6), normal(2), slots.int(), *weights, 10.0, 4),
            "slots: dtype torch.int32, wanted torch.int64",
        ),
        (
            lambda: OPS.grouped_experts(
                normal(2, 6), normal(2), slots, weights[0], normal(4, 6, 6), 10.0, 4
            ),
            "down: shape (4, 6, 6), wanted [4, 5, 6]",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
