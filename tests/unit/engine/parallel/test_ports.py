"""Opening the ports of a group of one; groups of many are opened by the tests of real ranks."""

import numpy as np
import pytest
import torch

from engine.parallel.dispatch import LocalDispatcher
from engine.parallel.errors import LayoutError
from engine.parallel.layout import data_parallel, parse_layout
from engine.parallel.ports import RankContext, open_ports
from engine.parallel.rows.modes import Path
from engine.parallel.worker import open_ports as open_ports_of_worker


@pytest.mark.parametrize("backend", ["local", "shm", "gloo"])
def test_a_group_of_one_needs_no_backend(backend):
    ports = open_ports(RankContext(backend=backend), hidden=4, top_k=1, max_tokens=2)
    assert isinstance(ports.dispatcher, LocalDispatcher)
    assert ports.vote.reduce_max(np.arange(9)).tolist() == list(range(9))
    assert ports.progress.last_vector == tuple(range(9))
    ports.abort()
    ports.close()
    ports.close()


def test_the_worker_opens_the_same_ports():
    ports = open_ports_of_worker(RankContext(), hidden=2, top_k=1, max_tokens=1)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    dispatched = ports.dispatcher.dispatch(torch.ones(1, 2), ids, torch.ones(1, 1), 1)
    assert dispatched.rows.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["hidden", "top_k", "max_tokens"])
def test_sizes_below_one_are_refused(name):
    sizes = {"hidden": 2, "top_k": 2, "max_tokens": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0"):
        open_ports(RankContext(), **sizes)


def test_a_world_of_one_leads_itself_and_shares_no_rows():
    ports = open_ports(RankContext(), hidden=4, top_k=1, max_tokens=2)
    assert ports.is_leader
    assert ports.plans is None
    assert ports.run == data_parallel(1)
    assert (ports.groups.cp.size, ports.groups.path) == (1, Path.DIRECT)


def test_a_layout_of_more_ranks_than_were_started_is_refused():
    with pytest.raises(LayoutError, match="layout dp=1,cp=2,ep=2 has 2 ranks, but 1 were started"):
        open_ports(
            RankContext(backend="shm"), hidden=4, top_k=1, max_tokens=2, run=parse_layout("cp=2")
        )


def test_engines_that_would_not_step_together_are_refused_before_they_meet():
    run = parse_layout("dp=3,ep=2")
    with pytest.raises(LayoutError, match="the 2 ranks that step together do not fit dp=3,ep=2"):
        open_ports(
            RankContext(num_ranks=3, backend="shm"), hidden=4, top_k=1, max_tokens=2, run=run
        )
