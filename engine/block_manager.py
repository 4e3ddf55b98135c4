"""Who holds which KV page and which state slot. Pure bookkeeping: no tensor, no clock.

A page holds `block_tokens` tokens of all growing caches; a state slot holds what does not grow
(windows, compressor tails), one per sequence. Page 0 and slot 0 are scratch and never handed out.

Invariants, checked by `check_integrity`:
- every page but 0 is either free, or has as many references as owners and holds name it;
- free lists hold no id twice; an owner has one slot;
- the generation of a page grows by one each time it becomes free, so that a write prepared before
  (a transfer that outlived its request) is recognised by its old generation and refused.

Allocation is all or nothing. Pages are taken from the head of the free list and returned to its
tail, so a freed page rests as long as possible before it is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.plan import SCRATCH_PAGE, SCRATCH_SLOT


class PageRef(NamedTuple):
    """A page as somebody once saw it; stale when the page was freed since."""

    page_id: int
    generation: int


class StalePage(Exception):
    """A write or read names a page that was given back since; nothing was touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStatistics:
    """Occupation of pages and slots, scratch not counted."""

    num_pages: int
    num_free_pages: int
    num_slots: int
    num_free_slots: int
    num_owners: int
    num_holds: int


@dataclass(slots=True)
class _Owned:
    slot: int
    pages: list[int]
    # Rebuilt only when pages are added: a plan is written for every step, a page comes every
    # `block_tokens` steps.
    table: tuple[int, ...]


