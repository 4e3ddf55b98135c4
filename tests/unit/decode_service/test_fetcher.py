"""State comes out verified and measured, and no lease outlives the fetch."""

from __future__ import annotations

import pytest

from engine.handoff import LayoutError
from kvstore.errors import BlockMissing, StoreDown
from tests.fakes.services import BLOCK, Rig, outcome, prompt, run_prefill, running_rig, tokens

PROMPT = tokens(37)


async def ticket_of(rig: Rig):  # type: ignore[no-untyped-def]
    _, ticket = outcome(await run_prefill(rig, prompt(PROMPT)))
    assert ticket is not None
    return ticket


@pytest.mark.parametrize(
    ("num_tokens", "size"), [(1, 4 + 16), (BLOCK, 16 + 16), (37, 9 * 16 + 4 + 16)]
)
async def test_the_size_is_known_before_anything_is_read(num_tokens: int, size: int) -> None:
    async with running_rig() as rig:
        assert rig.fetcher.size_of(num_tokens) == size
        assert rig.store.statistics().blocks_read == 0


async def test_a_fetch_brings_the_image_counts_it_and_releases() -> None:
    async with running_rig() as rig:
        fetched = await rig.fetcher.fetch(await ticket_of(rig), PROMPT, "")
        assert fetched.num_bytes == fetched.image.num_bytes == rig.fetcher.size_of(37)
        assert (fetched.image.num_tokens, len(fetched.image.blocks)) == (37, 9)
        assert fetched.fetch_s > 0.0
        assert rig.store.audit() == []
        assert rig.metrics.value("disagg_handoff_total", outcome="ok") == 1
        assert rig.metrics.value("disagg_handoff_duration_seconds") == 1
        assert rig.metrics.value("disagg_handoff_bytes") == 1


async def test_a_lease_is_seen_while_it_is_held() -> None:
    async with running_rig() as rig:
        ticket = await ticket_of(rig)
        seen: list[int] = []
        get = rig.backend.get

        def watched(*args: object) -> None:
            seen.append(rig.fetcher.leases)
            get(*args)  # type: ignore[arg-type]

        rig.backend.get = watched  # type: ignore[method-assign]
        await rig.fetcher.fetch(ticket, PROMPT, "")
        # The body is read before the lease is taken, the payloads under it.
        assert seen[0] == 0
        assert set(seen[1:]) == {1}
        assert rig.fetcher.leases == 0


async def test_a_failed_fetch_is_counted_by_cause_and_releases_what_it_held() -> None:
    async with running_rig() as rig:
        ticket = await ticket_of(rig)
        blocks = [key for key in rig.backend._values if b":b:" in key and b":1:0:" in key]
        del rig.backend._values[blocks[0]]
        with pytest.raises(BlockMissing):
            await rig.fetcher.fetch(ticket, PROMPT, "")
        assert rig.metrics.value("disagg_handoff_total", outcome="evicted") == 1
        assert rig.store.audit() == []


async def test_a_store_that_is_down_before_the_lease_leaves_the_hand_off_alone() -> None:
    async with running_rig() as rig:
        ticket = await ticket_of(rig)
        rig.backend.failures["acquire"] = StoreDown("memory", "unplugged")
        with pytest.raises(StoreDown):
            await rig.fetcher.fetch(ticket, PROMPT, "")
        rig.backend.failures.clear()
        assert (await rig.fetcher.fetch(ticket, PROMPT, "")).image.num_tokens == 37


async def test_sizes_that_are_not_the_layouts_are_refused() -> None:
    async with running_rig() as rig:
        ticket = await ticket_of(rig)
        rig.layout.check = _refuse  # type: ignore[method-assign]
        with pytest.raises(LayoutError, match="other sizes"):
            await rig.fetcher.fetch(ticket, PROMPT, "")
        assert rig.store.audit() == []


def _refuse(_image: object) -> None:
    raise LayoutError("other sizes")
