"""The block manager against a model of dictionaries and sets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_manager import BlockManager, PageRef, StalePage

pytestmark = pytest.mark.medium

PAGES, SLOTS = 9, 4
names = st.sampled_from("abcde")


class BlockMachine(RuleBasedStateMachine):
    """The model: who has how many pages, which holds exist, which pages may be written."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(PAGES + 1, SLOTS + 1)
        self.sizes: dict[str, int] = {}
        self.holds: dict[int, tuple[PageRef, ...]] = {}
        self.seen: list[tuple[PageRef, ...]] = []

    def used(self) -> set[int]:
        pages = {page for name in self.sizes for page in self.blocks.block_table(name)}
        return pages | {ref.page_id for refs in self.holds.values() for ref in refs}

    @rule(name=names, count=st.integers(0, PAGES))
    def allocate(self, name: str, count: int) -> None:
        if name in self.sizes:
            return
        fits = count <= PAGES - len(self.used()) and len(self.sizes) < SLOTS
        before = self.used()
        assert self.blocks.try_allocate(name, count) is fits
        if fits:
            self.sizes[name] = count
            assert before.isdisjoint(self.blocks.block_table(name))
            self.seen.append(self.blocks.references(name))

    @rule(name=names, count=st.integers(0, PAGES))
    def grow(self, name: str, count: int) -> None:
        if name not in self.sizes:
            return
        table = self.blocks.block_table(name)
        fits = count - self.sizes[name] <= PAGES - len(self.used())
        assert self.blocks.try_grow(name, count) is fits
        if fits:
            self.sizes[name] = max(self.sizes[name], count)
        assert self.blocks.block_table(name)[: len(table)] == table
        self.seen.append(self.blocks.references(name))

    @rule(name=names)
    def free(self, name: str) -> None:
        if self.sizes.pop(name, None) is not None:
            self.blocks.free(name)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def hold_or_refuse(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.seen))
        # A page may be held while someone has had it without a break since it was seen.
        current = all(page in self.current() for page in pages)
        try:
            hold = self.blocks.hold(pages)
        except StalePage:
            assert not current
        else:
            assert current
            self.holds[hold] = pages

    def current(self) -> set[PageRef]:
        owned = {ref for name in self.sizes for ref in self.blocks.references(name)}
        return owned | {ref for refs in self.holds.values() for ref in refs}

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(sorted(self.holds)))
        del self.holds[hold]
        self.blocks.release(hold)

    @invariant()
    def books_balance(self) -> None:
        self.blocks.check_integrity()
        assert self.blocks.num_free_pages == PAGES - len(self.used())
        assert self.blocks.num_free_slots == SLOTS - len(self.sizes)
        tables = [page for name in self.sizes for page in self.blocks.block_table(name)]
        assert len(tables) == len(set(tables)) == sum(self.sizes.values())


BlockMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBlockMachine = BlockMachine.TestCase
