"""The run-time ledger: entries, totals, digests, and the recording ports around real ones."""

import numpy as np
import torch

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.ledger import Entry, Ledger, RecordingDispatcher, RecordingVote
from engine.parallel.votes import LocalVote


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
