"""The queue of one length class: tenants take turns by tokens, inside a tenant priority decides.

Deficit round robin: a tenant whose turn comes gets `quantum_tokens` times its weight to spend, and
starts requests as long as the cost of the next one is covered; what is left stays until its queue
is empty. So tenants that keep waiting get tokens in proportion to their weights, up to one
quantum and one request, whatever the sizes of their requests.

Priority with ageing: one step of priority is worth `ageing_s` seconds of waiting. The order of two
requests never changes while they wait, so the place of a request is known when it arrives, and it
is overtaken only by those who come within `ageing_s` times the difference of their priorities.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the queue; smaller is earlier.

    Attributes:
        rank: Arrival minus priority in seconds.
        arrival: Number that settles equal ranks.
        cost: Tokens it will compute, at least 1.
        latest_start: After this it would miss its deadline.
    """

    rank: float
    arrival: int
    request_id: str
    tenant: str
    cost: int
    latest_start: float


class FairQueue:
    """Waiting requests of one class.

    Args:
        weights: Share of a tenant; 1 for those that are not named.
        quantum_tokens: What a turn is worth.
    """

    def __init__(self, weights: Mapping[str, float], quantum_tokens: int) -> None:
        self._weights = weights
        self._quantum_tokens = quantum_tokens
        self._waiting: dict[str, list[Place]] = {}
        self._deficits: dict[str, float] = {}
        self._turns: deque[str] = deque()
        self._has_turn = False  # whether the first tenant was given its quantum already

    def __len__(self) -> int:
        """Waiting requests."""
        return sum(map(len, self._waiting.values()))

    def push(self, place: Place) -> None:
        """Adds a request."""
        if place.tenant not in self._waiting:
            self._waiting[place.tenant] = []
            self._deficits[place.tenant] = 0.0
            self._turns.append(place.tenant)
        bisect.insort(self._waiting[place.tenant], place)

    def remove(self, place: Place) -> None:
        """Takes a waiting request out."""
        self._waiting[place.tenant].remove(place)
        self._leave_if_empty(place.tenant)

    def pop(self) -> Place:
        """Takes out the next request; there must be one."""
        self._skip_rounds()
        while True:
            tenant = self._turns[0]
            if not self._has_turn:
                self._deficits[tenant] += self._share(tenant)
                self._has_turn = True
            head = self._waiting[tenant][0]
            if head.cost <= self._deficits[tenant]:
                self._deficits[tenant] -= head.cost
                self._waiting[tenant].pop(0)
                self._leave_if_empty(tenant)
                return head
            self._turns.rotate(-1)
            self._has_turn = False

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        assert set(self._turns) == self._waiting.keys() == self._deficits.keys()
        assert len(self._turns) == len(self._waiting)
        for tenant, places in self._waiting.items():
            assert places
            assert places == sorted(places)
            assert all(place.tenant == tenant for place in places)
            assert self._deficits[tenant] >= 0

    def _share(self, tenant: str) -> float:
        return self._quantum_tokens * self._weights.get(tenant, 1.0)

    def _skip_rounds(self) -> None:
        """Gives everybody at once the rounds in which nobody could have started."""
        rounds = min(
            math.ceil((self._waiting[t][0].cost - self._deficits[t]) / self._share(t))
            for t in self._turns
        )
        for tenant in self._turns if rounds > 2 else ():
            self._deficits[tenant] += (rounds - 2) * self._share(tenant)

    def _leave_if_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            if self._turns[0] == tenant:
                self._has_turn = False
            del self._waiting[tenant]
            del self._deficits[tenant]
            self._turns.remove(tenant)
