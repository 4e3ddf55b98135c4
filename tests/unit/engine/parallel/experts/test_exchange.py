"""Summing counts through a dispatch port of one rank; several ranks: tests/distributed."""

import numpy as np
import pytest

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.experts.exchange import sum_over_ranks

EXTREMES = [0, 1, -1, 2**62, -(2**62), 0x7FF0_0000_7F80_0001, 2**24 + 1]


@pytest.mark.parametrize(("hidden", "top_k", "max_tokens"), [(2, 1, 1), (5, 2, 3), (64, 6, 128)])
def test_integers_of_any_size_arrive_bit_by_bit(hidden, top_k, max_tokens):
    sizes = {"hidden": hidden, "top_k": top_k, "max_tokens": max_tokens}
    dispatcher = LocalDispatcher(DispatchShape(**sizes))
    generator = np.random.default_rng(1)
    counts = generator.integers(-(2**62), 2**62, (3, 4, 5))
    counts.reshape(-1)[: len(EXTREMES)] = EXTREMES
    for shape in ((3, 4, 5), (60,), (0, 4)):
        mine = counts.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        np.testing.assert_array_equal(sum_over_ranks(dispatcher, mine, **sizes), mine)


def test_a_port_that_reaches_nobody_is_refused():
    sizes = {"hidden": 1, "top_k": 1, "max_tokens": 1}
    with pytest.raises(ValueError, match="1 ranks need 1 rows of at least 2 numbers"):
        sum_over_ranks(LocalDispatcher(DispatchShape(**sizes)), np.ones(3, np.int64), **sizes)
