"""Row groups: every backend gives what one process computes, bit by bit, in rank order."""

from pathlib import Path

import numpy as np
import pytest

from engine.parallel.worker import run_group
from tests.distributed.ranks import row_ranks as ranks

pytestmark = [pytest.mark.medium, pytest.mark.timeout(90)]
RANKS = Path(__file__).parents[1] / "distributed" / "ranks"


@pytest.fixture(
    params=[("shm", 2), ("shm", 3), ("gloo", 2), ("gloo", 3)],
    ids=lambda param: f"{param[0]}-{param[1]}",
    scope="module",
)
def collected(request, tmp_path_factory):
    backend, size = request.param
    directory = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RANKS)
        code = run_group("row_ranks:collect", size, {"out": str(directory)}, backend=backend)
    assert code == 0
    found = []
    for rank in range(size):
        with np.load(directory / f"rows-{rank}.npz", allow_pickle=False) as arrays:
            found.append(dict(arrays))
    return size, found


def brought(step, size):
    count, width = ranks.COLLECTED[step]
    return [ranks.values(step, rank, count * size, width).numpy() for rank in range(size)]


def summed(parts):
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


@pytest.mark.parametrize("step", range(len(ranks.COLLECTED)))
def test_a_gather_has_all_rows_in_rank_order(collected, step):
    size, found = collected
    for arrays in found:
        np.testing.assert_array_equal(arrays[f"gather-{step}"], np.concatenate(brought(step, size)))
        count, _ = ranks.COLLECTED[step]
        ids = [(1 << 40) + rank + place for rank in range(size) for place in range(count)]
        assert arrays[f"ids-{step}"].tolist() == ids


@pytest.mark.parametrize("step", range(len(ranks.COLLECTED)))
def test_sums_are_those_in_rank_order_and_parts_are_theirs(collected, step):
    size, found = collected
    total = summed(brought(step, size))
    sizes = ranks.split_of(step, len(total), size)
    parts = np.split(total, np.cumsum(sizes)[:-1])
    for rank, arrays in enumerate(found):
        np.testing.assert_array_equal(arrays[f"sum-{step}"], total)
        np.testing.assert_array_equal(arrays[f"part-{step}"], parts[rank])


@pytest.mark.parametrize("step", range(len(ranks.COLLECTED)))
def test_a_sized_gather_has_what_each_member_brings(collected, step):
    size, found = collected
    parts = brought(step, size)
    sizes = ranks.split_of(step, len(parts[0]), size)
    expected = np.concatenate([part[:own] for part, own in zip(parts, sizes, strict=True)])
    for arrays in found:
        np.testing.assert_array_equal(arrays[f"sized-{step}"], expected)


def test_gathers_in_flight_keep_apart(collected):
    size, found = collected
    for arrays in found:
        assert arrays["late-sum"].tolist() == [size]
        for number in range(20):
            rows = [ranks.values(number, rank, 2, 3).numpy() for rank in range(size)]
            np.testing.assert_array_equal(arrays[f"late-{number}"], np.concatenate(rows))
