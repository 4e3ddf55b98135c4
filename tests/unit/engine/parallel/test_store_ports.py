"""Ports of store ranks: who may open them; what they do is shown by tests/contract."""

import pytest
import torch

from engine.parallel.errors import LayoutError
from engine.parallel.layout import Layout, RunLayout
from engine.parallel.store_ports import open_store
from engine.parallel.table_rows import RowTable
from engine.parallel.worker import RankContext


def test_a_rank_with_an_engine_is_no_store_rank():
    run = RunLayout(layout=Layout(dp=2, ep=2, enp=2, store_ranks=2))
    table = RowTable(num_rows=5, width=2, dtype=torch.float32)
    with pytest.raises(LayoutError, match=r"rank 1 of .* runs an engine: open it with open_ports"):
        open_store(
            RankContext(rank=1, num_ranks=4, backend="shm"),
            hidden=4,
            top_k=1,
            max_tokens=2,
            run=run,
            tables=(table,),
        )
