"""Pages, slots, generations: examples; the state machine is in tests/property."""

from __future__ import annotations

import pytest

from engine.block_manager import BlockManager, PageRef, StalePage


def test_allocation_is_all_or_nothing() -> None:
    blocks = BlockManager(num_pages=6, num_slots=3)
    assert blocks.try_allocate("a", 3)
    assert not blocks.try_allocate("b", 3)
    assert not blocks.has_owner("b")
    assert blocks.num_free_pages == 2
    assert blocks.num_free_slots == 1
    assert not blocks.try_grow("a", 6)
    assert blocks.num_pages_of("a") == 3
    assert blocks.try_grow("a", 5)
    assert blocks.try_grow("a", 2), "never shrinks"
    assert len(blocks.block_table("a")) == 5
    blocks.check_integrity()


def test_scratch_is_never_handed_out() -> None:
    blocks = BlockManager(num_pages=4, num_slots=2)
    assert blocks.try_allocate("a", 3)
    assert 0 not in blocks.block_table("a")
    assert blocks.state_slot("a") == 1
    assert not blocks.try_allocate("b", 0), "the last slot is taken"


def test_an_owner_cannot_be_allocated_twice() -> None:
    blocks = BlockManager(num_pages=4, num_slots=4)
    blocks.try_allocate("a", 1)
    with pytest.raises(ValueError, match="'a' already holds"):
        blocks.try_allocate("a", 1)
    with pytest.raises(ValueError, match="num_pages is -1"):
        blocks.try_allocate("b", -1)
    blocks.check_integrity()


def test_a_late_write_to_a_freed_or_reused_page_is_refused() -> None:
    blocks = BlockManager(num_pages=4, num_slots=3)
    blocks.try_allocate("a", 2)
    before = blocks.references("a")
    blocks.check_current(before)
    blocks.free("a")
    with pytest.raises(StalePage, match="was given back"):
        blocks.check_current(before)
    blocks.try_allocate("b", 3)
    assert {page for page, _ in before} <= set(blocks.block_table("b"))
    with pytest.raises(StalePage, match=r"generation 0 was given back \(now generation 1\)"):
        blocks.check_current(before)
    with pytest.raises(StalePage):
        blocks.hold(before)
    blocks.check_current(blocks.references("b"))
    blocks.check_integrity()


@pytest.mark.parametrize("page", [-1, 0, 4])
def test_scratch_and_foreign_pages_are_refused(page: int) -> None:
    blocks = BlockManager(num_pages=4, num_slots=2)
    with pytest.raises(StalePage, match=f"page {page} is not a page"):
        blocks.check_current([PageRef(page, 0)])


def test_a_transfer_keeps_pages_after_their_request_let_go() -> None:
    blocks = BlockManager(num_pages=4, num_slots=3)
    blocks.try_allocate("a", 3)
    pages = blocks.references("a")
    first, second = blocks.hold(pages[:2]), blocks.hold(pages[1:])
    blocks.free("a")
    assert blocks.num_free_pages == 0
    assert not blocks.try_allocate("b", 1)
    blocks.check_current(pages)
    blocks.release(first)
    blocks.release(first)
    assert blocks.num_free_pages == 1
    with pytest.raises(StalePage):
        blocks.check_current(pages)
    blocks.check_current(pages[1:])
    blocks.release(second)
    assert blocks.num_free_pages == 3
    blocks.check_integrity()
    assert blocks.statistics().num_holds == 0


@pytest.mark.parametrize(("pages", "slots", "name"), [(1, 2, "num_pages"), (2, 1, "num_slots")])
def test_a_pool_without_a_usable_page_or_slot_is_refused(pages: int, slots: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 1"):
        BlockManager(pages, slots)


def test_the_check_finds_broken_books() -> None:
    for damage in ("_references", "_free_pages", "_free_slots"):
        blocks = BlockManager(num_pages=5, num_slots=3)
        blocks.try_allocate("a", 2)
        books = getattr(blocks, damage)
        if damage == "_references":
            books[blocks.block_table("a")[0]] += 1
        else:
            books.append(1)
        with pytest.raises(AssertionError):
            blocks.check_integrity()
