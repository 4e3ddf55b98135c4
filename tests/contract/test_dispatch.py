"""One suite for every dispatcher: bit-equal to one rank, whatever the rows and the transport."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.dispatch_format import DispatchFormat, formatted
from engine.parallel.ports import RankContext, open_ports
from engine.parallel.worker import run_group

RANKS = Path(__file__).parents[1] / "distributed" / "ranks"
sys.path.insert(0, str(RANKS))

import dispatch_ranks as ranks  # noqa: E402

VECTORS = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[1] / "vectors" / "dispatch.json").read_text())
}
GROUPS = [("local", 1), ("shm", 2), ("shm", 4), ("gloo", 2), ("gloo", 4)]
pytestmark = [pytest.mark.medium, pytest.mark.timeout(90)]


def start(entry, backend, num_ranks, out, **more):
    options = {"out": str(out), **more}
    if backend == "local":
        getattr(ranks, entry)(RankContext(), options)
        return 0
    return run_group(
        f"dispatch_ranks:{entry}",
        num_ranks,
        options,
        backend=backend,
        group_name=f"{backend}{num_ranks}",
        collective_timeout_s=30.0,
        start_timeout_s=60.0,
    )


def load(path):
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-{group[1]}")
def group(request, tmp_path_factory):
    """All cases run once by a real group; results by (case number, rank)."""
    backend, num_ranks = request.param
    out = tmp_path_factory.mktemp(f"{backend}{num_ranks}")
    assert start("run_cases", backend, num_ranks, out) == 0
    return num_ranks, {
        (number, rank): load(out / f"{number}-{rank}.npz")
        for number in range(len(ranks.CASES))
        for rank in range(num_ranks)
    }


def one_rank_result(case, num_ranks, form=DispatchFormat.FLOAT32):
    """The same rows of all ranks, in rank order, dispatched by one rank that has every slot."""
    inputs = [
        torch.cat(parts)
        for parts in zip(
            *(ranks.case_inputs(case, rank, num_ranks) for rank in range(num_ranks)), strict=True
        )
    ]
    shape = DispatchShape(
        hidden=form.row_width(ranks.HIDDEN),
        top_k=ranks.TOP_K,
        max_tokens=ranks.MAX_TOKENS * num_ranks,
        result_hidden=form.result_width(ranks.HIDDEN),
    )
    dispatcher = formatted(LocalDispatcher(shape), form, ranks.HIDDEN)
    return ranks.run_case(dispatcher, inputs, ranks.SLOTS_PER_RANK * num_ranks)


@pytest.mark.parametrize("form", [DispatchFormat.FP8, DispatchFormat.FP8_BF16])
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 4), ("gloo", 2)])
def test_rounded_rows_are_bit_equal_to_one_rank(backend, num_ranks, form, tmp_path):
    assert start("run_rounded", backend, num_ranks, tmp_path, form=form.value) == 0

    for number, case in enumerate(ranks.CASES):
        found = [load(tmp_path / f"{number}-{rank}.npz") for rank in range(num_ranks)]
        expected = one_rank_result(case, num_ranks, form)
        for name in ("rows", "combined"):
            np.testing.assert_array_equal(
                np.concatenate([result[name] for result in found]), expected[name]
            )


@pytest.mark.parametrize("number", range(len(ranks.CASES)), ids=lambda n: ranks.CASES[n].name)
def test_every_case_is_bit_equal_to_one_rank(group, number):
    num_ranks, results = group
    case = ranks.CASES[number]
    expected = one_rank_result(case, num_ranks)
    found = [results[number, rank] for rank in range(num_ranks)]

    for rank, result in enumerate(found):
        first = rank * ranks.SLOTS_PER_RANK
        mine = (expected["local_slots"] >= first) & (
            expected["local_slots"] < first + ranks.SLOTS_PER_RANK
        )
        # Order included: one rank's rows of these slots, in one rank's order.
        np.testing.assert_array_equal(result["rows"], expected["rows"][mine])
        np.testing.assert_array_equal(result["row_weights"], expected["row_weights"][mine])
        np.testing.assert_array_equal(result["local_slots"], expected["local_slots"][mine] - first)
        assert result["local_slots"].dtype == np.int64
    np.testing.assert_array_equal(
        np.concatenate([result["combined"] for result in found]), expected["combined"]
    )


@pytest.mark.parametrize("number", range(len(ranks.CASES)), ids=lambda n: ranks.CASES[n].name)
def test_combine_puts_each_choice_in_its_place(group, number):
    num_ranks, results = group
    case = ranks.CASES[number]
    dispatched = 0
    used = 0
    for rank in range(num_ranks):
        rows, ids, weights = (t.numpy() for t in ranks.case_inputs(case, rank, num_ranks))
        factors = (ids + 1).astype(np.float32)[..., None]
        expected = np.where(ids[..., None] < 0, 0, rows[:, None] * factors * weights[..., None])
        np.testing.assert_array_equal(results[number, rank]["combined"], expected)
        dispatched += len(results[number, rank]["rows"])
        used += int((ids >= 0).sum())
    # No row is dispatched twice, and none that has no expert.
    assert dispatched == used


@pytest.mark.parametrize(("backend", "num_ranks"), GROUPS)
def test_bad_input_is_refused_before_anything_is_sent(backend, num_ranks, tmp_path):
    assert start("bad_inputs", backend, num_ranks, tmp_path) == 0

    messages = {name: str(text) for name, text in load(tmp_path / "messages.npz").items()}
    num_slots = ranks.SLOTS_PER_RANK * num_ranks
    expected = {
        "too many rows": "rows has 17 rows, more than max_tokens 16: lower the batch or",
        "narrow rows": "rows is [16, 23] float32, wanted [T, 24] float32",
        "double rows": "rows is [16, 24] float64, wanted [T, 24] float32",
        "int32 ids": "slot_ids is [16, 3] int32, wanted [16, 3] int64",
        "fewer weights": "weights is [15, 3] float32, wanted [16, 3] float32",
        "id too high": f"slot_ids holds {num_slots}, outside -1..{num_slots - 1}",
        "id too low": "slot_ids holds -2, outside -1..",
        "no slots": "slots_per_rank is 0, must be in 1..",
        "second dispatch": "dispatch 1 was not combined",
        "fewer outputs": "outputs is [",
        "other handle": "handle is of dispatch 99, but the last one was 1",
        "second combine": "dispatch 1 was combined already",
    }
    assert messages.keys() == expected.keys()
    for name, start_of_text in expected.items():
        assert messages[name].startswith(start_of_text), (name, messages[name])


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_dispatch_vector_t_d1(backend, tmp_path):
    vector = VECTORS["T-D1"]
    for rank, tokens in enumerate(vector["inputs"]["tokens"]):
        for part, dtype in (("ids", np.int64), ("weights", np.float32)):
            array = np.array([token[part] for token in tokens], dtype)
            np.save(tmp_path / f"d1-{part}-{rank}.npy", array)
        values = np.array([[token["value"]] for token in tokens], np.float32)
        np.save(tmp_path / f"d1-values-{rank}.npy", values)

    assert start("vector_d1", backend, 2, tmp_path) == 0

    for rank, expected in enumerate(vector["expected"]["ranks"]):
        found = load(tmp_path / f"d1-result-{rank}.npz")
        # The vector pads each expert's rows to the alignment; ours are dense.
        values = [value for value in expected["expanded_values"] if value is not None]
        weights = [weight for weight in expected["expanded_weights"] if weight is not None]
        assert found["rows"][:, 0].tolist() == values
        assert found["row_weights"].tolist() == np.float32(weights).tolist()
        assert np.bincount(found["local_slots"], minlength=2).tolist() == expected["counts"]
        np.testing.assert_allclose(
            found["combined"].sum(axis=1)[:, 0], vector["expected"]["combined"][rank], rtol=1e-6
        )


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(ValueError, match="'nccl' is unknown; known: gloo, shm, deep_ep"):
        open_ports(RankContext(num_ranks=2, backend="nccl"), hidden=8, top_k=1, max_tokens=1)
