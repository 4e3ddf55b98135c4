"""Batches have numbers, and old ones go."""

import pytest

from kvstore.events.ring import Gap, Ring


def test_batches_are_numbered_and_the_last_ones_kept() -> None:
    ring = Ring(3)
    assert ring.since(0) == []
    assert [ring.append(b"%d" % number) for number in range(5)] == [0, 1, 2, 3, 4]
    assert ring.next_number == 5
    assert ring.since(2) == [(2, b"2"), (3, b"3"), (4, b"4")]
    assert ring.since(4) == [(4, b"4")]
    assert ring.since(5) == []
    with pytest.raises(Gap, match="batch 1 is no longer kept, the oldest one is 2") as caught:
        ring.since(1)
    assert caught.value.first == 2
    assert ring.kept_since(0) == ring.since(2)
    assert ring.kept_since(4) == [(4, b"4")]


def test_whoever_watches_is_told_of_each_batch() -> None:
    ring, told = Ring(), []
    with ring.watched(lambda: told.append(ring.next_number)):
        ring.append(b"a")
        ring.append(b"b")
    ring.append(b"c")
    assert told == [1, 2]
