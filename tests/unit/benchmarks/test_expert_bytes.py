"""Expert bytes by hand: what is held, what is read, and what chance says of it."""

import numpy as np
import pytest

from benchmarks.expert_bytes import MODEL, RELEASED, computed, counted, routed_choices
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes


@pytest.fixture(scope="module")
def tiny() -> ModelSizes:
    return ModelSizes.from_config(read_config(str(MODEL)))


def test_only_experts_with_rows_are_read(tiny: ModelSizes) -> None:
    # 16 experts and one replica on 2 ranks: 9 slots each, the padding holds experts 0 and 1.
    choices = np.array([[[2, 3], [2, 3], [9, 2], [15, 9]]])
    line = counted(choices, tiny, 2, 2)
    assert line["slots_per_rank"] == 9
    assert line["held_bytes"] == 9 * tiny.expert_bytes
    # Rank 0 holds 2 and 3, rank 1 holds 9 and 15.
    assert line["read_bytes"] == line["read_bytes_highest"] == 2 * tiny.expert_bytes
    assert line["read_bytes_per_row"] == tiny.expert_bytes
    assert line["rows_imbalance"] == 1.25


def test_more_ranks_read_fewer_bytes_per_row() -> None:
    released = ModelSizes.from_config(read_config(RELEASED))
    lines = [computed(released, ep, 60) for ep in (2, 4, 8, 16, 32, 64)]
    assert [line["slots_per_rank"] for line in lines] == [193, 97, 49, 25, 13, 7]
    per_row = [line["read_bytes_per_row"] for line in lines]
    assert per_row == sorted(per_row, reverse=True)
    assert all(line["read_bytes"] <= line["held_bytes"] for line in lines)
    # One row on one rank reads its own experts.
    one = computed(released, 1, 1)
    assert one["read_bytes"] / released.expert_bytes == pytest.approx(released.top_k, rel=0.01)


@pytest.mark.medium
def test_choices_are_those_of_the_model() -> None:
    choices = routed_choices(12, batch=4)
    assert choices.shape == (6, 12, 2)
    assert choices.min() >= 0
    assert choices.max() < 16
    # A token's choices are different experts.
    assert (choices[:, :, 0] != choices[:, :, 1]).all()
    np.testing.assert_array_equal(choices, routed_choices(12, batch=4))
