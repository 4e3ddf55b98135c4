"""The gloo form over a fake channel; real processes run it in the contract suite."""

import torch

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.dispatch_gloo import GlooDispatcher


class OneRankChannel:
    """A channel of one rank: whatever is sent comes back. Remembers its calls."""

    rank = 0
    num_ranks = 1

    def __init__(self):
        self.calls = []

    def all_to_all(self, received, sent, received_rows, sent_rows, kind):
        assert received_rows == sent_rows
        assert received.is_contiguous()
        assert sent.is_contiguous()
        self.calls.append((kind, tuple(sent.shape)))
        received.copy_(sent)


def test_a_dispatch_is_two_exchanges_and_a_combine_one():
    shape = DispatchShape(hidden=3, top_k=2, max_tokens=4)
    channel = OneRankChannel()
    dispatcher = GlooDispatcher(channel, shape)
    rows = torch.arange(6.0).reshape(2, 3)
    ids = torch.tensor([[1, -1], [0, 1]])
    weights = torch.tensor([[0.5, 7.0], [0.25, 0.125]])

    dispatched = dispatcher.dispatch(rows, ids, weights, 2)
    combined = dispatcher.combine(dispatched.rows, dispatched.handle)

    assert channel.calls == [("dispatch", (1,)), ("dispatch", (3, 5)), ("combine", (3, 3))]
    local = LocalDispatcher(shape)
    expected = local.dispatch(rows, ids, weights, 2)
    assert torch.equal(dispatched.rows, expected.rows)
    assert torch.equal(dispatched.row_weights, expected.row_weights)
    assert torch.equal(dispatched.local_slots, expected.local_slots)
    assert torch.equal(combined, local.combine(expected.rows, expected.handle))


def test_slots_travel_as_bits_whatever_number_they_look_like():
    shape = DispatchShape(hidden=1, top_k=1, max_tokens=3)
    dispatcher = GlooDispatcher(OneRankChannel(), shape)
    # As float32 bits these are denormals, which arithmetic might flush to zero.
    ids = torch.tensor([[65535], [1], [32768]])
    dispatched = dispatcher.dispatch(torch.ones(3, 1), ids, torch.ones(3, 1), 65536)
    assert dispatched.local_slots.tolist() == [1, 32768, 65535]
