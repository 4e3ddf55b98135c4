"""The run-time ledger: entries, totals, digests, and the recording ports around real ones."""

import numpy as np
import pytest
import torch

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.ledger import Entry, Ledger, RecordingDispatcher, RecordingVote
from engine.parallel.ledger.record import RecordingRowGroup, RecordingTables
from engine.parallel.table_rows import MappedTables, RowTable, TableMemory
from engine.parallel.votes import LocalVote
from tests.fakes.row_groups import run_ranks


def test_steps_begin_with_votes():
    ledger = Ledger()
    ledger.record("experts", "dispatch", 5)
    ledger.begin_step()
    ledger.record("vote", "all_reduce", 72)
    ledger.record("experts", "dispatch", 7)
    assert ledger.open_step() == (
        Entry(channel="vote", operation="all_reduce", num_bytes=72),
        Entry(channel="experts", operation="dispatch", num_bytes=7),
    )
    totals = ledger.totals()
    assert totals.num_steps == 1
    assert totals.counts == {("experts", "dispatch"): 2, ("vote", "all_reduce"): 1}
    assert totals.num_bytes == {("experts", "dispatch"): 12, ("vote", "all_reduce"): 72}


def test_digests_tell_order_and_not_bytes():
    ledgers = [Ledger() for _ in range(3)]
    for ledger, operations in zip(
        ledgers,
        (("dispatch", "combine"), ("dispatch", "combine"), ("combine", "dispatch")),
        strict=True,
    ):
        for operation in operations:
            ledger.record("experts", operation, len(ledgers))
    one, same, other = (ledger.totals().digests for ledger in ledgers)
    assert one == same
    assert one != other


def test_calls_of_the_ports_are_noted():
    ledger = Ledger()
    shape = DispatchShape(hidden=4, top_k=2, max_tokens=8)
    dispatcher = RecordingDispatcher(LocalDispatcher(shape), ledger, hidden=4)
    vote = RecordingVote(LocalVote(), ledger)
    assert (dispatcher.rank, dispatcher.num_ranks) == (0, 1)

    assert vote.reduce_max(np.arange(9)).tolist() == list(range(9))
    ids = torch.tensor([[0, 1], [1, -1], [-1, -1]])
    sent = dispatcher.dispatch(torch.ones(3, 4), ids, torch.ones(3, 2), 2)
    combined = dispatcher.combine(sent.rows, sent.handle)
    vote.ring()
    vote.wait_for_work(5.0)

    assert combined.sum() == 3 * 4
    # Three choices of four float32 numbers, on the way there with weight and slot.
    assert [(e.channel, e.operation, e.num_bytes) for e in ledger.open_step()] == [
        ("vote", "all_reduce", 72),
        ("experts", "dispatch", 3 * 24),
        ("experts", "combine", 3 * 16),
    ]


def test_a_gathered_vote_opens_a_step_too():
    ledger = Ledger()
    vote = RecordingVote(LocalVote(), ledger)
    assert vote.gather(np.arange(9)).tolist() == [list(range(9))]
    assert ledger.totals().num_steps == 1
    assert ledger.open_step() == (Entry(channel="vote", operation="all_gather", num_bytes=72),)


def test_row_collectives_are_noted_with_the_bytes_of_a_ring():
    sizes = [3, 0, 1]

    def work(rank, tp):
        ledger = Ledger()
        group = RecordingRowGroup(tp, ledger, "domain")
        rows = torch.ones(sizes[rank], 2)
        assert len(group.all_gather_sized(rows, sizes)) == 4
        group.all_reduce(torch.ones(3, 2))
        group.all_gather(torch.ones(1, 2))
        return [(entry.operation, entry.num_bytes) for entry in ledger.open_step()]

    for found in run_ranks({"tp": [range(3)]}, 3, work):
        # Four rows in all, three, three: of 8 bytes, two thirds of which each rank sends on.
        assert found == [("sized_gather", 21), ("all_reduce", 32), ("all_gather", 16)]


@pytest.mark.parametrize("enp", [1, 2])
def test_fetches_are_noted_where_rows_travel(enp):
    layout = TableMemory(tables=(RowTable(num_rows=9, width=2, dtype=torch.float32),), enp=enp)
    memory = memoryview(bytearray(layout.num_bytes))
    ledger = Ledger()
    for rank in range(enp):
        tables = RecordingTables(MappedTables(layout, memory, enp_rank=rank), ledger)
        tables.load([lambda begin, count: (torch.zeros(count, 2), None)])
    for pending in tables.start_fetch([torch.tensor([[0, 8], [-1, 3]])]):
        pending.wait()
    tables.close()
    noted = [(entry.channel, entry.operation, entry.num_bytes) for entry in ledger.open_step()]
    assert noted == ([("table", "fetch", 3 * 8)] if enp > 1 else [])