class BlockManager:
    """Hands out pages and slots to owners (request ids) and keeps them for transfers in flight.

    Args:
        num_pages: pages of the pool, the scratch page included.
        num_slots: state slots, the scratch slot included.

    Raises:
        ValueError: less than one usable page or slot.
    """

    def __init__(self, num_pages: int, num_slots: int) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages is {num_pages}: give at least 2, page 0 is scratch")
        if num_slots < 2:
            raise ValueError(f"num_slots is {num_slots}: give at least 2, slot 0 is scratch")
        self._num_pages = num_pages
        self._num_slots = num_slots
        self._references = [0] * num_pages
        self._generations = [0] * num_pages
        self._free_pages: deque[int] = deque(range(SCRATCH_PAGE + 1, num_pages))
        self._free_slots: deque[int] = deque(range(SCRATCH_SLOT + 1, num_slots))
        self._owners: dict[str, _Owned] = {}
        self._holds: dict[int, tuple[int, ...]] = {}
        self._next_hold = 1

    @property
    def num_usable_pages(self) -> int:
        """Pages one owner could have if it were alone."""
        return self._num_pages - 1

    @property
    def num_free_pages(self) -> int:
        """Pages nobody refers to."""
        return len(self._free_pages)

    @property
    def num_free_slots(self) -> int:
        """Slots nobody owns."""
        return len(self._free_slots)

    def can_allocate(self, num_pages: int) -> bool:
        """Says whether `try_allocate` of this many pages and a slot would succeed."""
        return bool(self._free_slots) and num_pages <= len(self._free_pages)

    def try_allocate(self, owner: str, num_pages: int) -> bool:
        """Gives a new owner a slot and `num_pages` pages, or nothing at all.

        Raises:
            ValueError: the owner exists, or `num_pages` is negative.
        """
        if owner in self._owners:
            raise ValueError(f"owner {owner!r} already holds pages; free it first")
        if num_pages < 0:
            raise ValueError(f"num_pages is {num_pages}: give 0 or more")
        if not self.can_allocate(num_pages):
            return False
        pages = self._take(num_pages)
        self._owners[owner] = _Owned(self._free_slots.popleft(), pages, tuple(pages))
        return True

    def try_grow(self, owner: str, num_pages: int) -> bool:
        """Brings an owner to `num_pages` pages in all, or changes nothing. Never shrinks."""
        owned = self._owners[owner]
        num_new = num_pages - len(owned.pages)
        if num_new <= 0:
            return True
        if num_new > len(self._free_pages):
            return False
        owned.pages.extend(self._take(num_new))
        owned.table = tuple(owned.pages)
        return True

    def free(self, owner: str) -> None:
        """Takes slot and pages back; pages under a hold become free when the last hold ends."""
        owned = self._owners.pop(owner)
        self._free_slots.append(owned.slot)
        self._drop(owned.pages)

    def has_owner(self, owner: str) -> bool:
        """Says whether the owner holds a slot."""
        return owner in self._owners

    def num_pages_of(self, owner: str) -> int:
        """Returns how many pages an owner has."""
        return len(self._owners[owner].pages)

    def block_table(self, owner: str) -> tuple[int, ...]:
        """Returns the pages of an owner in the order of its tokens."""
        return self._owners[owner].table

    def state_slot(self, owner: str) -> int:
        """Returns the slot of an owner."""
        return self._owners[owner].slot

    def references(self, owner: str) -> tuple[PageRef, ...]:
        """Returns the pages of an owner with their present generations, for a transfer to keep."""
        return tuple(PageRef(page, self._generations[page]) for page in self._owners[owner].pages)

    def hold(self, pages: Iterable[PageRef]) -> int:
        """Keeps pages from being used again until `release`; returns the name of the hold.

        Raises:
            StalePage: a page was freed since its reference was taken.
        """
        references = tuple(pages)
        self.check_current(references)
        for reference in references:
            self._references[reference.page_id] += 1
        hold_id = self._next_hold
        self._next_hold += 1
        self._holds[hold_id] = tuple(reference.page_id for reference in references)
        return hold_id

    def release(self, hold_id: int) -> None:
        """Ends a hold. A second call does nothing."""
        self._drop(self._holds.pop(hold_id, ()))

    def check_current(self, pages: Iterable[PageRef]) -> None:
        """Must pass before a late write or read touches its pages.

        Raises:
            StalePage: a page is free, is scratch, or was freed and handed out again.
        """
        for page_id, generation in pages:
            if not SCRATCH_PAGE < page_id < self._num_pages:
                raise StalePage(f"page {page_id} is not a page of this pool")
            if self._references[page_id] == 0 or self._generations[page_id] != generation:
                raise StalePage(
                    f"page {page_id} of generation {generation} was given back "
                    f"(now generation {self._generations[page_id]})"
                )

    def statistics(self) -> BlockStatistics:
        """Returns the present occupation."""
        return BlockStatistics(
            num_pages=self._num_pages - 1,
            num_free_pages=len(self._free_pages),
            num_slots=self._num_slots - 1,
            num_free_slots=len(self._free_slots),
            num_owners=len(self._owners),
            num_holds=len(self._holds),
        )

    def check_integrity(self) -> None:
        """Recounts everything.

        Raises:
            AssertionError: the books do not balance.
        """
        counted = [0] * self._num_pages
        for owned in self._owners.values():
            _require(owned.table == tuple(owned.pages), "a block table differs from its pages")
            for page in owned.pages:
                counted[page] += 1
        for pages in self._holds.values():
            for page in pages:
                counted[page] += 1
        _require(counted == self._references, "reference counts differ from owners and holds")
        _require(counted[SCRATCH_PAGE] == 0, "the scratch page was handed out")
        free = set(self._free_pages)
        _require(len(free) == len(self._free_pages), "a page is free twice")
        unused = {page for page in range(1, self._num_pages) if counted[page] == 0}
        _require(free == unused, "free pages differ from pages without references")
        slots = [owned.slot for owned in self._owners.values()] + list(self._free_slots)
        _require(sorted(slots) == list(range(1, self._num_slots)), "a slot is lost or given twice")

    def _take(self, num_pages: int) -> list[int]:
        pages = [self._free_pages.popleft() for _ in range(num_pages)]
        for page in pages:
            self._references[page] = 1
        return pages

    def _drop(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._generations[page] += 1
                self._free_pages.append(page)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
