"""Row paths between processes, with uneven and zero counts, against one rank."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.parallel.layout import TensorLayout
from engine.parallel.rows.modes import Combine
from engine.parallel.worker import run_group
from tests.distributed.ranks import row_ranks

RANKS = Path(__file__).parent / "ranks"


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_paths_equal_one_rank(backend, num_ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    code = run_group("row_ranks:run_paths", num_ranks, {"out": str(tmp_path)}, backend=backend)

    assert code == 0
    layout = TensorLayout(tp=num_ranks, dp=2)
    factor = sum(range(1, num_ranks + 1))
    for rank in range(num_ranks):
        part = layout.attention_view.coordinates(rank)["dp"]
        with np.load(tmp_path / f"paths-{rank}.npz", allow_pickle=False) as arrays:
            found = dict(arrays)
        assert len(found) == 3 * len(row_ranks.STEPS)
        for step in range(len(row_ranks.STEPS)):
            rows = sum(row_ranks.addend(step, part, tp).numpy() for tp in range(layout.attn_tp))
            for combine in Combine:
                np.testing.assert_array_equal(found[f"a-{combine.value}-{step}"], rows * factor)
            np.testing.assert_array_equal(found[f"b-{step}"], rows * 10)


@pytest.mark.medium
@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_context_rows_over_the_channels_of_a_layout(backend, num_ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    code = run_group("row_ranks:run_context", num_ranks, {"out": str(tmp_path)}, backend=backend)

    assert code == 0
    expected = {"sequence/all_gather": 4}
    for rank in range(num_ranks):
        assert json.loads((tmp_path / f"context-{rank}.json").read_text()) == expected


@pytest.mark.medium
@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_rank_that_leaves_is_noticed(backend, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    run_group(
        "row_ranks:stop_early",
        2,
        {"out": str(tmp_path)},
        backend=backend,
        group_name="early",
        collective_timeout_s=5.0,
    )

    text = (tmp_path / "error-0").read_text()
    assert "group early" in text
    assert "all_gather" in text


@pytest.mark.medium
@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_late_rank_is_named(backend, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)

    run_group(
        "row_ranks:come_late",
        2,
        {"out": str(tmp_path)},
        backend=backend,
        group_name="late",
        collective_timeout_s=1.0,
    )

    text = (tmp_path / "error-0").read_text()
    assert "all_gather exchange 2 timed out after 1 s" in text
    assert "late ranks: 1" in text
