"""Prefetched blocks are taken once, and only with the right digest."""

from kvstore.handoffs.prefetched import Prefetched


def test_blocks_are_taken_once_and_by_digest() -> None:
    prefetched = Prefetched()
    prefetched.add([b"a", b"b"], [(memoryview(b"one"), b"1"), (memoryview(b"two"), b"2")])
    assert prefetched.missing([b"a", b"c", b"b"]) == [b"c"]
    assert prefetched.num_bytes == 6
    assert prefetched.take(b"a", b"1") == b"one"
    assert prefetched.take(b"a", b"1") is None
    assert prefetched.take(b"b", b"other digest") is None
    assert prefetched.take(b"c", b"3") is None
    assert prefetched.num_bytes == 0
    assert (prefetched.num_taken, prefetched.taken_bytes, prefetched.num_refused) == (1, 3, 1)


def test_what_is_left_can_be_dropped() -> None:
    prefetched = Prefetched()
    prefetched.add([b"a"], [(memoryview(b"one"), b"1")])
    assert len(prefetched) == 1
    assert prefetched.clear() == 1
    assert prefetched.take(b"a", b"1") is None
    assert (len(prefetched), prefetched.num_bytes, prefetched.num_refused) == (0, 0, 0)
