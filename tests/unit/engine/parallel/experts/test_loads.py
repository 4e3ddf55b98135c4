"""The window of load counts."""

import numpy as np
import pytest

from engine.parallel.experts import LoadWindow, Placement, imbalance


def test_a_window_keeps_the_last_steps_in_order():
    window = LoadWindow(2, 4, window_steps=3)
    assert window.counts().shape == (0, 2, 4)
    for step in range(5):
        window.add_step()
        window.add(0, np.array([[step % 4, -1], [3, 3]]))
        window.add(1, np.array([[0, 1]]))
        window.add(1, np.array([[0, 2]]))
    counts = window.counts()
    assert counts.shape == (3, 2, 4)
    assert counts[:, 0].tolist() == [[0, 0, 1, 2], [0, 0, 0, 3], [1, 0, 0, 2]]
    assert counts[:, 1].tolist() == [[2, 1, 1, 0]] * 3
    assert window.num_steps == 5


def test_rows_of_a_placeholder_count_nowhere():
    window = LoadWindow(1, 2)
    window.add_step()
    window.add(0, np.full((1, 2), -1))
    assert window.counts().sum() == 0


def test_a_count_needs_a_step():
    with pytest.raises(ValueError, match="call add_step before add"):
        LoadWindow(1, 2).add(0, np.array([[0]]))


def test_imbalance_is_what_steps_wait_for():
    placement = Placement([0, 1], num_logical=2, ep=2)
    assert imbalance([[4, 0], [0, 4]], placement) == 2.0
    assert imbalance([[2, 2]], placement) == 1.0
    assert imbalance([[0, 0]], placement) == 1.0
