"""Adding up load counts over the ranks of an expert group, through the dispatch port.

The counts of all ranks are needed once per rebalancing, by every rank. The dispatch port reaches
every rank of the group on every transport and only copies, so integers travel as the bits of float
rows: each rank sends its rows to one slot per rank and sums what arrives in rank order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.parallel.dispatch import Dispatcher

IntArray = npt.NDArray[np.int64]


def sum_over_ranks(
    dispatcher: Dispatcher,
    counts: IntArray,
    *,
    hidden: int,
    top_k: int,
    max_tokens: int,
    result_hidden: int | None = None,
) -> IntArray:
    """Returns the sum of all ranks' counts; a collective, of equal shape on all ranks.

    Args:
        dispatcher: of the expert group, with nothing open.
        counts: any shape, int64.
        hidden, top_k, max_tokens, result_hidden: what the port was opened with.

    Raises:
        ValueError: the port takes too few rows to reach every rank.
        GroupError: a rank is late or lost.
    """
    num_ranks = dispatcher.num_ranks
    copies = -(-num_ranks // top_k)
    # A count is eight bytes: two numbers of a row.
    per_row = hidden // 2
    if copies > max_tokens or not per_row:
        raise ValueError(
            f"{num_ranks} ranks need {copies} rows of at least 2 numbers, the port takes "
            f"{max_tokens} of {hidden}: open it with larger sizes"
        )
    flat = np.ascontiguousarray(counts, dtype=np.int64).reshape(-1)
    padded = np.zeros((-(-len(flat) // per_row), per_row), dtype=np.int64)
    padded.reshape(-1)[: len(flat)] = flat
    # One row reaches top_k ranks; slot r is all that rank r has.
    targets = np.full((copies, top_k), -1, dtype=np.int64)
    targets.reshape(-1)[:num_ranks] = np.arange(num_ranks)
    total = np.zeros_like(padded)
    most = max_tokens // copies
    for begin in range(0, len(padded), most):
        part = padded[begin : begin + most]
        rows = np.zeros((len(part), hidden), dtype=np.float32)
        rows[:, : 2 * per_row] = part.view(np.float32)
        arrived = dispatcher.dispatch(
            torch.from_numpy(np.repeat(rows, copies, axis=0)),
            torch.from_numpy(np.tile(targets, (len(part), 1))),
            torch.ones(len(part) * copies, top_k),
            1,
        )
        # Sorted by source rank, then row.
        received = np.ascontiguousarray(arrived.rows.numpy()[:, : 2 * per_row])
        total[begin : begin + most] += (
            received.view(np.int64).reshape(num_ranks, *part.shape).sum(0)
        )
        results = torch.zeros(len(arrived.rows), result_hidden or hidden)
        dispatcher.combine(results, arrived.handle)
    return total.reshape(-1)[: len(flat)].reshape(counts.shape)
