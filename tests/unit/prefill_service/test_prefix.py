"""The longest verified prefix, whatever the store says or loses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg import block_hash
from kvstore import KvStore, KvStoreConfig
from kvstore.errors import StoreDown
from kvstore.keys import Component, data_key
from kvstore.resume import plan_resume
from prefill_service.prefix import PrefixLoader
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from tests.fakes.services import BLOCK, StagedBackend, ToyLayout, tokens

PROMPT = tokens(8 * BLOCK)
HASHES = block_hash.chain(PROMPT, BLOCK)
STATES = (2, 4, 6, 8)


class Shelf:
    """A store with eight blocks and the states behind every second one."""

    def __init__(self) -> None:
        self.backend = StagedBackend(ManualClock().now)
        self.store = KvStore(
            self.backend,
            KvStoreConfig(block_tokens=BLOCK, segment_bytes=24),
            fingerprint=ToyLayout.fingerprint,
            clock=ManualClock().now,
        )
        self.metrics = Metrics()
        self.loader = self.replaying(None)
        self.digests = [
            self.store.put_block(name, bytes([idx]) * 16, attempt=1)
            for idx, name in enumerate(HASHES)
        ]
        for end in STATES:
            self.store.put_state(HASHES[end - 1], bytes([end]) * 16, attempt=1)

    def replaying(self, window_replay_tokens: int | None) -> PrefixLoader:
        return PrefixLoader(
            self.store,
            block_tokens=BLOCK,
            window_replay_tokens=window_replay_tokens,
            metrics=self.metrics,
        )

    def key(self, component: Component, idx: int) -> bytes:
        return data_key(ToyLayout.fingerprint, HASHES[idx], component, 0)

    def fallbacks(self, cause: str) -> float:
        return self.metrics.value("disagg_prefix_fallback_total", cause=cause)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.mark.parametrize(
    ("num_tokens", "usable"),
    # The last token is always computed, so a prompt of exactly n blocks uses fewer.
    [(1, 0), (8, 0), (9, 8), (16, 8), (17, 16), (31, 24), (32, 24)],
)
def test_the_longest_end_with_a_state_that_leaves_a_token(
    shelf: Shelf, num_tokens: int, usable: int
) -> None:
    prefix = shelf.loader.load(block_hash.chain(PROMPT[:num_tokens], BLOCK), num_tokens)
    assert (0 if prefix is None else prefix.num_tokens) == usable
    if prefix is not None:
        num_blocks = usable // BLOCK
        assert [bytes(block) for block in prefix.blocks] == [
            bytes([idx]) * 16 for idx in range(num_blocks)
        ]
        assert bytes(prefix.state) == bytes([num_blocks]) * 16
        assert list(prefix.digests) == shelf.digests[:num_blocks]
        assert prefix.num_bytes == 16 * (num_blocks + 1)


def test_digests_of_payloads_in_segments_are_those_of_the_writer() -> None:
    shelf = Shelf()
    large = bytes(range(100))
    names = block_hash.chain(tokens(8 * BLOCK, salt=9), BLOCK)
    wanted = [shelf.store.put_block(name, large, attempt=1) for name in names[:2]]
    shelf.store.put_state(names[1], large, attempt=1)
    prefix = shelf.loader.load(names, 8 * BLOCK)
    assert prefix is not None
    assert list(prefix.digests) == wanted


def flip(value: bytearray) -> None:
    value[-1] ^= 1


@pytest.mark.parametrize("component", [Component.KV, Component.STATE])
def test_a_missing_payload_shortens_the_prefix(shelf: Shelf, component: Component) -> None:
    # The look-up does not see it go: the key vanishes between look-up and read.
    looked_up = shelf.store.lookup(HASHES[:7])
    assert looked_up.resume_blocks == 6
    del shelf.backend._values[shelf.key(component, 5)]
    shelf.store.lookup = _first(looked_up, shelf.store.lookup)  # type: ignore[method-assign]
    prefix = shelf.loader.load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert prefix.num_tokens == 4 * BLOCK
    assert shelf.fallbacks(f"missing_{component.kind}") == 1


def _first(answer: object, then: Callable[..., object]) -> Callable[..., object]:
    """A look-up that gives a stale answer once."""
    answers = [answer]
    return lambda hashes: answers.pop() if answers else then(hashes)


@pytest.mark.parametrize("component", [Component.KV, Component.STATE])
def test_a_corrupt_payload_shortens_the_prefix_and_is_taken_away(
    shelf: Shelf, component: Component
) -> None:
    key = shelf.key(component, 5)
    flip(shelf.backend._values[key].data)
    prefix = shelf.loader.load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert prefix.num_tokens == 4 * BLOCK
    assert shelf.fallbacks("corrupt_digest") == 1
    assert key not in shelf.backend._values


def test_swapped_blocks_are_noticed(shelf: Shelf) -> None:
    first, second = shelf.key(Component.KV, 0), shelf.key(Component.KV, 1)
    values = shelf.backend._values
    values[first], values[second] = values[second], values[first]
    assert shelf.loader.load(HASHES, 8 * BLOCK) is None
    assert (
        sum(
            value
            for name, value in shelf.metrics.snapshot().items()
            if name.startswith("disagg_prefix_fallback_total{cause=corrupt")
        )
        == 1
    )


def test_a_store_full_of_rubbish_ends_the_tries(shelf: Shelf) -> None:
    for end in STATES:
        flip(shelf.backend._values[shelf.key(Component.STATE, end - 1)].data)
    assert shelf.loader.load(HASHES, 8 * BLOCK) is None
    assert shelf.fallbacks("corrupt_digest") == 3


def test_a_store_that_is_down_is_not_a_miss(shelf: Shelf) -> None:
    shelf.backend.failures["lookup"] = StoreDown("memory", "unplugged")
    with pytest.raises(StoreDown):
        shelf.loader.load(HASHES, 8 * BLOCK)


def test_a_replay_is_loaded_where_it_saves_more_than_the_latest_state(shelf: Shelf) -> None:
    """Seven blocks are usable, the latest state is behind the sixth."""
    prefix = shelf.replaying(3).load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert (prefix.num_tokens, prefix.replay_tokens, bytes(prefix.state)) == (7 * BLOCK, 3, b"")
    assert list(prefix.digests) == shelf.digests[:7]
    assert shelf.metrics.value("disagg_kv_read_bytes_total", component="state") == 0
    equal = shelf.replaying(BLOCK).load(HASHES, 8 * BLOCK)
    assert equal is not None
    assert (equal.num_tokens, equal.replay_tokens, bytes(equal.state)) == (6 * BLOCK, 0, b"\6" * 16)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_lost_state_leaves_the_blocks_behind_it_to_a_replay(shelf: Shelf, is_seen: bool) -> None:
    """The look-up goes on seeing it (a server that lags), or sees it go."""
    stale = shelf.store.lookup(HASHES[:7])
    assert (stale.num_blocks, stale.resume_blocks) == (7, 6)
    del shelf.backend._values[shelf.key(Component.STATE, 5)]
    if is_seen:
        lookup = shelf.store.lookup
        shelf.store.lookup = (  # type: ignore[method-assign]
            lambda hashes: stale if len(hashes) == 7 else lookup(hashes)
        )
    else:
        shelf.store.lookup = _first(stale, shelf.store.lookup)  # type: ignore[method-assign]
    prefix = shelf.replaying(9).load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert (prefix.num_tokens, prefix.replay_tokens, bytes(prefix.state)) == (7 * BLOCK, 9, b"")
    assert list(prefix.digests) == shelf.digests[:7]
    assert shelf.fallbacks("missing_state") == 1


@given(
    gone=st.sets(st.tuples(st.sampled_from([Component.KV, Component.STATE]), st.integers(0, 7))),
    replay=st.none() | st.integers(1, 8 * BLOCK),
)
@settings(max_examples=60, deadline=None)
def test_what_is_lost_after_the_look_up_leads_to_the_best_that_is_left(
    gone: set[tuple[Component, int]], replay: int | None
) -> None:
    shelf = Shelf()
    stale = shelf.store.lookup(HASHES[:7])
    for component, idx in gone:
        shelf.backend._values.pop(shelf.key(component, idx), None)
    fresh = shelf.store.lookup(HASHES[:7])
    best = plan_resume(fresh, block_tokens=BLOCK, window_replay_tokens=replay)
    shelf.store.lookup = _first(stale, shelf.store.lookup)  # type: ignore[method-assign]
    prefix = shelf.replaying(replay).load(HASHES, 8 * BLOCK)
    found = 0 if prefix is None else prefix.num_tokens - prefix.replay_tokens
    assert found == best.saved_tokens


def test_a_corrupt_block_shortens_a_replay_and_may_end_it(shelf: Shelf) -> None:
    flip(shelf.backend._values[shelf.key(Component.KV, 6)].data)
    prefix = shelf.replaying(1).load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert (prefix.num_tokens, prefix.replay_tokens) == (6 * BLOCK, 0), "the state is there"
    flip(shelf.backend._values[shelf.key(Component.STATE, 5)].data)
    prefix = shelf.replaying(1).load(HASHES, 8 * BLOCK)
    assert prefix is not None
    assert (prefix.num_tokens, prefix.replay_tokens) == (6 * BLOCK, 1), "the blocks still are"
    assert shelf.fallbacks("corrupt_digest") == 2
