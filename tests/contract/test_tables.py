"""One suite for every form of sharded tables: bit-equal to one rank, whoever owns the rows."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.parallel.ports import RankContext
from engine.parallel.worker import run_group

RANKS = Path(__file__).parents[1] / "distributed" / "ranks"
sys.path.insert(0, str(RANKS))

import table_ranks as ranks  # noqa: E402

# Backend, engines, owners of a copy, ranks that only hold rows.
WORLDS = {
    "local": ("local", 1, 1, 0),
    "shm-2": ("shm", 2, 2, 0),
    "shm-4": ("shm", 4, 4, 0),
    "gloo-2": ("gloo", 2, 2, 0),
    "two copies": ("shm", 4, 2, 0),
    "store ranks hold all": ("shm", 2, 2, 2),
    "store ranks hold a part": ("shm", 2, 3, 1),
}
pytestmark = [pytest.mark.medium, pytest.mark.timeout(90)]


@pytest.fixture(scope="module", params=WORLDS)
def world(request, tmp_path_factory):
    """Every fetch run once by real ranks; results by rank."""
    backend, dp, enp, store_ranks = WORLDS[request.param]
    out = tmp_path_factory.mktemp("tables")
    options = {"out": str(out), "dp": dp, "enp": enp, "store_ranks": store_ranks}
    if backend == "local":
        ranks.run_fetches(RankContext(), options)
    else:
        code = run_group(
            "table_ranks:run_fetches",
            dp + store_ranks,
            options,
            backend=backend,
            group_name=f"tables-{dp}-{enp}",
            collective_timeout_s=30.0,
            start_timeout_s=60.0,
        )
        assert code == 0
    found = []
    for rank in range(dp):
        with np.load(out / f"rows-{rank}.npz", allow_pickle=False) as arrays:
            found.append(dict(arrays))
    return found


def test_fetched_rows_are_the_tables_rows(world):
    for rank, found in enumerate(world):
        for step in range(ranks.STEPS + rank):
            for number, ids in enumerate(ranks.ids_of(step, rank)):
                table = ranks.TABLES[number]
                values, scales = ranks.rows_of(number, 0, table.num_rows)
                expected = values.view(torch.uint8)[ids.clamp(min=0)]
                expected[ids < 0] = 0
                np.testing.assert_array_equal(found[f"{step}-{number}-values"], expected.numpy())
                if scales is not None:
                    expected = scales[ids.clamp(min=0)]
                    expected[ids < 0] = 0
                    np.testing.assert_array_equal(
                        found[f"{step}-{number}-scales"], expected.numpy()
                    )


def test_rows_behind_the_table_are_refused(world):
    for found in world:
        assert "ids of table 0 hold 1500, outside -1..1499" in str(found["refusal"])


def test_the_ledger_counts_one_fetch_per_table_and_the_bytes_of_its_rows(world):
    for rank, found in enumerate(world):
        # One rank has all rows, so nothing travels.
        steps = range(ranks.STEPS + rank if len(world) > 1 else 0)
        assert found["count"] == len(steps) * len(ranks.TABLES)
        assert found["bytes"] == sum(
            int((ids >= 0).sum()) * table.row_bytes
            for step in steps
            for table, ids in zip(ranks.TABLES, ranks.ids_of(step, rank), strict=True)
        )
