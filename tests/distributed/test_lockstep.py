"""Real ranks with random work: identical decisions in every round, and no hang."""

from pathlib import Path

import numpy as np
import pytest

from engine.parallel.worker import run_group

RANKS = Path(__file__).parent / "ranks"


@pytest.mark.medium
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("backend", "seed"), [("shm", 0), ("shm", 1), ("shm", 2), ("gloo", 3)])
def test_three_ranks_take_identical_decisions(backend, seed, tmp_path, monkeypatch):
    check_group(3, backend, seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sixty_four_ranks_take_identical_decisions(tmp_path, monkeypatch):
    check_group(64, "shm", 4, tmp_path, monkeypatch)


def check_group(num_ranks, backend, seed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    code = run_group(
        "group_ranks:lockstep",
        num_ranks,
        {"out": str(tmp_path), "seed": seed},
        backend=backend,
        collective_timeout_s=20.0,
    )

    assert code == 0
    ranks = []
    for rank in range(num_ranks):
        with np.load(tmp_path / f"decisions-{rank}.npz", allow_pickle=False) as arrays:
            ranks.append(dict(arrays))
    kinds, numbers = ranks[0]["kinds"], ranks[0]["numbers"]
    assert len(kinds) == 500
    for other in ranks[1:]:
        np.testing.assert_array_equal(other["kinds"], kinds)
        np.testing.assert_array_equal(other["numbers"], numbers)
    # The input exercised every kind, and rows really travelled.
    assert {"prefill", "decode"} <= set(kinds.tolist())
    assert all(rank["rows_back"] > 0 for rank in ranks)
    if num_ranks == 3:
        assert all(rank["sleeps"] > 0 for rank in ranks)
