"""Who may have device memory: what fits at all, what is kept free, who of the queue is next. Pure.

Rules:
- a request must fit an empty pool with all the KV it may come to need, or it is refused;
- the queue is ordered by arrival and only its head is admitted, so nobody is overtaken for ever;
- an admission leaves a page for every running sequence that can still grow, and what was reserved;
- a paused sequence gives way: it keeps no page to grow, is passed over in the queue, and what it
  has may be counted as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.request import EngineRequest, PoolFull
from engine.sequence import Sequence


def max_kv_tokens(request: EngineRequest, context_tokens: int) -> int:
    """Returns the tokens of a request that may ever have KV.

    Args:
        request: prompt, what was generated before, and how much may come.
        context_tokens: tokens of a sequence at most.
    """
    num_given = len(request.token_ids)
    if request.stop_after_first:
        return num_given
    total = num_given - request.num_generated + request.sampling.max_tokens
    # The last token of a generation is never computed, so it needs no KV.
    return max(num_given, min(total, context_tokens) - 1)


def pages_alone(num_kv_tokens: int, cache: CacheSize) -> int:
    """Returns the pages that so many tokens of KV take.

    Raises:
        PoolFull: an empty pool has fewer.
    """
    num_pages = cache.pages_for(num_kv_tokens)
    usable = cache.num_pages - 1  # page 0 is scratch
    if num_pages > usable:
        raise PoolFull(
            f"prompt and max_tokens may need {num_kv_tokens} tokens of KV, but the pool holds "
            f"{usable * cache.block_tokens} in all: lower max_tokens, shorten the prompt "
            "or raise num_pages"
        )
    return num_pages


def pages_to_admit(sequence: Sequence, cache: CacheSize) -> int:
    """Returns the pages that must be there: for all known tokens, and one to grow if it can."""
    num_pages = cache.pages_for(sequence.num_tokens)
    return num_pages + (1 if num_pages < sequence.max_pages else 0)


@dataclass(frozen=True, slots=True)
class _Reservation:
    num_pages: int
    arrival_idx: int


class Reservations:
    """Slots and pages that are kept for requests to come, each with its place in the queue."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._by_id

    @property
    def num_pages(self) -> int:
        """Pages of all of them."""
        return sum(reservation.num_pages for reservation in self._by_id.values())

    def add(self, reservation_id: str, num_pages: int, arrival_idx: int) -> None:
        """Keeps a slot, pages, and a place in the order of arrival."""
        self._by_id[reservation_id] = _Reservation(num_pages, arrival_idx)

    def take(self, reservation_id: str | None) -> int | None:
        """Ends a reservation and returns its place; None when there is none (any more)."""
        reservation = self._by_id.pop(reservation_id or "", None)
        return None if reservation is None else reservation.arrival_idx


@dataclass(slots=True, kw_only=True)
class Room:
    """What admissions may still take.

    Args:
        num_slots: sequences that may come in; below 1 there is no room, whatever the pages.
        num_pages: free pages that are not spoken for; below 0 when growth is not covered.
    """

    num_slots: int
    num_pages: int

    @classmethod
    def measure(
        cls,
        running: list[Sequence],
        reservations: Reservations,
        blocks: BlockManager,
        max_num_seqs: int,
        *,
        without_paused: bool = False,
    ) -> Room:
        """Counts what is left beside the running sequences and the reservations.

        Args:
            running: sequences that own memory.
            reservations: what is kept for requests to come.
            blocks: who owns what.
            max_num_seqs: sequences that hold memory at the same time.
            without_paused: as if the paused had given up what they own.
        """
        num_given_up = sum(sequence.is_paused for sequence in running) if without_paused else 0
        num_slots = max_num_seqs - (len(running) - num_given_up + len(reservations))
        if num_slots < 1:
            return cls(num_slots=num_slots, num_pages=0)
        num_pages = blocks.num_free_pages - reservations.num_pages
        for sequence in running:
            owned = blocks.num_pages_of(sequence.request_id)
            if not sequence.is_paused:
                num_pages -= owned < sequence.max_pages
            elif without_paused:
                num_pages += owned
        return cls(num_slots=num_slots, num_pages=num_pages)

    def has(self, num_pages: int) -> bool:
        """Says whether a sequence could come in that must find so many pages."""
        return self.num_slots > 0 and num_pages <= self.num_pages

    def take(self, num_pages: int) -> None:
        """Counts a slot and so many pages as taken."""
        self.num_slots -= 1
        self.num_pages -= num_pages


def admissible(
    waiting: Iterable[Sequence],
    room: Room,
    cache: CacheSize,
    can_take_part: Callable[[Sequence], bool],
) -> Iterator[Sequence]:
    """Yields who can be admitted to a step, in order of arrival, up to the first that cannot.

    Args:
        waiting: the queue, ordered by arrival.
        room: what may be taken; each sequence takes its part when the next one is asked for.
        cache: tokens of a page.
        can_take_part: says whether a sequence has a row in a step of this kind.
    """
    for head in waiting:
        if head.is_paused or head.is_ending:
            continue
        num_pages = pages_to_admit(head, cache)
        if not can_take_part(head) or not room.has(num_pages):
            return
        yield head
        room.take(num_pages)
