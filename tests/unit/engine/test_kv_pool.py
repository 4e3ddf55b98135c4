"""Pages and slots as bytes: what goes out comes in again elsewhere, and nothing else is touched."""

import dataclasses

import pytest
import torch

from engine.build import kv_layout
from engine.handoff import LayoutError
from engine.kv_pool import ZERO_ROWS, KvPool, ring_rows
from tests.fakes.models import GOLDEN, TINY, Solo, load
from tests.fakes.tensors import normal

HCA8, BASE = GOLDEN / "v4_hca8", GOLDEN / "v4_base"
LAYOUT = kv_layout(HCA8)
BLOCK = LAYOUT.block_tokens


def filled(seed: int, layout=LAYOUT) -> KvPool:
    """A pool whose pages, windows and rings hold random values; the zero rows stay zero."""
    pool = KvPool(layout, num_pages=9, num_slots=4, max_tokens=16)
    pool.rows[pool.pages_at :] = normal(*pool.rows[pool.pages_at :].shape, seed=seed)
    for rings in (pool.rings, pool.index_rings):
        for layer, ring in rings.items():
            ring.copy_(normal(*ring.shape, seed=seed + layer))
    return pool


def everything(pool: KvPool) -> torch.Tensor:
    rings = [*pool.rings.values(), *pool.index_rings.values()]
    return torch.cat([pool.rows.flatten(), *(ring.flatten() for ring in rings)])


@pytest.mark.parametrize(("num_pages", "num_slots"), [(1, 2), (2, 1), (0, 0)])
def test_a_pool_needs_more_than_its_scratch(num_pages: int, num_slots: int) -> None:
    with pytest.raises(ValueError) as caught:
        KvPool(LAYOUT, num_pages=num_pages, num_slots=num_slots, max_tokens=16)
    assert f"num_pages is {num_pages} and num_slots {num_slots}; both need" in str(caught.value)


@pytest.mark.parametrize("directory", [HCA8, BASE, TINY], ids=lambda path: path.name)
def test_parts_of_the_storage_follow_each_other(directory) -> None:
    layout = kv_layout(directory)
    pool = KvPool(layout, num_pages=5, num_slots=3, max_tokens=16)
    config = layout.config
    assert pool.pages_at >= ZERO_ROWS
    assert pool.windows_at == pool.pages_at + 5 * layout.entry_rows
    assert pool.scratch_at == pool.windows_at + 3 * config.num_layers * config.sliding_window
    assert len(pool.rows) >= pool.scratch_at + 16
    # Both views name the same memory, and pages start at a row of either.
    assert pool.index_pages_at * config.index_head_dim == pool.pages_at * config.head_dim
    pool.index_rows[pool.index_pages_at, 0] = 7.0
    assert float(pool.rows[pool.pages_at, 0]) == 7.0


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 35, 63, 64, 70])
def test_an_image_moves_to_other_pages_and_another_slot(n: int) -> None:
    source, target = filled(1), filled(2)
    image = source.export_image((3, 1, 2), 2, n)
    LAYOUT.check(image)
    before = everything(target)
    target.import_image(image, (8, 5, 4), 1)
    assert target.export_image((8, 5, 4), 1, n) == image
    # Going back gives the same bytes, too, and out of the source nothing has changed.
    assert source.export_image((3, 1, 2), 2, n) == image
    changed = int((everything(target) != before).sum())
    assert changed <= image.num_bytes // 4
    assert changed >= image.num_bytes // 4 * 0.99


def test_an_image_owns_its_bytes() -> None:
    pool = filled(1)
    image = pool.export_image((3, 1, 2), 2, 70)
    kept = dataclasses.replace(image, state=bytes(image.state))
    pool.rows.zero_()
    assert image == kept


def test_bytes_of_any_kind_are_taken() -> None:
    source, target = filled(1), filled(2)
    image = source.export_image((3, 1, 2), 2, 70)
    as_views = dataclasses.replace(
        image,
        blocks=tuple(memoryview(block) for block in image.blocks),
        partial=bytearray(image.partial),
        state=memoryview(image.state),
    )
    target.import_image(as_views, (8, 5, 4), 1)
    assert target.export_image((8, 5, 4), 1, 70) == image


def test_without_blocks_only_partial_and_state_go_out() -> None:
    pool = filled(1)
    whole = pool.export_image((3, 1, 2), 2, 70)
    assert pool.export_image((3, 1, 2), 2, 70, blocks=False) == dataclasses.replace(
        whole, blocks=()
    )


def test_blocks_are_pages() -> None:
    pool = filled(1)
    image = pool.export_image((3, 1, 2), 2, 2 * BLOCK)
    assert image.blocks == (pool.export_block(3), pool.export_block(1))
    assert len(image.blocks[0]) == LAYOUT.block_bytes


def test_a_wrong_image_changes_nothing() -> None:
    pool = filled(2)
    before = everything(pool)
    good = filled(1).export_image((3, 1, 2), 2, 70)
    for bad in (
        dataclasses.replace(good, num_tokens=71),
        dataclasses.replace(good, state=good.state[:-4]),
        dataclasses.replace(good, partial=bytes(good.partial) + b"\0\0\0\0"),
        dataclasses.replace(good, blocks=good.blocks[:1]),
        dataclasses.replace(good, blocks=(good.blocks[0], b"")),
    ):
        with pytest.raises(LayoutError):
            pool.import_image(bad, (8, 5, 4), 1)
    with pytest.raises(LayoutError) as caught:
        pool.import_image(good, (8, 5), 1)
    assert "image of 70 tokens: the table has 2 pages, wanted 3" in str(caught.value)
    assert torch.equal(everything(pool), before)


def test_a_reset_slot_is_empty_and_the_others_are_not() -> None:
    pool = filled(1)
    kept = [pool.export_state(slot, 70) for slot in (1, 3)]
    pages = [pool.export_block(page) for page in range(9)]
    pool.reset_slot(2)
    pool.reset_slot(2)
    assert not any(pool.export_state(2, 70))
    assert [pool.export_state(slot, 70) for slot in (1, 3)] == kept
    assert [pool.export_block(page) for page in range(9)] == pages


def test_rings_hold_what_a_compressor_needs() -> None:
    sizes = {part.layer: ring_rows(part) for part in LAYOUT.slices}
    assert sizes == {1: 8, 2: 8, 3: 8, 4: 8}
    assert {part.ratio for part in LAYOUT.slices} == {4, 8}


def test_only_the_first_halves_of_the_previous_group_travel() -> None:
    """The other halves already went into an entry of their own."""
    pool = filled(1)
    before = pool.export_state(2, 12)
    width = LAYOUT.config.head_dim
    # Token 12 opens a group; tokens 8 to 11 are the previous one, at ring rows 0 to 3 of slot 2.
    ring = pool.rings[1]
    ring[2 * 8 : 2 * 8 + 4, width : 2 * width] = 5.0
    ring[2 * 8 : 2 * 8 + 4, 3 * width :] = 5.0
    assert pool.export_state(2, 12) == before
    ring[2 * 8, 0] = 5.0
    assert pool.export_state(2, 12) != before


def test_an_image_without_state_leaves_the_slot_empty() -> None:
    model = load(HCA8)
    solo = Solo(model)
    solo.feed(list(range(3, 99)))
    image, pool = solo.image(), solo.runner._pool
    solo.resume(dataclasses.replace(image, state=b"", replay_from=21))
    assert pool.export_image(solo.table(96), 1, 96).blocks == image.blocks
    assert not any(pool.export_state(1, 96))
