"""Redundant experts and a change of the map in the middle: every token stays the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.parallel.ports import RankContext
from engine.parallel.worker import run_group
from tests.distributed.ranks import model_ranks
from tests.fakes.models import GOLDEN, golden

RANKS = Path(__file__).parent / "ranks"
MODEL = GOLDEN / "v4_base"
STEPS = 12


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize("redundant", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_tokens_do_not_depend_on_replicas(num_ranks, redundant, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)
    cases = [p for p in golden(MODEL)["prompts"] if len(p["input_ids"]) <= 200][: 2 * num_ranks]
    # Every rank runs as many steps as its peers; a short list starts again.
    mine = [[cases[(2 * rank + i) % len(cases)] for i in range(2)] for rank in range(num_ranks)]
    options = {
        "model": str(MODEL),
        "out": str(tmp_path),
        "redundant": redundant,
        "steps": STEPS,
        "prompts": json.dumps([[case["input_ids"] for case in own] for own in mine]),
    }

    if num_ranks == 1:
        model_ranks.greedy(RankContext(), options)
    else:
        assert run_group("model_ranks:greedy", num_ranks, options) == 0

    for rank, own in enumerate(mine):
        found = json.loads((tmp_path / f"tokens-{rank}.json").read_text())
        assert found == [case["greedy"][:STEPS] for case in own]


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 3), ("gloo", 2)])
def test_counts_are_summed_over_the_ranks(backend, num_ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    options = {"out": str(tmp_path)}
    assert run_group("engine_ranks:sums", num_ranks, options, backend=backend) == 0

    expected = sum(
        np.random.default_rng(rank).integers(-(2**60), 2**60, (7, 3, 11))
        for rank in range(num_ranks)
    )
    for rank in range(num_ranks):
        np.testing.assert_array_equal(np.load(tmp_path / f"sum-{rank}.npy"), expected)


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("interval", "late", "backend"),
    [(3, False, "shm"), (5, False, "shm"), (3, True, "shm"), (5, True, "gloo")],
)
def test_engines_keep_their_tokens_while_experts_move(
    interval, late, backend, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(RANKS)
    cases = [p for p in golden(MODEL)["prompts"] if len(p["input_ids"]) <= 200]
    mine = [cases[:2], cases[1:3]]
    options = {
        "model": str(MODEL),
        "out": str(tmp_path),
        "steps": STEPS,
        "min_redundant": 3,
        "rebalance_interval_steps": interval,
        "late_scheduling": late,
        "prompts": json.dumps([[case["input_ids"] for case in own] for own in mine]),
    }

    assert run_group("engine_ranks:run", 2, options, backend=backend) == 0

    ranks = [json.loads((tmp_path / f"ledger-{rank}.json").read_text()) for rank in range(2)]
    for own, rank in zip(mine, ranks, strict=True):
        assert rank["tokens"] == [case["greedy"][:STEPS] for case in own]
        # More dispatches than layers and steps: the counts travelled.
        assert rank["counts"]["experts/dispatch"] > rank["steps"]
    assert ranks[0]["digests"] == ranks[1]["digests"]
