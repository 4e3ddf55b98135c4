"""Window and entries together: what a layer reads, joined once per step."""

from types import SimpleNamespace
from typing import Any

import torch

from engine.step_inputs import NEG_INF, Selection


def test_entries_stand_behind_the_window_and_are_joined_once() -> None:
    inputs: Any = SimpleNamespace(
        window_rows=torch.tensor([[0, 4], [0, 5]]),
        window_mask=torch.tensor([[0.0, 0.0], [0.0, NEG_INF]]),
    )
    selection = Selection(
        entry_rows=torch.tensor([[7], [8]]), mask=torch.tensor([[0.0], [NEG_INF]])
    )
    rows, mask = selection.behind_window(inputs)
    assert rows.tolist() == [[0, 4, 7], [0, 5, 8]]
    assert mask.tolist() == [[0.0, 0.0, 0.0], [0.0, NEG_INF, NEG_INF]]
    again = selection.behind_window(inputs)
    assert again[0] is rows
    assert again[1] is mask
